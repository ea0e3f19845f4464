"""Counter-based random numbers: noise that depends only on seed, row and position; initial weights.

Every random word (32 bits) is the Threefry-2x32 cipher (20 rounds) of its row, position and lane,
so it is the same in any batch, chunk or order, compiled or not. `tf.random.stateless_*` gives the
same bits everywhere but not the same floats; here the conversion to floats is fixed as well.

Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
"""

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from onepass.foundation.rules import check_seed, integer, must_be

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
KEY_PARITY = 0x1BD11BDA
# The second counter word of `fold_in`; no lane of `bits` may use it, so keys and noise differ.
FOLD_LANE = 2**32 - 1


Int: TypeAlias = int | tf.Tensor  # a number, or a tensor of integers


def threefry2x32(key: tf.Tensor, counter: tf.Tensor) -> tf.Tensor:
    """Return `counter` encrypted with `key`, uint32 [..., 2].

    Source: Salmon et al. 2011, section 3.3; 20 rounds, a key injection after every fourth.

    Args:
      key: uint32 [..., 2].
      counter: uint32 [..., 2], broadcast against the key.
    """
    if tf.executing_eagerly():
        return tf.constant(_cipher_at_once(key.numpy(), counter.numpy()))
    words = _cipher(key, counter)
    words.set_shape(tf.broadcast_static_shape(key.shape, counter.shape))
    return words


def as_key(seed: Int) -> tf.Tensor:
    """Return a seed as a cipher key, uint32 [..., 2]: the high word, then the low word.

    Args:
      seed: an integer in [0, 2^64), or an int32 or uint32 tensor [..., 2], used bit for bit.
    """
    if not hasattr(seed, "dtype") or integer(seed) is not None:
        number = check_seed(seed)
        return tf.constant([number >> 32, number & 0xFFFFFFFF], tf.uint32)
    seed = tf.convert_to_tensor(seed)
    if seed.dtype not in (tf.int32, tf.uint32) or seed.shape[-1:] != [2]:
        rule = "an integer or an int32 or uint32 tensor [2]"
        raise ValueError(must_be("seed", rule, f"{seed.dtype.name} {seed.shape}"))
    return tf.bitcast(seed, tf.uint32)


def fold_in(seed: Int, number: Int) -> tf.Tensor:
    """Derive a seed uint32 [2] from `seed` and a number, unrelated to those of other numbers.

    Args:
      seed: the seed, an integer in [0, 2^64) or a key uint32 [2].
      number: an integer in [0, 2^32), or an int32 tensor [...], for which the result is [..., 2].
    """
    word = _as_word(number, "number")
    return threefry2x32(as_key(seed), _combine_counters(word, FOLD_LANE))


def bits(seed: Int, rows: tf.Tensor, start: Int, length: Int, lane: int = 0) -> tf.Tensor:
    """Return two independent words for every position of every row, uint32 [rows, length, 2].

    Args:
      seed: the seed, an integer in [0, 2^64), a key uint32 [2] for all rows, or keys [rows, 2].
      rows: row numbers int32 [rows], in any order; each has its own random stream.
      start: position of the first word, an integer, an int32 scalar or int32 [rows].
      length: number of positions, an integer or an int32 scalar.
      lane: integer in [0, 2^32 - 1); each lane provides two more words per position.
    """
    if not 0 <= lane < FOLD_LANE:
        raise ValueError(must_be("lane", "in [0, 2^32 - 1)", lane))
    if isinstance(length, int) and length < 0:
        raise ValueError(must_be("length", "at least 0", length))
    if tf.executing_eagerly():
        return tf.constant(_bits_at_once(seed, rows, start, int(length), lane))
    key = fold_in(seed, tf.convert_to_tensor(rows))[:, tf.newaxis, :]
    steps = tf.bitcast(tf.range(length, dtype=tf.int32), tf.uint32)
    position = _as_word(start, "start")[..., tf.newaxis] + steps
    return threefry2x32(key, _combine_counters(position, lane))


