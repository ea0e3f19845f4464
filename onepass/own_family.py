"""The families of users' own models: what their commands ask of an `Autoregressive`, or a student.

The modules that compute are imported only after the options are parsed.
"""

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import tyro

from onepass.families import ModelFamily, later, module
from onepass.foundation.rules import UserError, require


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

    def check(self) -> None:
        """Raise a UserError for a batch without rows."""
        require(self.batch >= 1, "--batch", "at least 1", self.batch)


def _evaluate(given: EvaluateArguments, model: Any, data: Path) -> dict:
    from onepass.bundles.errors import ServingError
    from onepass.bundles.export_arguments import condition_of
    from onepass.command.array_files import rows_of
    from onepass.evaluation import evaluate

    rows, condition = rows_of(data, model), condition_of(given.condition)
    try:
        found = evaluate(model, rows, condition, batch_size=given.batch, most_rows=None)
    except UserError:
        raise
    except (ServingError, ValueError) as error:
        raise UserError(f"{data}: {error}") from error
    return {"bits_per_element": vars(found.bits), "elements": found.elements}


def _refuse(given: EvaluateArguments, model: Any, data: Path) -> dict:
    raise UserError(f"{given.model} is a student, which has no log-probabilities.")


def _report(figures: dict) -> str:
    from onepass.foundation.measures import format_measure

    bits = format_measure(figures["bits_per_element"])
    return f"{bits} bits per element, of {figures['elements']:,} elements"


AUTOREGRESSIVE = ModelFamily(
    makes="arrays",
    evaluation=EvaluateArguments,
    load=later("onepass.models:load"),
    evaluate=_evaluate,
    report=_report,
    store=module("onepass.storage"),
)
FLOW_STUDENT = dataclasses.replace(
    AUTOREGRESSIVE, evaluate=_refuse, store=module("distill.flow_student")
)
