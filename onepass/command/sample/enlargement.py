"""Enlarge a photograph, writing a PNG file of each scale as soon as it is finished."""

import dataclasses
import itertools
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from onepass.command.sample.drawing import Drawing
from onepass.command.sample.image_inputs import at_own_size
from onepass.draw import Draw
from onepass.foundation.errors import UserError
from onepass.foundation.folders import count_noun
from pixelcnn.sampling.grids import image_name, write_png

UNUSED = ("method", "guidance", "batch", "prime", "prime_rows")


class Enlargement(Drawing):
    """Enlargements of a photograph to every larger scale, up to the requested size."""

    title, unit = "enlarging", "tile"

    def __init__(self, given: Any, model: Any, arguments: dict[str, Any]):
        super().__init__(given, model, arguments)
        for field in dataclasses.fields(given):
            if field.name in UNUSED and getattr(given, field.name) != field.default:
                flag = field.name.replace("_", "-")
                raise UserError(f"`--{flag}` is not for a photograph to enlarge.")
        photograph = at_own_size(given.start, model)
        size, heat = given.size or model.front.size, arguments.get("temperature", 1.0)
        asked = Draw(given.num or 1, size, given.seed, {}, temperature=heat, prefix=photograph)
        self._asked, enlarger = model.model.checked(asked), model.model.enlarger
        rows = range(self._asked.num)
        first = max(photograph.shape[:2])
        sides = [side for side in enlarger.model.sizes if first < side <= size]
        # The file of the largest scale is named like any image, without its side.
        scales = [(row, None if side == size else str(side)) for row in rows for side in sides]
        self.files = [given.out / image_name(given.seed, *scale) for scale in scales]
        self._work = enlarger.work(photograph.shape, size)
        self.total = len(rows) * self._work.tiles
        self._begun, self._shape = time.perf_counter(), (0, 0)

    def start(self) -> Iterator[np.ndarray]:
        """Yield the scales larger than the photograph, row by row; count tiles as they finish."""
        for row in range(self._asked.num):
            scales = self.model.model.enlarge_start(self._asked, row, lambda: self.advance(1))
            yield from itertools.islice(scales, 1, None)

    def write(self, part: np.ndarray) -> int:
        """Write one scale to its PNG file."""
        write_png(self.files[self.written], part)
        self._shape = part.shape[:2]
        return 0

    def describe_progress(self) -> str:
        """Return a phrase with the number of scales that have been written."""
        return f"{self.written} of {len(self.files)} scales"

    def finish(self) -> None:
        """Unless interrupted, print two lines: what was written, and how much work it took."""
        if self.written < len(self.files):
            return
        (height, width), work = self._shape, self._work
        seconds, count = time.perf_counter() - self._begun, self._asked.num
        steps = f", each with {work.steps} steps within patches" if work.steps else ""
        print(
            f"{self.given.out}: {count_noun(count, 'image')} of {width}x{height} pixels in "
            f"{seconds:.1f} s, compilation included\n"
            f"passes: {work.passes} per image{steps}, in {count_noun(work.tiles, 'tile')}"
        )
