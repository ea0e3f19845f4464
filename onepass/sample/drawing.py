"""The samples that `onepass sample` draws, and the one loop that writes them to files."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from foundation.folders import check_new, counted, make_folder
from foundation.progress import Progress

INTERRUPTED = 130


class Drawing(contextlib.ExitStack):
    """Samples of a model that are written to files; a context manager around the writing.

    Each kind of model has a subclass, whose `start` sets `total` if it is not known earlier.

    Attributes:
      files: the files to write, which must not exist yet unless they may be overwritten.
      total: number of units in all.
      written: number of parts written so far.
      advance: counts units that are finished before their part is.

    Args:
      given: the options of the command.
      model: a model on this machine or on a server.
      arguments: the arguments of its `stream`, `progressions` or `sample` that options set.
    """

    title, unit = "drawing", "sample"  # of the progress bar: its title, and the unit it counts

    def __init__(self, given: Any, model: Any, arguments: dict[str, Any]):
        super().__init__()
        self.given, self.model, self.arguments = given, model, arguments
        self.files: list[Path] = []
        self.total, self.written = 0, 0
        self.advance: Callable[[int], None] = lambda units: None

    def start(self) -> Iterator[Any]:
        """Return the samples in parts; raise UserError for what the model cannot draw."""
        raise NotImplementedError

    def write(self, part: Any) -> int:
        """Write a part, and return the number of units that it finishes."""
        raise NotImplementedError

    def kept(self) -> str:
        """Return how much has been written, for the message of an interruption."""
        return f"{self.written} of {counted(self.total, self.unit)}"

    def finish(self) -> None:
        """Write what combines all parts, and print a summary; also called after an interruption."""


def write_out(drawing: Drawing) -> int:
    """Draw, write the files, and return the exit status.

    Ctrl-C keeps the parts that have been written.

    Raises:
      UserError: a file exists, the model cannot draw this, or the folder cannot be made.
    """
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
            progress.say(f"interrupted: keeping {drawing.kept()}")
            interrupted = True
    drawing.finish()
    return INTERRUPTED if interrupted else 0
