"""`Reading`: how symbols become the input of a network, as integers or as scaled numbers."""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from onepass.likelihoods import levels as level_grid
from onepass.likelihoods.codec import Codec
from onepass.networks.trainable import attribute_of, layers_within

SCALE = (-1.0, 1.0)  # the default
MOST_COMPARED = 4096  # number of levels on which a codec's scale is compared with an even scale
ROUNDING = 2e-7  # rounding error of numbers between -1 and 1


@dataclasses.dataclass(frozen=True)
class Reading:
    """A mapping from symbols to the numbers that a network reads."""

    codec: Codec
    dtype: tf.DType  # type of the network's input; integer inputs are the symbols themselves
    input_scale: tuple[float, float] = SCALE  # floats for lowest and highest level, or for -1 and 1
    start: float | None = None  # input before the first symbol; None: images, not shifted

    def __call__(self, symbols: tf.Tensor) -> tf.Tensor:
        """Convert symbols [...] to the numbers that the network reads."""
        if self.dtype.is_integer:
            return tf.cast(symbols, self.dtype)
        if self.input_scale == SCALE:
            return tf.cast(self.codec.scale(symbols), self.dtype)
        if not self._is_even:
            return self.of_scaled(self.codec.scale(symbols))
        low, high = self.input_scale
        # A product, as in `levels.value_of`; from 0 to levels - 1 it gives the levels exactly.
        step = (high - low) / ((self.codec.levels or 2) - 1.0)
        dtype = tf.float64 if self.dtype == tf.float64 else tf.float32
        return tf.cast(low + tf.cast(symbols, dtype) * step, self.dtype)

    def of_scaled(self, values: tf.Tensor) -> tf.Tensor:
        """Convert values that the codec scaled, about -1 to 1, to what the network reads."""
        if self.input_scale == SCALE:
            return tf.cast(values, self.dtype)
        low, high = self.input_scale
        return tf.cast(low + 0.5 * (high - low) * (values + 1.0), self.dtype)

    @functools.cached_property
    def _is_even(self) -> bool:
        """True if the codec's levels are evenly spaced on its scale, from -1 to 1."""
        levels = self.codec.levels
        if levels is None:
            return False
        with tf.init_scope():
            some = tf.constant(np.linspace(0, levels - 1, MOST_COMPARED).round().astype(np.int32))
            distance = tf.abs(self.codec.scale(some) - level_grid.value_of(some, levels))
            return bool(tf.reduce_max(distance) < max(0.01 / levels, ROUNDING))

    @property
    def starts_outside(self) -> bool:
        """True if the network's first input is a symbol outside the codec's levels."""
        is_symbol = self.dtype.is_integer and self.start is not None
        return is_symbol and (self.start or 0) >= (self.codec.levels or 0)

    @property
    def usual_start(self) -> float:
        """The network's default input before the first symbol."""
        if self.dtype.is_integer:
            return (self.codec.levels or 0) // 2
        return 0.5 * (self.input_scale[0] + self.input_scale[1])

    @property
    def feeds(self) -> str:
        """A sentence about the network's inputs, without its final period."""
        low, high = self.input_scale
        if self.codec.levels is None:
            fed = f"real elements as {type(self.codec).__name__} scales them"
            fed += "" if self.input_scale == SCALE else f", -1 and 1 as {low:g} and {high:g}"
        else:
            ends = self(tf.constant([0, self.codec.levels - 1])).numpy()
            kind = "symbols" if self.dtype.is_integer else "elements as numbers"
            fed = f"{kind} {ends[0]:g} to {ends[1]:g}"
        if self.start is None:
            return f"The network reads {fed}, unshifted"
        return f"The network reads {fed}, shifted by one; before the first it reads {self.start:g}"


def reading_of(
    codec: Codec, dtype: tf.DType, order: str, start: Any = None, input_scale: Any = None
) -> Reading:
    """Check the settings of a `Reading`, None for a default, and return it."""
    scale = _checked_scale(input_scale, dtype)
    if order != "time":
        if start is not None:
            raise ValueError(
                f"`start` must be None in raster order, where networks are not shifted, got"
                f" {start!r}."
            )
        return Reading(codec, dtype, scale)
    if start is None:
        return Reading(codec, dtype, scale, Reading(codec, dtype, scale).usual_start)
    if not _is_finite(start):
        raise ValueError(f"`start` must be a finite number, got {start!r}.")
    if not dtype.is_integer:
        return Reading(codec, dtype, scale, float(start))
    if start != int(start) or not 0 <= start <= dtype.max:
        raise ValueError(
            f"`start` must be an integer, 0 or more, for a network that reads integers, got"
            f" {start!r}."
        )
    return Reading(codec, dtype, scale, int(start))


def settings_of(network: Any) -> dict[str, Any]:
    """Return a network's settings `start` and `input_scale`; {} without a `Reading`."""
    reading: Reading | None = getattr(network, "reading", None)
    if reading is None:
        return {}
    scale = None if reading.dtype.is_integer else list(reading.input_scale)
    return {"start": reading.start, "input_scale": scale}


def unusual_settings(network: Any) -> dict[str, Any]:
    """Return the settings `start` and `input_scale` that differ from their defaults."""
    reading: Reading | None = getattr(network, "reading", None)
    if reading is None:
        return {}
    found: dict[str, Any] = {}
    if reading.start not in (None, reading.usual_start):
        found["start"] = float(reading.start)
    if reading.input_scale != SCALE:
        found["input_scale"] = list(reading.input_scale)
    return found


def describe_rescaling(network: Any, reading: Reading) -> str:
    """Return a clause on the range of a Keras layer `Rescaling`, to warn users; "" without one."""
    if reading.dtype.is_integer:
        return ""
    for root in layers_within(network):
        flatten = attribute_of(root, "_flatten_layers")
        for layer in flatten() if flatten else [root]:
            scale, offset = attribute_of(layer, "scale"), attribute_of(layer, "offset")
            if isinstance(scale, int | float) and isinstance(offset, int | float):
                low, high = sorted(scale * end + offset for end in reading.input_scale)
                return f"; its layer `{layer.name}` rescales elements to {low:.4g} to {high:.4g}"
    return ""


def check_start(reading: Reading, entries: int) -> None:
    """Raise ValueError if the network's embedding has no entry for the symbol `reading.start`."""
    most = max(entries, reading.codec.levels or 0)
    if reading.start is not None and reading.start >= most:
        raise ValueError(
            f"`start` must be below {most}, the symbols that the network can tell apart, got"
            f" {reading.start}."
        )


def _checked_scale(given: Any, dtype: tf.DType) -> tuple[float, float]:
    if given is None:
        return SCALE
    if dtype.is_integer:
        raise ValueError(
            f"`input_scale` must be None for a network that reads integers, got {given!r}."
        )
    is_pair = isinstance(given, Sequence | np.ndarray) and len(given) == 2
    if is_pair and all(map(_is_finite, given)) and given[0] < given[1]:
        return float(given[0]), float(given[1])
    raise ValueError(
        f"`input_scale` must be two finite numbers (low, high), low below high, got {given!r}."
    )


def _is_finite(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        return False
    try:
        return math.isfinite(value) and abs(float(value)) < tf.float32.max
    except OverflowError:
        return False
