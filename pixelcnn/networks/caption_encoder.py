"""Encoders of captions into vectors, by characters or by words.

The character encoder is a CNN followed by a GRU averaged over time, as in Reed et al. 2017,
"Parallel Multiscale Autoregressive Density Estimation" (arXiv 1703.03664). The GRU (Cho et al.
2014, arXiv 1406.1078) applies the reset gate after the matrix product, so a step is one product.
"""

import math
import string

import numpy as np
import tensorflow as tf

from onepass.likelihoods.initial import Initial
from pixelcnn.data.captions import CLOSING, CODES, NUM_CODES, PADDING, UNKNOWN

WIDTH = 5  # kernel width of the convolutions
STRIDES = (1, 2, 2)
RELU_GAIN = math.sqrt(2.0)  # keeps the variance through a ReLU (He et al. 2015)
ROWS, HASHES = 8192, 2  # number of rows of the word table, and number of rows per word
UNTRAINED = 0.1  # initial standard deviation of a word's vector; small, for words never seen
LONGEST = 32  # number of characters in a word whose positions matter
LETTERS = [*(CODES[letter] for letter in string.ascii_lowercase + string.digits), UNKNOWN]
IS_LETTER = np.isin(np.arange(NUM_CODES), LETTERS)
# Terms of a word's hashes, by position and code of a character. Models depend on these numbers.
DRAWN = np.random.Philox(key=0).random_raw(LONGEST * NUM_CODES * HASHES)
HASHED = (DRAWN % ROWS).astype(np.int32).reshape(LONGEST * NUM_CODES, HASHES)


