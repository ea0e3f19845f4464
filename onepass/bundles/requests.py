"""Requests for rows of a model, which are checked once and converted to inputs of signatures."""

import dataclasses
import operator
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from onepass.bundles.condition_inputs import COUNT, FRAMES, is_timed
from onepass.bundles.prompt_inputs import NUM_PREFIX, PREFIX, STOP, TOP_K, TOP_P
from onepass.bundles.signature import SEED, Arrays, TensorInfo
from onepass.foundation.arguments import (
    check_unmasked,
    checked_length,
    checked_prefix,
    checked_seed,
    checked_stop,
    checked_temperatures,
    checked_top_k,
    checked_top_p,
    whole_number,
)

LAST_ROW = 2**31 - 1  # largest row number of a seed


@dataclasses.dataclass(frozen=True)
class Request:
    """The checked arguments of a call that generates rows of a model, in a bundle or on a server.

    Attributes:
      num: number of rows.
      shape: shape of a row: (time,) or (height, width, channels).
      seed: seed of the noise, an integer in [0, 2^64).
      temperature: float32 [num], the temperature of each row.
      conditions: inputs of the signatures that are conditions, and `speaker`, each [num, ...].
      top_k: number of most probable tokens to draw among; 0: all.
      top_p: draw among the fewest tokens whose probabilities add up to this share, in (0, 1].
      prefix: elements that each row begins with, one array [n] per row; None: no prefix.
      stop: the element that ends a row, or None.
      first_row: row of the seed for the first row.
      hop_samples: hop length of the frames, in elements.
      side_frames: number of frames before and after a segment that its elements depend on.
    """

    num: int
    shape: tuple[int, ...]
    seed: int
    temperature: np.ndarray
    conditions: Arrays
    top_k: int
    top_p: float
    prefix: list[np.ndarray] | None
    stop: Any
    first_row: int = 0
    hop_samples: int = 1
    side_frames: int = 0

    @classmethod
    def checked(
        cls,
        order: str,
        num: Any,
        length: Any,
        seed: Any,
        condition: Callable[[int, int], Arrays] | None = None,
        *,
        temperature: Any = 1.0,
        top_k: Any = 0,
        top_p: Any = 1.0,
        prefix: Any = None,
        stop: Any = None,
        first_row: Any = 0,
        **more: int,
    ) -> "Request":
        """Check the arguments, which are like those of `Autoregressive.sample`; return the request.

        Args:
          order: "time" or "raster", the order in which the model generates its elements.
          num: number of rows.
          length: number of elements of a sequence, or (height, width, channels).
          seed: seed of the noise, an integer in [0, 2^64).
          condition: function that returns the inputs that are conditions, given the number of rows
            and the size of the first axis of a row; None for a model without conditions.
          temperature: one temperature, or [num].
          top_k: number of most probable tokens to draw among; 0: all.
          top_p: draw among the fewest tokens whose probabilities add up to this share, in (0, 1].
          prefix: elements that the rows begin with, or None.
          stop: the element that ends a sequence, or None.
          first_row: row of the seed for the first row.
          **more: `hop_samples` and `side_frames` of the request.

        Raises:
          ValueError: an argument is invalid.
        """
        num, shape = whole_number(num, "num"), checked_length(length, order)
        first_row = whole_number(first_row, "row", 0)
        if first_row + num - 1 > LAST_ROW:
            raise ValueError(f"`row` must be at most {LAST_ROW} for the last row, got {first_row}.")
        heat = np.broadcast_to(checked_temperatures(temperature, num), [num])
        conditions = {} if condition is None else condition(num, shape[0])
        if order != "time" and (prefix is not None or stop is not None):
            raise ValueError("`prefix` and `stop` need a model in time order, got raster.")
        rows = None if prefix is None else checked_prefix(prefix, num, shape[0])
        return cls(
            num,
            shape,
            seed_number(seed),
            np.asarray(heat, np.float32),
            conditions,
            checked_top_k(top_k),
            checked_top_p(top_p),
            rows,
            None if stop is None else checked_stop(stop),
            first_row,
            **more,
        )

    @property
    def words(self) -> list[str]:
        """Names, in backquotes, of this request's arguments that only prompt signatures take."""
        asked = {
            PREFIX: self.prefix is not None,
            STOP: self.stop is not None,
            TOP_K: self.top_k != 0,
            TOP_P: self.top_p != 1.0,
        }
        return [f"`{name}`" for name, is_asked in asked.items() if is_asked]

    def check_known(self, known: Mapping[str, TensorInfo]) -> None:
        """Raise ValueError if a prompt signature, with inputs `known`, lacks a requested option."""
        if STOP not in known and self.stop is not None:
            raise ValueError("`stop` needs a model of integer symbols, got one of real numbers.")
        if TOP_K not in known and (self.top_k != 0 or self.top_p != 1.0):
            raise ValueError("`top_k` and `top_p` need a distribution over tokens.")

    def inputs(
        self, known: Mapping[str, TensorInfo], rows: np.ndarray, first: int, count: int
    ) -> Arrays:
        """Return a signature's inputs for rows, with `count` elements starting at `first`.

        Args:
          known: inputs of the signature.
          rows: int32 [n], indices of the rows.
          first: position of the first element, for sequences.
          count: number of elements, for sequences.
        """
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
        """Return the frames of a range of elements, their neighbours, and the counts of both."""
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
        """Return the inputs of a prompt; {} for a signature that takes none."""
        inputs: Arrays = {}
        if TOP_K in known:
            inputs[TOP_K] = np.full([len(rows)], self.top_k, np.int64)
            inputs[TOP_P] = np.full([len(rows)], self.top_p, np.float32)
        if STOP in known and self.stop is not None:
            stop = as_elements(known[STOP], self.stop[np.newaxis], STOP)
            inputs[STOP] = np.repeat(stop, len(rows))
        if PREFIX in known and self.prefix is not None:
            parts = [self.prefix[row][first : first + count] for row in rows]
            if any(part.size for part in parts):
                inputs[PREFIX] = as_elements(known[PREFIX], _stacked(parts), PREFIX)
                inputs[NUM_PREFIX] = np.array([len(part) for part in parts], np.int32)
        return inputs


