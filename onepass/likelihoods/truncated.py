"""Distributions over tokens that are adjusted and truncated, as `Draw` asks, before a draw."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import tensorflow as tf

from onepass.likelihoods.codec import COLDEST, sample_categorical
from onepass.likelihoods.distribution import Distribution, table_of

# The bits of a float32 without the sign: read as integers, they order the numbers in [0, 1].
BITS = 31
COUNTING = ("min_length", "repetition_penalty", "presence_penalty")  # settings that read `counts`
FACTS = ("stop", "counts")  # what a setting reads
LOWEST = -1e30  # a logit of probability 0, finite


class Choice(NamedTuple):
    """Settings of a draw of tokens; defaults, except the temperature's, cost and change nothing."""

    temperature: tf.Tensor  # at least 0, a scalar or [...]; divides the logits before truncation
    top_k: Any = 0  # number of the most probable symbols that may be drawn; 0: all
    # The most probable symbols that together have this probability may be drawn; 1: all. With
    # `top_k`, it is a share of the total probability of the `top_k` symbols.
    top_p: Any = 1.0
    min_p: Any = 0.0  # smallest share of the largest probability that may be drawn; 0: all
    logit_bias: Any = 0.0  # added to the logits, [levels]
    repetition_penalty: Any = 1.0  # divides logits > 0 of symbols so far, multiplies others
    presence_penalty: Any = 0.0  # subtracted from the logits of symbols that have occurred
    allowed: Any = True  # bool [levels], which symbols may be drawn
    min_length: Any = 0  # number of symbols before which none of `stop` is drawn
    stop: Any = False  # bool [levels], the symbols that end a row
    counts: tf.Tensor | None = None  # int32 [..., levels], of symbols before the drawn one

    def asks(self, *names: str) -> bool:
        """Return whether one of the settings is not its default, which is no tensor."""
        return any(tf.is_tensor(getattr(self, name)) for name in names)

    @property
    def remembers(self) -> bool:
        """True if the draw depends on how often symbols occur before it."""
        return any(map(self.asks, COUNTING))

    @property
    def differs(self) -> tf.Tensor:
        """True if a setting other than the temperature has another value than its default."""
        defaults = {n: x for n, x in self._field_defaults.items() if n not in FACTS}
        asked = {name: value for name, value in defaults.items() if self.asks(name)}
        found = [tf.reduce_any(getattr(self, name) != value) for name, value in asked.items()]
        return tf.reduce_any(tf.stack(found)) if found else tf.constant(False)


@dataclasses.dataclass(frozen=True)
class Truncated:
    """A distribution over levels from which only the most probable ones are drawn.

    Symbols that tie with the least probable one kept are kept, too. Sources: Fan et al. 2018,
    arXiv:1805.04833, section 5.1 (top-k); Holtzman et al. 2020, arXiv:1904.09751, section 3.1
    (top-p); Nguyen et al. 2025, arXiv:2407.01082, section 3 (min-p); Keskar et al.
    2019, arXiv:1909.05858, section 4.1 (repetition penalty).
    """

    distribution: Distribution

    @property
    def levels(self) -> int | None:
        """See `Distribution.levels`."""
        return self.distribution.levels

    def sample(self, parameters: tf.Tensor, noise: tf.Tensor, temperature: Choice) -> tf.Tensor:
        """See `Distribution.sample`."""
        table = cast(Callable[..., tf.Tensor], table_of(self.distribution))
        logits = getattr(self.distribution, "logits", table)
        kept = truncate_logits(logits(parameters), temperature)
        return sample_categorical(kept, noise[..., 0], temperature.temperature)


def drawing(distribution: Distribution, temperature: Any) -> Any:
    """Return what draws the symbols: `Truncated` if the temperature is a `Choice`."""
    return Truncated(distribution) if isinstance(temperature, Choice) else distribution


def first_counts(temperature: Any, shape: Sequence[int], levels: int | None) -> Any:
    """Return zero counts int32 [*shape, levels]; None if draws do not depend on earlier symbols."""
    if not (isinstance(temperature, Choice) and temperature.remembers):
        return None
    return tf.zeros([*shape, levels], tf.int32)


def counts_after(counts: Any, symbols: tf.Tensor) -> Any:
    """Return the counts after further symbols [batch, n, ...]; None stays None."""
    if counts is None:
        return None
    return counts + tf.reduce_sum(tf.one_hot(symbols, counts.shape[-1], dtype=tf.int32), 1)


def with_counts(temperature: Any, counts: Any) -> Any:
    """Return a `Choice` for symbols [batch, 1, ...] after `counts`; unchanged if they are None."""
    if counts is None:
        return temperature
    return temperature._replace(counts=counts[:, tf.newaxis])


def recalling(temperature: Any, symbols: tf.Tensor, levels: int | None) -> Any:
    """Return a `Choice` for drawing each of symbols [batch, n, ...] given those before it."""
    if first_counts(temperature, (), levels) is None:
        return temperature
    ones = tf.one_hot(symbols, levels, dtype=tf.int32)
    counts = tf.cumsum(ones, 1, exclusive=True)
    return temperature._replace(
        counts=counts if temperature.counts is None else counts + temperature.counts
    )