class CharacterCNN(tf.Module):
    """Three convolutions over characters, with strides 1, 2 and 2, each followed by a ReLU.

    Positions after the end of a caption are zero in every layer.
    """

    def __init__(self, channels: int, initial: Initial, name: str = "characters") -> None:
        super().__init__(name=name)
        # Only one of NUM_CODES one-hot inputs is not zero, which makes the fan-in smaller.
        gains = [RELU_GAIN * math.sqrt(NUM_CODES), *[RELU_GAIN] * (len(STRIDES) - 1)]
        inputs = [NUM_CODES, *[channels] * (len(STRIDES) - 1)]
        self.kernels = [
            initial.kernel([WIDTH, count, channels], f"kernel_{i}", gain)
            for i, (count, gain) in enumerate(zip(inputs, gains, strict=True))
        ]
        self.biases = [initial.zeros([channels], f"bias_{i}") for i in range(len(STRIDES))]

    def __call__(self, codes: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return hidden steps [batch, steps, channels] and their mask [batch, steps, 1]."""
        mask = within_caption(codes)
        hidden = tf.one_hot(codes, NUM_CODES) * mask
        side = WIDTH // 2
        for kernel, bias, stride in zip(self.kernels, self.biases, STRIDES, strict=True):
            # With "SAME" the steps would depend on the padded length.
            padded = tf.pad(hidden, [[0, 0], [side, side], [0, 0]])
            mask = mask[:, ::stride]
            hidden = tf.nn.relu(tf.nn.conv1d(padded, kernel, stride, "VALID") + bias) * mask
        return hidden, mask


class AveragedGRU(tf.Module):
    """A gated recurrent unit with initial state zero, averaged over the time steps in the mask.

    r, z = sigmoid(W x_t + U h_(t-1) + b)
    n = tanh(W_n x_t + b_n + r . (U_n h_(t-1)))
    h_t = (1 - z) . h_(t-1) + z . n
    """

    def __init__(self, inputs: int, channels: int, initial: Initial, name: str = "gru") -> None:
        super().__init__(name=name)
        self.channels = channels
        self.input_kernel = initial.kernel([inputs, 3 * channels], "input_kernel")
        self.state_kernel = initial.kernel([channels, 3 * channels], "state_kernel")
        self.bias = initial.zeros([3 * channels], "bias")

    def __call__(self, steps: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
        """Return the mean state [batch, channels], zero where the mask is empty.

        `steps` are [batch, time, inputs], with a static time; `mask` is float32 [batch, time, 1].
        """
        driven = tf.transpose(tf.matmul(steps, self.input_kernel) + self.bias, [1, 0, 2])
        mask = tf.transpose(mask, [1, 0, 2])
        state_kernel = tf.convert_to_tensor(self.state_kernel)

        def advance(
            t: tf.Tensor, hidden: tf.Tensor, total: tf.Tensor
        ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            hidden = self._step(hidden, driven[t], state_kernel)
            return t + 1, hidden, total + mask[t] * hidden

        # A loop, since XLA takes ten seconds to compile fifty unrolled steps; the gradient needs a
        # static length.
        length = steps.shape[1]
        zero = tf.zeros([tf.shape(steps)[0], self.channels])
        _, _, total = tf.while_loop(
            lambda t, *_: t < length, advance, (0, zero, zero), maximum_iterations=length
        )
        return total / tf.maximum(tf.reduce_sum(mask, 0), 1.0)

    def _step(self, hidden: tf.Tensor, driven: tf.Tensor, state_kernel: tf.Tensor) -> tf.Tensor:
        gates, candidate = tf.split(driven, [2 * self.channels, self.channels], -1)
        state_gates, state = tf.split(
            tf.matmul(hidden, state_kernel), [2 * self.channels, self.channels], -1
        )
        r, z = tf.split(tf.sigmoid(gates + state_gates), 2, -1)
        return hidden + z * (tf.tanh(candidate + r * state) - hidden)


class CaptionEncoder(tf.Module):
    """An encoder of captions by characters; the result does not depend on padding."""

    def __init__(self, channels: int, initial: Initial, name: str = "caption") -> None:
        super().__init__(name=name)
        self.characters = CharacterCNN(channels, initial)
        self.gru = AveragedGRU(channels, channels, initial)

    def __call__(self, codes: tf.Tensor) -> tf.Tensor:
        """Return the vectors [batch, channels] of codes int32 [batch, time]; padding gives zero."""
        return self.gru(*self.characters(codes))


class WordEncoder(tf.Module):
    """An encoder of captions by words: the sum of n words' vectors divided by the root of n.

    A word is a sequence of letters and digits. Its vector is the sum of `HASHES` rows of a table,
    selected by hashes of its characters, so that no vocabulary is needed (Svenstrup et al. 2017,
    "Hash Embeddings for Efficient Word Representations", arXiv 1709.03933).
    """

    def __init__(self, channels: int, initial: Initial, name: str = "words") -> None:
        super().__init__(name=name)
        gain = UNTRAINED * math.sqrt(ROWS / HASHES)
        self.table = initial.kernel([1, ROWS, channels], "table", gain)

    def __call__(self, codes: tf.Tensor) -> tf.Tensor:
        """Return the vectors [batch, channels] of codes int32 [batch, time]; zero without words."""
        rows, ends = word_rows(codes)
        found = tf.reduce_sum(tf.gather(self.table[0], rows), 2)
        total = tf.reduce_sum(found * ends[..., tf.newaxis], 1)
        return total * tf.math.rsqrt(tf.maximum(tf.reduce_sum(ends, 1, keepdims=True), 1.0))


def word_rows(codes: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return table rows, int32 [batch, time, HASHES], and ends of words, float32 [batch, time].

    Every character of a word has the rows of the word. The ends are one for a word's last character
    and zero otherwise.
    """
    letter = tf.gather(IS_LETTER, codes) & (within_caption(codes)[..., 0] > 0)
    # Two letters belong to the same word if no other character is between them.
    word = tf.cumsum(tf.cast(~letter, tf.int32), 1)
    same = (word[:, :, tf.newaxis] == word[:, tf.newaxis]) & letter[:, tf.newaxis]
    # The position of each letter in its word, starting at 1.
    place = tf.reduce_sum(tf.linalg.band_part(tf.cast(same, tf.int32), -1, 0), 2)
    hashed = tf.gather(HASHED, tf.minimum(place, LONGEST - 1) * NUM_CODES + codes)
    # A word's hash is a sum of numbers selected by position and code of each letter.
    rows = tf.reduce_sum(tf.where(same[..., tf.newaxis], hashed[:, tf.newaxis], 0), 2) % ROWS
    last = letter & ~tf.pad(letter, [[0, 0], [0, 1]])[:, 1:]
    return rows, tf.cast(last, tf.float32)


def within_caption(codes: tf.Tensor) -> tf.Tensor:
    """Return a mask of the characters and the closing code, float32 [batch, time, 1]."""
    after_closing = tf.pad(codes == CLOSING, [[0, 0], [1, 0]])[:, :-1]
    ended = (codes == PADDING) | after_closing
    return tf.math.cumprod(tf.cast(~ended, tf.float32), 1)[..., None]
