"""Samples and figures of a user's model, as `onepass sample` and `onepass evaluate` write them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from onepass.array_command import EvaluateArguments, SampleArguments
from onepass.array_files import rows_of
from onepass.evaluation import evaluate as measure
from onepass.models import load
from replicator.runs.errors import UserError
from replicator.runs.folders import check_new, make_folder
from replicator.runs.intervals import format_measure
from serving.bundles.condition_words import condition_of
from serving.bundles.own_signatures import elements_of
from serving.errors import ServingError


def sample(given: SampleArguments) -> int:
    """Write samples, and return the exit status."""
    model: Any = load(given.model, trust=given.trust)
    length: Any = given.length[0] if len(given.length) == 1 else given.length
    options = given.arguments()
    if model.kind == "flow-student" and (named := options.keys() - {"temperature", "condition"}):
        raise UserError(f"{given.model} is a student, which takes no `{min(named)}`.")
    if model.kind == "autoregressive":
        options["method"] = given.method
    paths, of_nats = _paths(given, model, length), given.log_prob_path(given.out, given.seed)
    check_new([*paths, *of_nats], given.overwrite)
    found = _drawn(lambda: model.sample(given.num, length, given.seed, **options))
    drawn, *nats = found if given.log_prob else (found,)
    make_folder(given.out)
    for path, array in zip(of_nats, nats, strict=True):
        np.save(path, array)
    if paths[0].suffix == ".npy":
        np.save(paths[0], drawn)
    for path, each in zip(paths, drawn, strict=False):
        _write(path, each, model)
    print(f"{given.out}: {given.num} samples {list(drawn.shape[1:])}, {drawn.dtype}")
    return 0


def evaluate(given: EvaluateArguments) -> int:
    """Print the bits per element of data, and return the exit status."""
    model: Any = load(given.model, trust=given.trust)
    if model.kind == "flow-student":
        raise UserError(f"{given.model} is a student, which has no log-probabilities.")
    condition = condition_of(given.condition)
    if given.batch < 1:
        raise UserError(f"`--batch` must be at least 1, got {given.batch}.")
    rows = rows_of(given.data, model)
    try:
        found = measure(model, rows, condition, batch_size=given.batch)
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


def _drawn(function: Callable[[], Any]) -> Any:
    """Return the result of a function of the model.

    Raises:
      UserError: the model refuses the arguments.
    """
    try:
        return function()
    except (ServingError, ValueError) as error:
        raise UserError(str(error)) from error


def _paths(given: SampleArguments, model: Any, length: Any) -> list[Path]:
    """Return the files to write: one for each sample, or one npy file."""
    suffix = ".npy" if given.npy else _suffix(model, length)
    begin = f"sample_{given.seed}"
    if suffix == ".npy":
        return [given.out / f"{begin}{suffix}"]
    return [given.out / f"{begin}_{row}{suffix}" for row in range(given.num)]


def _suffix(model: Any, length: Any) -> str:
    if getattr(model, "sample_rate_hz", None) is not None:
        return ".wav"
    channels = length[2] if isinstance(length, tuple) and len(length) == 3 else 0
    most = {1: 2**16, 3: 2**8}.get(channels, 0)
    return ".png" if 0 < _levels(model) <= most else ".npy"


def _levels(model: Any) -> int:
    """Return the number of integer values of an element; 0 if elements are real."""
    spec = getattr(model, "spec", None)
    elements = elements_of(model) if spec is None else spec["elements"]
    return elements["levels"] if elements["dtype"] == "int32" else 0


def _write(path: Path, sample: np.ndarray, model: Any) -> None:
    if path.suffix == ".wav":
        from wavenet.data import audio

        audio.write(path, sample, model.sample_rate_hz)
    elif path.suffix == ".png":
        from pixelcnn.sampling.grids import write_png

        dtype = np.uint8 if _levels(model) <= 256 else np.uint16
        write_png(path, sample.astype(dtype))