def adjust_logits(logits: tf.Tensor, choice: Choice) -> tf.Tensor:
    """Return the logits [..., levels] as they are before the temperature and truncation."""
    if choice.asks("logit_bias"):
        logits += tf.cast(choice.logit_bias, logits.dtype)
    if choice.asks("repetition_penalty"):
        penalty = tf.cast(choice.repetition_penalty, logits.dtype)[..., tf.newaxis]
        weakened = tf.where(logits > 0.0, logits / penalty, logits * penalty)
        logits = tf.where(tf.greater(choice.counts, 0), weakened, logits)
    if choice.asks("presence_penalty"):
        penalty = tf.cast(choice.presence_penalty, logits.dtype)[..., tf.newaxis]
        logits -= tf.where(tf.greater(choice.counts, 0), penalty, 0.0)
    if choice.asks("min_length") and choice.asks("stop"):
        position = tf.reduce_sum(choice.counts, axis=-1, keepdims=True)
        is_early = (position < choice.min_length) & choice.stop
        logits = tf.where(is_early, tf.minimum(logits, LOWEST), logits)
    if choice.asks("allowed"):
        # If the model itself forbids all allowed symbols, they are equally probable.
        logits = tf.where(choice.allowed, tf.maximum(logits, LOWEST), -np.inf)
    return logits


def truncate_logits(logits: tf.Tensor, choice: Choice) -> tf.Tensor:
    """Return the logits, adjusted, with -inf for symbols that may not be drawn."""
    logits = adjust_logits(logits, choice)
    if not choice.asks("top_k", "top_p", "min_p"):
        return logits
    # A small temperature would make large logits infinite, so the largest is shifted to 0.
    shifted = logits - tf.reduce_max(logits, axis=-1, keepdims=True)
    divisor = tf.cast(tf.maximum(choice.temperature, COLDEST), logits.dtype)[..., tf.newaxis]
    odds = tf.cast(tf.nn.softmax(shifted / divisor), tf.float32)
    least = tf.zeros_like(odds[..., :1])
    if choice.asks("top_k"):
        levels = odds.shape[-1]
        most = tf.where(choice.top_k > 0, tf.minimum(choice.top_k, levels), levels)
        least = _threshold(odds, lambda kept: tf.reduce_sum(tf.cast(kept, tf.int32), -1) >= most)
    if choice.asks("top_p"):
        least = tf.maximum(least, _least_of_share(tf.where(odds >= least, odds, 0.0), choice.top_p))
    if choice.asks("min_p"):
        largest = tf.reduce_max(odds, axis=-1, keepdims=True)
        least = tf.maximum(least, choice.min_p[..., tf.newaxis] * largest)
    return tf.where(odds >= least, logits, tf.constant(float("-inf"), logits.dtype))


def _least_of_share(odds: tf.Tensor, top_p: tf.Tensor) -> tf.Tensor:
    wanted = top_p * tf.reduce_sum(odds, -1)
    enough = _threshold(odds, lambda kept: tf.reduce_sum(tf.where(kept, odds, 0.0), -1) >= wanted)
    # Because of rounding, the sum of all odds is reached without the smallest ones.
    return tf.where(top_p[..., tf.newaxis] < 1.0, enough, 0.0)


def mask_of(symbols: tf.Tensor, count: int | tf.Tensor, levels: int) -> tf.Tensor:
    """Return which symbols are among the first `count` of `symbols` [n], bool [levels]."""
    ones = tf.ones(tf.shape(symbols), tf.float32)
    return sums_of(symbols, ones, count, levels) > 0.0


def sums_of(
    symbols: tf.Tensor, numbers: tf.Tensor, count: int | tf.Tensor, levels: int
) -> tf.Tensor:
    """Return the sum of `numbers` of the first `count` of `symbols` [n], float32 [levels]."""
    is_used = tf.range(tf.shape(symbols)[0]) < count
    places = tf.where(is_used, symbols, 0)[:, tf.newaxis]
    return tf.scatter_nd(places, tf.where(is_used, numbers, 0.0), [levels])


def _threshold(odds: tf.Tensor, suffices: Callable[[tf.Tensor], tf.Tensor]) -> tf.Tensor:
    """Return the largest t for which the odds of at least t suffice, found bit by bit, or 0."""
    # Non-negative floats have the same order as their bits, read as integers.
    bits = tf.bitcast(odds, tf.int32)

    def body(place: tf.Tensor, found: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        higher = found | tf.bitwise.left_shift(1, place)
        enough = suffices(bits >= higher)[..., tf.newaxis]
        return place - 1, tf.where(enough, higher, found)

    first = tf.zeros_like(bits[..., :1])
    _, found = tf.while_loop(
        lambda place, _: place >= 0, body, (BITS - 1, first), maximum_iterations=BITS
    )
    return tf.bitcast(found, tf.float32)
