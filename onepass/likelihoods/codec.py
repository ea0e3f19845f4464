"""Codecs convert the elements of an array to the symbols of a distribution, and back.

Symbols are integers or real numbers without a unit; a codec defines what they represent, such as
the amplitude of audio, the grey level of a pixel or a temperature in degrees.
"""

import dataclasses
import math
from typing import Protocol, runtime_checkable

import numpy as np
import tensorflow as tf

from onepass.likelihoods import levels as level_grid
from onepass.likelihoods.limits import MAX_COMPANDED_LEVELS, MAX_LEVELS, check_levels


@runtime_checkable
class Codec(Protocol):
    """An element-wise mapping between elements [...] and symbols [...].

    For an element `x` in range, `decode(encode(x))` is off by at most half the distance between
    neighbouring levels; for a symbol `s`, `encode(decode(s))` is `s`.
    """

    @property
    def levels(self) -> int | None:
        """Number of integer symbols; None: symbols are real numbers."""

    @property
    def log_unit(self) -> float:
        """Log of the number of element units in one unit of a real symbol; 0 for integers.

        Subtract it from a log-density of symbols to get the log-density of elements, in nats.
        """

    def encode(self, elements: tf.Tensor) -> tf.Tensor:
        """Return the symbols of elements: int32 [...], or float32 [...] if `levels` is None."""

    def decode(self, symbols: tf.Tensor) -> tf.Tensor:
        """Return the elements that the symbols represent, [...]."""

    def scale(self, symbols: tf.Tensor) -> tf.Tensor:
        """Return symbols as the input of a network, float32 [...], about -1 to 1."""


@dataclasses.dataclass(frozen=True)
class _Grid:
    """Base class of codecs whose levels are equally spaced in a network's input."""

    levels: int
    log_unit, most_levels = 0.0, MAX_LEVELS

    def __post_init__(self) -> None:
        check_levels(self.levels, self.most_levels)

    def scale(self, symbols: tf.Tensor) -> tf.Tensor:
        """Return float32 [...] in [-1, 1], `2 l / (levels - 1) - 1`."""
        return level_grid.value_of(symbols, self.levels)


@dataclasses.dataclass(frozen=True)
class Linear(_Grid):
    """Real numbers in [-1, 1], as equally spaced levels: for 8-bit to 16-bit audio.

    Raises:
      ValueError: there are fewer than 2 levels or more than 2^22.
    """

    levels: int = 65536

    def encode(self, elements: tf.Tensor) -> tf.Tensor:
        """Return the nearest levels int32 [...]; elements outside [-1, 1] get the outer levels."""
        return level_grid.nearest(elements, self.levels)

    def decode(self, symbols: tf.Tensor) -> tf.Tensor:
        """Return float32 [...] in [-1, 1], `2 l / (levels - 1) - 1`."""
        return self.scale(symbols)


@dataclasses.dataclass(frozen=True)
class Integers(_Grid):
    """Integers [0, levels), used directly as symbols: for tokens, and grey images of 8 to 16 bits.

    Raises:
      ValueError: there are fewer than 2 levels or more than 2^22.
    """

    levels: int = 256

    def encode(self, elements: tf.Tensor) -> tf.Tensor:
        """See `Codec.encode`: the elements themselves; raise ValueError for other dtypes."""
        elements = tf.convert_to_tensor(elements)
        if not elements.dtype.is_integer:
            raise ValueError(f"`elements` must be integers, got {elements.dtype.name}.")
        return tf.cast(elements, tf.int32)

    def decode(self, symbols: tf.Tensor) -> tf.Tensor:
        """Return int32 [...], the symbols themselves."""
        return tf.cast(symbols, tf.int32)


@dataclasses.dataclass(frozen=True)
class MuLaw(_Grid):
    """Real numbers in [-1, 1], companded: `y = sign(x) log(1 + mu |x|) / log(1 + mu)`.

    mu = levels - 1. Levels are equally spaced in `y`, and therefore closer together near silence.
    Source: van den Oord et al. 2016, arXiv:1609.03499, section 2.2.

    Raises:
      ValueError: there are fewer than 2 levels, or more than 2^16.
    """

    levels: int = 256
    most_levels = MAX_COMPANDED_LEVELS

    def encode(self, elements: tf.Tensor) -> tf.Tensor:
        """Return mu-law levels int32 [...]; elements outside [-1, 1] are clipped."""
        mu = self.levels - 1.0
        x = tf.clip_by_value(tf.cast(elements, tf.float32), -1.0, 1.0)
        y = tf.sign(x) * tf.math.log1p(mu * tf.abs(x)) * (1.0 / math.log1p(mu))
        return level_grid.nearest(y, self.levels)

    def decode(self, symbols: tf.Tensor) -> tf.Tensor:
        """Return float32 [...] in [-1, 1]: `x = sign(y) ((1 + mu)^|y| - 1) / mu`.

        A table has them, since `expm1` of a vector and of a number differ in the last bit: the
        elements would depend on their place in an array.
        """
        mu = self.levels - 1.0
        y = np.linspace(-1.0, 1.0, self.levels)
        x = np.sign(y) * np.expm1(np.abs(y) * math.log1p(mu)) / mu
        return tf.gather(x.astype(np.float32), tf.cast(symbols, tf.int32))


@dataclasses.dataclass(frozen=True)
class Reals:
    """Real numbers, scaled to symbols `(x - centre) / unit` of about -1 to 1.

    Raises:
      ValueError: `unit` is not finite and above 0.
    """

    centre: float = 0.0
    unit: float = 1.0
    levels = None

    def __post_init__(self) -> None:
        if not 0.0 < self.unit < math.inf:
            raise ValueError(f"`unit` must be above 0 and finite, got {self.unit}.")

    @property
    def log_unit(self) -> float:
        """Log of `unit`."""
        return math.log(self.unit)

    def encode(self, elements: tf.Tensor) -> tf.Tensor:
        """Return float32 [...], `(x - centre) / unit`."""
        return (tf.cast(elements, tf.float32) - self.centre) / self.unit

    def decode(self, symbols: tf.Tensor) -> tf.Tensor:
        """Return float32 [...], `centre + unit s`."""
        return self.centre + self.unit * tf.cast(symbols, tf.float32)

    def scale(self, symbols: tf.Tensor) -> tf.Tensor:
        """Return float32 [...], the symbols themselves."""
        return tf.cast(symbols, tf.float32)


def default_codec(levels: int | None, order: str, of_tokens: bool = False) -> Codec:
    """Return a model's default codec: tokens and images are levels, sequences are in [-1, 1]."""
    if levels is None:
        return Reals()
    return Integers(levels) if of_tokens or order != "time" else Linear(levels)
