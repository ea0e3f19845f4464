"""Codecs, which turn elements into symbols and back, and the levels of quantised elements.

Level `l` of `num_levels` represents `2 l / (num_levels - 1) - 1`; its bin has half width
`1 / (num_levels - 1)` around that value, and the two outermost bins extend to infinity.

Symbols are integers or real numbers without a unit; a codec defines what they represent, such as
the amplitude of audio, the grey level of a pixel or a temperature in degrees.
"""

import dataclasses
import math
from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np
import tensorflow as tf

from onepass.foundation.rules import MAX_COMPANDED_LEVELS, MAX_LEVELS, check_levels, must_be

COLDEST = 1e-6  # smallest temperature above 0
Real: TypeAlias = float | tf.Tensor  # a number, or a tensor of numbers


def centre_levels(levels: tf.Tensor, num_levels: int) -> tf.Tensor:
    """Return `2 l - (num_levels - 1)`, the exact value in half bins from zero, float32."""
    return 2.0 * tf.cast(levels, tf.float32) - (num_levels - 1.0)


def value_of(levels: tf.Tensor, num_levels: int) -> tf.Tensor:
    """Return the value in [-1, 1] of each level, `2 l / (num_levels - 1) - 1`, float32."""
    # A product, because compilers turn a division into a product, which changes the last bit.
    return centre_levels(levels, num_levels) * (1.0 / (num_levels - 1))


def real(parameters: tf.Tensor) -> tf.Tensor:
    """Return the parameters as float32, or unchanged if they are float64."""
    return parameters if parameters.dtype == tf.float64 else tf.cast(parameters, tf.float32)


def edge_distance(edges: tf.Tensor, means: tf.Tensor, num_levels: int) -> tf.Tensor:
    """Return edges minus means in half bins: `edge - mean * (num_levels - 1)`.

    A direct product would lose precision that narrow scales need: for a mean near 1 and 2^16 levels
    its error is 1/500. Here the coarse part of the mean, a multiple of a power of two, is exact,
    and the rest is small. The edges are whole half bins from zero, `centre_levels` +- 1, exact in
    float32; means are in units in which the grid spans [-1, 1], and gradients flow only to them.
    """
    half_bins = num_levels - 1.0
    unit = 2.0 ** -max(0, 22 - (num_levels - 1).bit_length())
    coarse = tf.stop_gradient(tf.round(means / unit) * unit)
    return (edges - coarse * half_bins) - (means - coarse) * half_bins


def sample_level(
    mean: tf.Tensor, log_scale: tf.Tensor, noise: tf.Tensor, num_levels: int
) -> tf.Tensor:
    """Return the level nearest to `mean + exp(log_scale) * noise`, int32.

    It is computed in float64: otherwise the last bit of a float32, which depends on the compiler,
    could change the level.
    """
    mean, log_scale, noise = (tf.cast(x, tf.float64) for x in (mean, log_scale, noise))
    return nearest(mean + tf.exp(log_scale) * noise, num_levels)


def sample_categorical(logits: tf.Tensor, uniform: tf.Tensor, temperature: Real = 1.0) -> tf.Tensor:
    """Return the smallest k with `uniform c[-1] < c[k]`, c = cumsum(softmax(logits / T)).

    c[-1] is 1 only up to rounding; the factor keeps the error from making the last choice likelier.
    The temperature T is a scalar or [...]; 0 chooses the largest logit.
    """
    shifted = logits - tf.reduce_max(logits, axis=-1, keepdims=True)
    divisor = tf.cast(tf.maximum(temperature, COLDEST), logits.dtype)[..., tf.newaxis]
    cumulative = tf.cumsum(tf.nn.softmax(shifted / divisor), axis=-1)
    threshold = tf.cast(uniform[..., tf.newaxis], logits.dtype) * cumulative[..., -1:]
    passed = threshold >= cumulative[..., :-1]
    drawn = tf.math.count_nonzero(passed, axis=-1, dtype=tf.int32)
    largest = tf.argmax(logits, axis=-1, output_type=tf.int32)
    return tf.where(tf.convert_to_tensor(temperature) > 0, drawn, largest)