def seed_number(seed: Any) -> int:
    """Return a seed as a Python integer; raise ValueError unless it is an integer in [0, 2^64)."""
    try:
        return operator.index(checked_seed(seed))
    except TypeError:  # a key, which only a live model takes
        raise ValueError(f"`seed` must be an integer in [0, 2^64), got {seed!r}.") from None


def noise_inputs(known: Mapping[str, TensorInfo], seed: int, rows: Any, temperature: Any) -> Arrays:
    """Return the inputs that determine the noise of rows.

    Args:
      known: inputs of the signature.
      seed: seed of the noise, an integer in [0, 2^64).
      rows: rows of the seed.
      temperature: temperature of each row or scale, [rows], [rows, 1], [scales] or [1].
    """
    sides = [len(rows), *(side or 1 for side in known["temperature"].shape[1:])]
    return {
        SEED: np.full([len(rows)], seed, np.uint64),
        "row": np.array(rows, np.int32),
        "temperature": np.full(sides, temperature, np.float32),
    }


def _stacked(parts: list[np.ndarray]) -> np.ndarray:
    """Return rows of different lengths as one array, padded with copies of arbitrary elements."""
    width = max(map(len, parts))
    filler = next(part[-1:] for part in parts if part.size)
    given = [part if part.size else filler for part in parts]
    return np.stack([np.pad(part, [0, width - len(part)], "edge") for part in given])


def as_elements(info: TensorInfo, elements: Any, name: str = "elements") -> np.ndarray:
    """Return elements as an array of the input's dtype.

    Text, and floats for an integer input, are returned unchanged, for the signature's check.

    Raises:
      ValueError: an integer does not fit the type.
    """
    check_unmasked(elements, name)
    array = np.asarray(elements)
    if array.dtype.kind in "iu" and info.dtype.kind == "i" and array.size:
        limits, least, greatest = np.iinfo(info.dtype), array.min(), array.max()
        if least < limits.min or greatest > limits.max:
            raise ValueError(f"`{name}` must be {info.dtype}, got {least} to {greatest}.")
    is_real = array.dtype.kind not in "iu" and info.dtype.kind == "i"
    return array if is_real or array.dtype.kind in "USO" else array.astype(info.dtype)
