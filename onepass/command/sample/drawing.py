"""Drawings that `onepass sample` makes and writes: the base class, the loop over files, and arrays.

Samples of a user's model are written to npy files or, for a local model, WAV or PNG files.
"""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onepass.bundles.errors import ServingError
from onepass.foundation.files import check_new, count_noun, make_folder
from onepass.foundation.progress import Progress
from onepass.foundation.rules import UserError

if TYPE_CHECKING:
    import numpy as np

INTERRUPTED = 130


class Drawing(contextlib.ExitStack):
    """Samples of a model that are written to files; a context manager around the writing.

    Each kind of model has a subclass. The samples are written in parts, such as images or chunks of
    sound; progress is counted in units, which may be smaller or larger than a part.
    """

    title, unit = "drawing", "sample"  # title and unit of the progress bar

    def __init__(self, given: Any, model: Any, arguments: dict[str, Any]):
        super().__init__()
        self.given, self.model, self.arguments = given, model, arguments
        self.files: list[Path] = []
        self.total, self.written = 0, 0  # units, known at the latest after `start`, and parts
        # Reports a number of finished units before their part is complete.
        self.advance: Callable[[int], None] = lambda units: None

    def start(self) -> Iterator[Any]:
        """Return the samples in parts; raise UserError if the model cannot draw them."""
        raise NotImplementedError

    def write(self, part: Any) -> int:
        """Write a part, and return the number of units that it completes."""
        raise NotImplementedError

    def describe_progress(self) -> str:
        """Return how much has been written, as a phrase for the message after an interruption."""
        return f"{self.written} of {count_noun(self.total, self.unit)}"

    def finish(self) -> None:
        """Write files that combine all parts and print a summary, even after an interruption."""


def write_out(drawing: Drawing) -> int:
    """Draw, write the files, and return the exit status; Ctrl-C keeps what has been written."""
    check_new(drawing.files, drawing.given.overwrite)
    parts = drawing.start()
    make_folder(drawing.given.out)
    interrupted = False
    with Progress(drawing.total, drawing.title, drawing.unit) as progress, drawing:
        drawing.advance = progress.advance
        try:
            for part in parts:
                progress.advance(drawing.write(part))
                drawing.written += 1
        except KeyboardInterrupt:
            progress.say(f"interrupted: keeping {drawing.describe_progress()}")
            interrupted = True
    drawing.finish()
    return INTERRUPTED if interrupted else 0


class ArrayDrawing(Drawing):
    """Samples of a user's model, drawn as one batch, with log-probabilities if requested."""

    def __init__(self, given: Any, model: Any, arguments: dict[str, Any]):
        super().__init__(given, model, arguments)
        kind = getattr(model, "kind", "")
        if kind != "autoregressive":
            arguments.pop("method", None)
        if kind == "flow-student" and (named := arguments.keys() - {"temperature", "condition"}):
            raise UserError(f"{given.model} is a student, which takes no `{min(named)}`.")
        self.total = given.num or 1
        self._length: Any = given.length[0] if len(given.length) == 1 else given.length
        begin = f"sample_{given.seed}"
        # Samples of a served model are always arrays.
        suffix = ".npy" if getattr(given, "npy", True) else _suffix(model, self._length)
        names = [begin] if suffix == ".npy" else [f"{begin}_{r}" for r in range(self.total)]
        self._rows = [given.out / f"{name}{suffix}" for name in names]
        self._nats = [given.out / f"{begin}_log_prob.npy"] if given.log_prob else []
        self.files = self._rows + self._nats

    def start(self) -> Iterator[Any]:
        """Draw all rows, and return an iterator over them as a single part."""
        try:
            found = self.model.sample(self.total, self._length, self.given.seed, **self.arguments)
        except UserError:
            raise
        except (ServingError, ValueError) as error:
            raise UserError(str(error)) from error
        return iter([found if self._nats else (found,)])

    def write(self, part: Any) -> int:
        """Write all rows and their log-probabilities, and return the number of rows."""
        drawn, *nats = part
        arrays = [drawn] if self._rows[0].suffix == ".npy" else list(drawn)
        for path, array in zip(self.files, [*arrays, *nats], strict=True):
            _write(path, array, self.model)
        print(f"{self.given.out}: {len(drawn)} samples {list(drawn.shape[1:])}, {drawn.dtype}")
        return len(drawn)


def _suffix(model: Any, length: Any) -> str:
    if getattr(model, "sample_rate_hz", None) is not None:
        return ".wav"
    channels = length[2] if isinstance(length, tuple) and len(length) == 3 else 0
    most = {1: 2**16, 3: 2**8}.get(channels, 0)
    return ".png" if 0 < _levels(model) <= most else ".npy"


def _levels(model: Any) -> int:
    from onepass.bundles.functions import elements_of

    elements = getattr(model, "spec", {}).get("elements") or elements_of(model)
    return elements["levels"] if elements["dtype"] == "int32" else 0


def _write(path: Path, array: "np.ndarray", model: Any) -> None:
    import numpy as np  # not for a help text

    if path.suffix == ".npy":
        np.save(path, array)
    elif path.suffix == ".wav":
        from wavenet.data import audio

        audio.write(path, array, model.sample_rate_hz)
    else:
        from pixelcnn.sampling.grids import write_png

        write_png(path, array.astype(np.uint8 if _levels(model) <= 256 else np.uint16))
