"""Values of a step that is being lowered: constants, and views of workspace buffers."""

import dataclasses
import itertools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

_NUMBERS = itertools.count()
FLOATS = (np.dtype(np.float32), np.dtype(bool))  # stored as float32; other types as doubles
KNOWN = tuple(
    np.dtype(name)
    for name in ("float32", "float64", "bool", "int8", "int16", "int32", "int64", "uint8", "uint16")
)


class Unlowerable(Exception):  # noqa: N818  (not an error of the network)
    """Raised if the machine does not support an operation; the message names it and its layer."""


class Buffer:
    """Memory for entries of one type; `wide` ones are doubles, `kept` ones stay between steps."""

    def __init__(self, size: int, wide: bool, kept: bool = False) -> None:
        self.size, self.wide, self.kept = size, wide, kept
        self.number = next(_NUMBERS)

    @property
    def words(self) -> int:
        """Number of words of four bytes."""
        return self.size * (2 if self.wide else 1)


@dataclasses.dataclass(frozen=True)
class Value:
    """A view of a buffer."""

    buffer: Buffer
    start: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # distance between adjacent entries along each axis, in numbers
    dtype: np.dtype  # type of the TensorFlow tensor that the value represents
    filled: int | None = None  # axis of which only rows up to the current position are used

    @property
    def size(self) -> int:
        """Number of entries."""
        return math.prod(self.shape)

    @property
    def wide(self) -> bool:
        """True if the entries are doubles."""
        return self.buffer.wide

    @property
    def contiguous(self) -> bool:
        """True if the entries are stored in order without gaps."""
        return axes_of(self.shape, self.strides) in ([], [(self.size, 1)])


class Constant:
    """A value that is known before the first step, an array in the TensorFlow tensor's dtype."""

    def __init__(self, array: Any) -> None:
        self.array = np.asarray(array)
        self.shape, self.size, self.dtype = self.array.shape, self.array.size, self.array.dtype


Any_Value = Value | Constant


def is_wide(dtype: np.dtype) -> bool:
    """Return whether numbers of a dtype are stored as doubles."""
    return dtype not in FLOATS


def contiguous(
    shape: Sequence[int], dtype: Any, kept: bool = False, pitch: int | None = None
) -> Value:
    """Return a new contiguous value in a new buffer, with `pitch` numbers between rows."""
    shape = tuple(int(size) for size in shape)
    pitch = math.prod(shape[-1:]) if pitch is None else pitch
    steps = itertools.accumulate((pitch, *shape[-2:0:-1]), operator.mul, initial=1)
    strides = tuple(step for step, _ in zip(steps, shape, strict=False))[::-1]
    buffer = Buffer(pitch * max(1, math.prod(shape[:-1])), is_wide(np.dtype(dtype)), kept)
    return Value(buffer, 0, shape, strides, np.dtype(dtype))


def axes_of(
    shape: Sequence[int], *strides: Sequence[int], apart: int | None = None
) -> list[tuple[int, ...]]:
    """Return (size, *strides) of axes, merged and without size 1 where possible but for `apart`."""
    merged: list[tuple[int, ...]] = []
    before = None  # the axis that was added last
    for axis, (size, *steps) in enumerate(zip(shape, *strides, strict=True)):
        if size == 1 and axis != apart:
            continue
        follows = merged and all(
            outer == inner * size for outer, inner in zip(merged[-1][1:], steps, strict=True)
        )
        if follows and (apart is None or apart not in (axis, before)):
            merged[-1] = (merged[-1][0] * size, *steps)
        else:
            merged.append((size, *steps))
        before = axis
    return merged


def broadcast(value: Value, shape: Sequence[int]) -> Value:
    """Return the view of a value broadcast to a shape by NumPy's rules."""
    missing = len(shape) - len(value.shape)
    strides = [0] * missing + [
        0 if size == 1 and want != 1 else stride
        for size, want, stride in zip(value.shape, shape[missing:], value.strides, strict=True)
    ]
    filled = None if value.filled is None else value.filled + missing
    if filled is not None and strides[filled] == 0:
        filled = None
    return dataclasses.replace(value, shape=tuple(shape), strides=tuple(strides), filled=filled)


def indices(value: Value) -> np.ndarray:
    """Return the index of every entry in its buffer, as a view of a range."""
    base = np.arange(max(value.buffer.size, 1))
    return np.lib.stride_tricks.as_strided(
        base[value.start :], value.shape, [8 * stride for stride in value.strides], writeable=False
    )


def rearrange_value(
    value: Value, function: Callable[[np.ndarray], np.ndarray]
) -> Value | np.ndarray:
    """Rearrange a value, as a view or, if strides cannot describe the result, as indices."""
    places = indices(value)
    made = np.asarray(function(places))
    if made.size == 0:
        raise Unlowerable("a tensor without entries")
    first = int(made.flat[0])
    if np.may_share_memory(made, places):
        steps: tuple[int, ...] | None = tuple(stride // 8 for stride in made.strides)
    else:
        steps = _regular(made)
    if steps is None:
        return made
    filled = _filled_axis(value, made.shape, steps)
    return Value(value.buffer, first, made.shape, steps, value.dtype, filled)


def _filled_axis(value: Value, shape: Sequence[int], steps: Sequence[int]) -> int | None:
    if value.filled is None:
        return None
    wanted = value.shape[value.filled], value.strides[value.filled]
    found = [axis for axis, pair in enumerate(zip(shape, steps, strict=True)) if pair == wanted]
    return found[0] if len(found) == 1 else None


def _regular(places: np.ndarray) -> tuple[int, ...] | None:
    steps = []
    for axis, size in enumerate(places.shape):
        if size == 1:
            steps.append(0)
            continue
        gaps = np.diff(places, axis=axis)
        if (gaps != gaps.flat[0]).any():
            return None
        steps.append(int(gaps.flat[0]))
    return tuple(steps)