def sample_symbol(
    mean: tf.Tensor, log_scale: tf.Tensor, noise: tf.Tensor, num_levels: int | None
) -> tf.Tensor:
    """Return `sample_level`, or the number before rounding, float32, if `num_levels` is None."""
    if num_levels is not None:
        return sample_level(mean, log_scale, noise, num_levels)
    return tf.cast(mean + tf.exp(log_scale) * tf.cast(noise, mean.dtype), tf.float32)


def symbol_of(values: tf.Tensor, num_levels: int | None) -> tf.Tensor:
    """Return the levels nearest to values, int32, or the values if `num_levels` is None."""
    return values if num_levels is None else nearest(values, num_levels)


def nearest(values: tf.Tensor, num_levels: int) -> tf.Tensor:
    """Return the level whose bin contains each value, int32; outside [-1, 1], an outer level.

    On the border between two bins, the upper one is chosen. The number of levels below the middle
    is added last, to integers: float32 numbers near 2^15 cannot distinguish quiet 16-bit samples.
    """
    middle, rest = divmod(num_levels, 2)
    position = real(tf.convert_to_tensor(values)) * (0.5 * (num_levels - 1)) + 0.5 * rest
    above = tf.clip_by_value(tf.floor(position), -float(middle), float(num_levels - 1 - middle))
    return tf.cast(above, tf.int32) + middle


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
        return value_of(symbols, self.levels)


@dataclasses.dataclass(frozen=True)
class Linear(_Grid):
    """Real numbers in [-1, 1], as 2 to 2^22 equally spaced levels: for 8-bit to 16-bit audio."""

    levels: int = 65536

    def encode(self, elements: tf.Tensor) -> tf.Tensor:
        """Return the nearest levels int32 [...]; elements outside [-1, 1] get the outer levels."""
        return nearest(elements, self.levels)

    def decode(self, symbols: tf.Tensor) -> tf.Tensor:
        """Return float32 [...] in [-1, 1], `2 l / (levels - 1) - 1`."""
        return self.scale(symbols)


@dataclasses.dataclass(frozen=True)
class Integers(_Grid):
    """Integers [0, levels), 2 to 2^22, as symbols: for tokens, and grey images of 8 to 16 bits."""

    levels: int = 256

    def encode(self, elements: tf.Tensor) -> tf.Tensor:
        """See `Codec.encode`: the elements themselves; raise ValueError for other dtypes."""
        elements = tf.convert_to_tensor(elements)
        if not elements.dtype.is_integer:
            raise ValueError(must_be("elements", "integers", elements.dtype.name))
        return tf.cast(elements, tf.int32)

    def decode(self, symbols: tf.Tensor) -> tf.Tensor:
        """Return int32 [...], the symbols themselves."""
        return tf.cast(symbols, tf.int32)


@dataclasses.dataclass(frozen=True)
class MuLaw(_Grid):
    """Real numbers in [-1, 1], companded: `y = sign(x) log(1 + mu |x|) / log(1 + mu)`.

    mu = levels - 1. The 2 to 2^16 levels are equally spaced in `y`, and therefore closer together
    near silence. Source: van den Oord et al. 2016, arXiv:1609.03499, section 2.2.
    """

    levels: int = 256
    most_levels = MAX_COMPANDED_LEVELS

    def encode(self, elements: tf.Tensor) -> tf.Tensor:
        """Return mu-law levels int32 [...]; elements outside [-1, 1] are clipped."""
        mu = self.levels - 1.0
        x = tf.clip_by_value(tf.cast(elements, tf.float32), -1.0, 1.0)
        y = tf.sign(x) * tf.math.log1p(mu * tf.abs(x)) * (1.0 / math.log1p(mu))
        return nearest(y, self.levels)

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
    """Real numbers, scaled to symbols `(x - centre) / unit` of about -1 to 1; `unit` above 0."""

    centre: float = 0.0
    unit: float = 1.0
    levels = None

    def __post_init__(self) -> None:
        if not 0.0 < self.unit < math.inf:
            raise ValueError(must_be("unit", "above 0 and finite", self.unit))

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