def words(seed: Int, rows: tf.Tensor, start: Int, length: int, count: int) -> tf.Tensor:
    """Return `count` words for every position, starting at lane 0, uint32 [rows, length, count].

    A larger `count` appends words; the other arguments are those of `bits`.
    """
    lanes = [bits(seed, rows, start, length, lane) for lane in range((count + 1) // 2)]
    return tf.concat(lanes, axis=-1)[..., :count]


def uniform_from_bits(words: tf.Tensor) -> tf.Tensor:
    """Return exactly `((word >> 9) + 1/2) 2^-23`, float32 [...] in the open interval (0, 1)."""
    # 23 bits: with 24, the added half would be lost above 1/2, and the last value rounded to 1.
    top = tf.bitcast(tf.bitwise.right_shift(words, tf.constant(9, tf.uint32)), tf.int32)
    return (tf.cast(top, tf.float32) + 0.5) * 2.0**-23


def logistic_from_bits(words: tf.Tensor) -> tf.Tensor:
    """Return standard logistics `log(u / (1 - u)) = 2 artanh(2 u - 1)`, float32 [...].

    All 32 bits of the word are used, in float64, and the result is rounded once.
    """
    return tf.cast(2.0 * tf.atanh(2.0 * uniform64_from_bits(words) - 1.0), tf.float32)


def normal_from_bits(words: tf.Tensor) -> tf.Tensor:
    """Return independent standard normals float32 [..., 2] from words [..., 2].

    Box-Muller: `sqrt(-2 log u) (cos(2 pi v), sin(2 pi v))`, in float64, rounded once.
    """
    u, v = tf.unstack(uniform64_from_bits(words), axis=-1)
    radius = tf.sqrt(-2.0 * tf.math.log(u))
    half_turn = v - 0.5
    # Both angles are reduced to within a quarter turn of zero while they are still exact.
    cosine = tf.sin(2.0 * math.pi * (tf.abs(half_turn) - 0.25))
    folded = tf.minimum(tf.abs(half_turn), 0.5 - tf.abs(half_turn))
    sine = -tf.sign(half_turn) * tf.sin(2.0 * math.pi * folded)
    return tf.cast(radius[..., tf.newaxis] * tf.stack([cosine, sine], axis=-1), tf.float32)


def uniform(seed: Int, rows: tf.Tensor, start: Int, length: int, lane: int = 0) -> tf.Tensor:
    """Return `bits` converted to uniforms in (0, 1), float32 [rows, length, 2]."""
    return uniform_from_bits(bits(seed, rows, start, length, lane))


def logistic(seed: Int, rows: tf.Tensor, start: Int, length: int, lane: int = 0) -> tf.Tensor:
    """Return `bits` converted to standard logistics, variance pi^2/3: float32 [rows, length, 2]."""
    return logistic_from_bits(bits(seed, rows, start, length, lane))


def normal(seed: Int, rows: tf.Tensor, start: Int, length: int, lane: int = 0) -> tf.Tensor:
    """Return `bits` converted to independent standard normals, float32 [rows, length, 2]."""
    return normal_from_bits(bits(seed, rows, start, length, lane))


# Traced once per rank: its 130 operations would add 50 ms to every trace with noise.
@tf.function(autograph=False, reduce_retracing=True)
def _cipher(key: tf.Tensor, counter: tf.Tensor) -> tf.Tensor:
    def as_word(number: int) -> tf.Tensor:
        return tf.constant(number, tf.uint32)

    return tf.stack(_rounds(key[..., 0], key[..., 1], counter, as_word, _rotate_left), axis=-1)


def _rounds(first: Any, second: Any, counter: Any, as_word: Any, rotate: Any) -> tuple[Any, Any]:
    """Return both words of a counter, encrypted with the words of a key, of either library."""
    keys = first, second, first ^ second ^ as_word(KEY_PARITY)
    left, right = counter[..., 0] + first, counter[..., 1] + second
    for group in range(5):
        for rotation in _ROTATIONS[group % 2]:
            left = left + right
            right = rotate(right, rotation) ^ left
        left = left + keys[(group + 1) % 3]
        right = right + keys[(group + 2) % 3] + as_word(group + 1)
    return left, right


def _bits_at_once(seed: Int, rows: tf.Tensor, start: Int, length: int, lane: int) -> np.ndarray:
    """Compute `bits` with NumPy, because TensorFlow's overhead would dominate a short call."""
    words = _as_word(tf.convert_to_tensor(rows), "rows"), _as_word(start, "start")
    rows, start = (word.numpy() for word in words)
    key = _cipher_at_once(as_key(seed).numpy(), _address_at_once(rows, FOLD_LANE))
    position = start[..., np.newaxis] + np.arange(length, dtype=np.uint32)
    return _cipher_at_once(key[:, np.newaxis, :], _address_at_once(position, lane))


def _cipher_at_once(key: np.ndarray, counter: np.ndarray) -> np.ndarray:
    """Compute `_cipher` with NumPy, because calling its graph would take milliseconds."""

    def rotate(word: np.ndarray, count: int) -> np.ndarray:
        return word << np.uint32(count) | word >> np.uint32(32 - count)

    first, second = np.atleast_1d(key[..., 0], key[..., 1])
    both = np.stack(_rounds(first, second, counter, np.uint32, rotate), axis=-1)
    return both.reshape(np.broadcast_shapes(key.shape, counter.shape))


def _rotate_left(word: tf.Tensor, count: int) -> tf.Tensor:
    # A product and a sum, the same bits as a shift and an `or`, which LiteRT does not have.
    up = word * tf.constant(1 << count, tf.uint32)
    return up + tf.bitwise.right_shift(word, tf.constant(32 - count, tf.uint32))


def _as_word(number: Int, name: str) -> tf.Tensor:
    if isinstance(number, int | np.integer):
        if not 0 <= number < 2**32:
            raise ValueError(must_be(name, "in [0, 2^32)", number))
        return tf.constant(number, tf.uint32)
    number = tf.convert_to_tensor(number)
    return number if number.dtype == tf.uint32 else tf.bitcast(tf.cast(number, tf.int32), tf.uint32)


def _combine_counters(first: tf.Tensor, second: int) -> tf.Tensor:
    """Return counters [..., 2] that combine each first word with the same second word."""
    return tf.stack([first, tf.fill(tf.shape(first), tf.constant(second, tf.uint32))], axis=-1)


def _address_at_once(first: np.ndarray, second: int) -> np.ndarray:
    return np.stack([first, np.full_like(first, second)], axis=-1)


def uniform64_from_bits(words: tf.Tensor) -> tf.Tensor:
    """Return `(word + 1/2) 2^-32`, float64 [...] in (0, 1)."""
    return (tf.cast(words, tf.float64) + 0.5) * 2.0**-32


class Initial:
    """A factory of variables; the n-th kernel depends only on the seed, n and its shape."""

    def __init__(self, seed: int) -> None:
        self._seed, self._drawn = seed, 0

    def kernel(self, shape: Sequence[int], name: str, gain: float = 1.0) -> tf.Variable:
        """Return normal numbers of variance gain^2 / fan-in, over all axes but the last."""
        self._drawn += 1
        size = math.prod(shape)
        draws = _normals(as_key(self._seed), self._drawn, size)
        scale = gain / math.sqrt(math.prod(shape[:-1]))
        return tf.Variable(tf.reshape(draws, shape) * scale, name=name)

    def zeros(self, shape: Sequence[int], name: str) -> tf.Variable:
        """Return a variable of zeros."""
        return tf.Variable(tf.zeros(shape), name=name)


class ZeroInitial(Initial):
    """A factory of zero variables, for weights that will be read from a file."""

    def __init__(self) -> None:
        super().__init__(0)

    def kernel(self, shape: Sequence[int], name: str, gain: float = 1.0) -> tf.Variable:
        """See `Initial.kernel`; all are zeros."""
        return self.zeros(shape, name)


@tf.function(
    autograph=False,
    input_signature=[
        tf.TensorSpec([2], tf.uint32),
        tf.TensorSpec([], tf.int32),
        tf.TensorSpec([], tf.int32),
    ],
)
def _normals(key: tf.Tensor, number: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
    """Return standard normals float32 [count]; traced once for all shapes, which saves time."""
    return normal(fold_in(key, number), [0], 0, count)[0, :, 0]
