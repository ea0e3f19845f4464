"""Requests for rows of a model, which are checked once and converted to inputs of signatures."""

import dataclasses
import operator
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from onepass.bundles.condition_inputs import COUNT, FRAMES, is_timed
from onepass.bundles.signature import SEED, Arrays, TensorInfo
from onepass.draw import LISTS, Draw
from onepass.foundation.arguments import (
    check_unmasked,
    checked_length,
    checked_seed,
    whole_number,
)

LAST_ROW = 2**31 - 1  # largest row number of a seed


@dataclasses.dataclass(frozen=True)
class Request:
    """The checked arguments of a call that generates rows of a model, in a bundle or on a server.

    Attributes:
      shape: shape of a row: (time,) or (height, width, channels).
      conditions: inputs of the signatures that are conditions, and `speaker`, each [num, ...].
      first_row: row of the seed for the first row.
      side_frames: number of frames before and after a segment that its elements depend on.
    """

    num: int
    shape: tuple[int, ...]
    seed: int
    conditions: Arrays
    draw: Draw
    first_row: int = 0
    hop_samples: int = 1
    side_frames: int = 0

    @classmethod
    def check_draw(
        cls,
        draw: Draw,
        order: str,
        condition: Callable[[int, int], Arrays] | None = None,
        *,
        hop_samples: int = 1,
        side_frames: int = 0,
    ) -> "Request":
        """Check what is asked of a model, and return it as a request for its signatures.

        Args:
          order: "time" or "raster", the order in which the model generates its elements.
          condition: function that returns the inputs that are conditions, given the number of rows
            and the size of the first axis of a row; None for a model without conditions.
        """
        num, shape = whole_number(draw.num, "num"), checked_length(draw.length, order)
        first_row = whole_number(draw.row, "row", 0)
        if first_row + num - 1 > LAST_ROW:
            raise ValueError(f"`row` must be at most {LAST_ROW} for the last row, got {first_row}.")
        seed, draw = seed_number(draw.seed), draw.checked(num, shape[0], order)
        conditions = {} if condition is None else condition(num, shape[0])
        return cls(num, shape, seed, conditions, draw, first_row, hop_samples, side_frames)

    @property
    def temperature(self) -> np.ndarray:
        """The temperature of each row, float32 [num]."""
        return np.broadcast_to(np.asarray(self.draw.temperature, np.float32), [self.num])

    @property
    def words(self) -> list[str]:
        """Names, in backquotes, of this request's options that only prompt signatures take."""
        return [f"`{name}`" for name, kind in self.draw.asked().items() if kind.is_prompted]

    def check_known(self, known: Mapping[str, TensorInfo]) -> None:
        """Raise ValueError if a prompt signature, with inputs `known`, lacks a requested option."""
        for name, kind in self.draw.asked().items():
            if name not in known and kind.needs_tokens:
                raise ValueError(f"`{name}` needs a distribution over tokens.")
            if name not in known and kind.needs_levels:
                raise ValueError(
                    f"`{name}` needs a model of integer symbols, got one of real numbers."
                )

    def inputs(
        self, known: Mapping[str, TensorInfo], rows: np.ndarray, first: int, count: int
    ) -> Arrays:
        """Return a signature's inputs for rows, with `count` elements starting at `first`."""
        size = len(rows)
        heat = self.temperature[rows].reshape([size] + [1] * (len(known["temperature"].shape) - 1))
        inputs = noise_inputs(known, self.seed, rows + self.first_row, heat)
        for name, array in self.conditions.items():
            if name == FRAMES:
                inputs |= self._frames(known, array[rows], first, first + count)
            else:
                timed = name in known and is_timed(known[name])
                inputs[name] = array[rows, first : first + count] if timed else array[rows]
        for name, value in ((COUNT, count), ("start", first)):
            if name in known:
                inputs[name] = np.full([size], value, np.int32)
        return inputs | self._prompt(known, rows, first, count)

    def _frames(self, known: Mapping[str, TensorInfo], frames: Any, first: int, end: int) -> Arrays:
        low, high = first // self.hop_samples, -(-end // self.hop_samples)
        before = min(low, self.side_frames)
        after = max(0, min(frames.shape[1] - high, self.side_frames))
        counts = {"frames_before": before, "num_frames": high - low, "frames_after": after}
        if "frames_before" not in known:  # a whole row, whose neighbours are part of it
            counts = {"num_frames": before + high - low + after}
        window = frames[:, low - before : high + after]
        arrays = {name: np.full([len(frames)], value, np.int32) for name, value in counts.items()}
        return {FRAMES: window, **arrays}

    def _prompt(
        self, known: Mapping[str, TensorInfo], rows: np.ndarray, first: int, count: int
    ) -> Arrays:
        inputs: Arrays = {}
        for name, kind in self.draw.asked().items():
            if kind.is_prompted and name in known:
                inputs |= kind.arrays(getattr(self.draw, name), name, rows, first, count)
        return {n: as_elements(known[n], x, n) if n in LISTS else x for n, x in inputs.items()}


def seed_number(seed: Any) -> int:
    """Return a seed as a Python integer; raise ValueError unless it is an integer in [0, 2^64)."""
    try:
        return operator.index(checked_seed(seed))
    except TypeError:  # a key, which only a live model takes
        raise ValueError(f"`seed` must be an integer in [0, 2^64), got {seed!r}.") from None


def noise_inputs(known: Mapping[str, TensorInfo], seed: int, rows: Any, temperature: Any) -> Arrays:
    """Return the noise's inputs; the temperature is [rows], [rows, 1], [scales] or [1]."""
    sides = [len(rows), *(side or 1 for side in known["temperature"].shape[1:])]
    return {
        SEED: np.full([len(rows)], seed, np.uint64),
        "row": np.array(rows, np.int32),
        "temperature": np.full(sides, temperature, np.float32),
    }


def as_elements(info: TensorInfo, elements: Any, name: str = "elements") -> np.ndarray:
    """Return elements in the input's dtype; text, and floats for integers, stay for the check."""
    check_unmasked(elements, name)
    array = np.asarray(elements)
    if array.dtype.kind in "iu" and info.dtype.kind == "i" and array.size:
        limits, least, greatest = np.iinfo(info.dtype), array.min(), array.max()
        if least < limits.min or greatest > limits.max:
            raise ValueError(f"`{name}` must be {info.dtype}, got {least} to {greatest}.")
    is_real = array.dtype.kind not in "iu" and info.dtype.kind == "i"
    return array if is_real or array.dtype.kind in "USO" else array.astype(info.dtype)
