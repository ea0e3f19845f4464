"""The base class for the results of `onepass sample`, and the loop that writes them to files."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from onepass.foundation.files import check_new, count_noun, make_folder
from onepass.foundation.progress import Progress

INTERRUPTED = 130


class Drawing(contextlib.ExitStack):
    """Samples of a model that are written to files; a context manager around the writing.

    Each kind of model has a subclass. The samples are written in parts, such as images or chunks of
    sound; progress is counted in units, which may be smaller or larger than a part.

    Attributes:
      total: total number of units, known at the latest after `start`.
      advance: function that reports a number of finished units before their part is complete.
    """

    title, unit = "drawing", "sample"  # title and unit of the progress bar

    def __init__(self, given: Any, model: Any, arguments: dict[str, Any]):
        super().__init__()
        self.given, self.model, self.arguments = given, model, arguments
        self.files: list[Path] = []
        self.total, self.written = 0, 0
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
