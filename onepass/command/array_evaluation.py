"""The verb `evaluate` for a user's model: bits per element of a data set.

The modules that compute are imported only after the options are parsed.
"""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import tyro

from onepass.foundation.errors import UserError


@dataclasses.dataclass(frozen=True)
class EvaluateArguments:
    """Measure the bits per element that a model needs for data, with a 95% interval over rows."""

    model: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="MODEL")]
    """Folder of the model, or a bundle NAME/VERSION."""
    data: Path
    """npy file [num, time] or [num, height, width, channels]; or a folder of WAV or FLAC files (for
    a sound model), or of PNG or TIFF files of one size (for an image model)."""
    condition: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """Condition of the rows: FILE.npy [num, ...], or NUMBER for all rows. For several conditions,
    repeat the option with NAME=FILE.npy or NAME=NUMBER."""
    batch: int = 16
    """Number of rows per batch."""
    as_json: Annotated[bool, tyro.conf.arg(name="json")] = False
    """Print the results as JSON."""
    trust: bool = False
    """Run the program in a folder of `onepass.save` without scanning it, with your permissions."""


def run_evaluate(arguments: list[str], parse: Callable) -> int:
    """Run `onepass evaluate MODEL ...`, print the results, and return the exit status.

    Raises:
      UserError: an argument is invalid, or the model and the data cannot be read or do not fit.
    """
    given = parse(EvaluateArguments, arguments, "onepass evaluate")
    from onepass.bundles.condition_words import condition_of
    from onepass.bundles.errors import ServingError
    from onepass.command.array_files import rows_of
    from onepass.evaluation import evaluate
    from onepass.foundation.intervals import format_measure
    from onepass.models import load

    model: Any = load(given.model, trust=given.trust)
    if model.kind == "flow-student":
        raise UserError(f"{given.model} is a student, which has no log-probabilities.")
    condition = condition_of(given.condition)
    if given.batch < 1:
        raise UserError(f"`--batch` must be at least 1, got {given.batch}.")
    rows = rows_of(given.data, model)
    try:
        found = evaluate(model, rows, condition, batch_size=given.batch, most_rows=None)
    except UserError:
        raise
    except (ServingError, ValueError) as error:
        raise UserError(f"{given.data}: {error}") from error
    measured = vars(found.bits)
    figures: dict[str, Any] = {
        "model": str(given.model),
        "data": str(given.data),
        "bits_per_element": measured,
        "elements": found.elements,
    }
    if given.as_json:
        print(json.dumps(figures, indent=2))
    else:
        print(f"{format_measure(measured)} bits per element, of {found.elements:,} elements")
    return 0
