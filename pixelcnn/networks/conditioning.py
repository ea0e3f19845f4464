"""Encoders of an image's condition: a class, a caption, a map of labels, or preceding frames.

A condition is encoded as a vector for the whole image, a map with values per pixel, or both (van
den Oord et al. 2016, "Conditional Image Generation with PixelCNN Decoders", equations 4 and 5). The
character encoder is a CNN followed by a GRU averaged over time (Reed et al. 2017, arXiv
1703.03664). The GRU (Cho et al. 2014, arXiv 1406.1078) applies the reset gate after the matrix
product, so a step is one product.
"""

import math
import string
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from onepass.foundation.rules import UserError, require
from onepass.likelihoods.codec import value_of
from onepass.likelihoods.noise import Initial
from pixelcnn.config import ConditioningConfig
from pixelcnn.data.captions import CLOSING, CODES, NUM_CODES, PADDING, UNKNOWN
from pixelcnn.networks.layers import Convolution

WIDTH = 5  # kernel width of the convolutions
CAPTION_STRIDES = (1, 2, 2)
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
    """Three convolutions (strides 1, 2, 2) with ReLU; positions after a caption's end are zero."""

    def __init__(self, channels: int, initial: Initial) -> None:
        super().__init__()
        # Only one of NUM_CODES one-hot inputs is not zero, which makes the fan-in smaller.
        gains = [RELU_GAIN * math.sqrt(NUM_CODES), *[RELU_GAIN] * (len(CAPTION_STRIDES) - 1)]
        inputs = [NUM_CODES, *[channels] * (len(CAPTION_STRIDES) - 1)]
        self.kernels = [
            initial.kernel([WIDTH, count, channels], f"kernel_{i}", gain)
            for i, (count, gain) in enumerate(zip(inputs, gains, strict=True))
        ]
        self.biases = [initial.zeros([channels], f"bias_{i}") for i in range(len(CAPTION_STRIDES))]

    def __call__(self, codes: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Return hidden steps [batch, steps, channels] and their mask [batch, steps, 1]."""
        mask = within_caption(codes)
        hidden = tf.one_hot(codes, NUM_CODES) * mask
        side = WIDTH // 2
        for kernel, bias, stride in zip(self.kernels, self.biases, CAPTION_STRIDES, strict=True):
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

    def __init__(self, inputs: int, channels: int, initial: Initial) -> None:
        super().__init__()
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

    def __init__(self, channels: int, initial: Initial) -> None:
        super().__init__()
        self.characters = CharacterCNN(channels, initial)
        self.gru = AveragedGRU(channels, channels, initial)

    def __call__(self, codes: tf.Tensor) -> tf.Tensor:
        """Return the vectors [batch, channels] of codes int32 [batch, time]; padding gives zero."""
        steps, mask = self.characters(codes)
        return self.gru(steps, mask)


class WordEncoder(tf.Module):
    """An encoder of captions by words: the sum of n words' vectors divided by the root of n.

    A word is a sequence of letters and digits. Its vector is the sum of `HASHES` rows of a table,
    selected by hashes of its characters, so that no vocabulary is needed (Svenstrup et al. 2017,
    "Hash Embeddings for Efficient Word Representations", arXiv 1709.03933).
    """

    def __init__(self, channels: int, initial: Initial) -> None:
        super().__init__()
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

    Every character has the rows of its word. The ends are one for a word's last character.
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


VIDEO_VECTOR_CHANNELS = 64
VIDEO_REDUCTION = 4  # side of a ConvLSTM cell in pixels
CAPTION_PLACES = 8  # number of cells along each side of a caption's map
FORGET_BIAS = 1.0  # an untrained cell keeps its state (Jozefowicz et al. 2015)


class Condition(NamedTuple):
    """An encoded condition, which the layers of a network read."""

    vector: tf.Tensor = None
    """Condition of the whole image, float32 [batch, vector channels], or None."""
    map: tf.Tensor = None
    """Condition of each pixel, float32 [batch, height, width, map channels], or None."""

    def row(self, y: int | tf.Tensor) -> "Condition":
        """Return the condition of one row of pixels, with a map of height 1."""
        return self if self.map is None else self._replace(map=self.map[:, y][:, tf.newaxis])


NONE = Condition(None, None)


class MapEncoder(tf.Module):
    """Two 3x3 convolutions over the one-hot labels of a map."""

    def __init__(self, config: ConditioningConfig, initial: Initial) -> None:
        super().__init__()
        self.labels, channels = config.classes, config.map_channels
        # Only one of the one-hot inputs is not zero, which makes the fan-in smaller.
        gain = RELU_GAIN * math.sqrt(self.labels)
        self.first = Convolution((3, self.labels, channels), initial, gain=gain)
        self.second = Convolution((3, channels, channels), initial)

    def __call__(self, labels: tf.Tensor) -> tf.Tensor:
        """Return the map, float32 [batch, height, width, map_channels].

        Labels are integers [batch, height, width], -1 for none, or numbers in place of one-hot
        ones.
        """
        labels = tf.convert_to_tensor(labels)
        if labels.dtype.is_integer:
            _check_shape("map", labels, (None, None, None))
            parts = tf.one_hot(labels, self.labels)
        else:
            _check_shape("map", labels, (None, None, None, self.labels))
            parts = tf.cast(labels, tf.float32)
        return self.second(tf.nn.relu(self.first(parts)))


class CaptionMap(tf.Module):
    """A map, linear in a caption's vector, by which captions locate objects in images of one size.

    Each of 8 x 8 cells has constant values (van den Oord et al. 2016, equation 5).
    """

    def __init__(self, config: ConditioningConfig, size: int, initial: Initial) -> None:
        super().__init__()
        self.places = np.arange(size) * CAPTION_PLACES // size  # cell of each row or column
        self.shape = [-1, *[CAPTION_PLACES] * 2, config.text_map_channels]
        outputs = CAPTION_PLACES**2 * config.text_map_channels
        self.kernel = initial.kernel([config.text_channels, outputs], "kernel")

    def __call__(self, vector: tf.Tensor) -> tf.Tensor:
        """Return the map [batch, size, size, text_map_channels] of [batch, text_channels]."""
        each = tf.reshape(tf.matmul(vector, self.kernel), self.shape)
        return tf.gather(tf.gather(each, self.places, axis=1), self.places, axis=2)


class ConvLSTM(tf.Module):
    """A convolutional LSTM without peephole connections.

    Shi et al. 2015, "Convolutional LSTM Network" (arXiv 1506.04214), equation 3:

        i, f, g, o = W_x * X_t + W_h * H_(t-1) + b
        C_t = sigmoid(f) . C_(t-1) + sigmoid(i) . tanh(g)
        H_t = sigmoid(o) . tanh(C_t)

    Both states are initialised to zero; a constant 1 is added to f.
    """

    def __init__(self, inputs: int, channels: int, initial: Initial, width: int = 3) -> None:
        super().__init__()
        self.inputs, self.channels = inputs, channels
        # W_x and W_h in one variable, which thereby gets a gradient even from a single time step.
        self.kernel = initial.kernel([width, width, inputs + channels, 4 * channels], "kernel")
        self.bias = initial.zeros([4 * channels], "bias")

    def __call__(self, frames: tf.Tensor) -> tf.Tensor:
        """Return the hidden state after the last frame, [batch, height, width, channels].

        `frames` have the shape [batch, time, height, width, inputs], static except for the batch.
        """
        time, *size = frames.shape[1:]
        flat = tf.reshape(frames, [-1, *size])
        driven = tf.nn.conv2d(flat, self.kernel[:, :, : self.inputs], 1, "SAME") + self.bias
        driven = tf.reshape(driven, [-1, time, *size[:2], 4 * self.channels])
        recurrent = self.kernel[:, :, self.inputs :]
        hidden, cell = self._step(driven[:, 0], 0.0)
        for t in range(1, time):
            gates = driven[:, t] + tf.nn.conv2d(hidden, recurrent, 1, "SAME")
            hidden, cell = self._step(gates, cell)
        return hidden

    def _step(self, gates: tf.Tensor, cell: tf.Tensor | float) -> tuple[tf.Tensor, tf.Tensor]:
        i, f, g, o = tf.split(gates, 4, -1)
        cell = tf.sigmoid(f + FORGET_BIAS) * cell + tf.sigmoid(i) * tf.tanh(g)
        return tf.sigmoid(o) * tf.tanh(cell), cell


class VideoEncoder(tf.Module):
    """An encoder of frames, actions and states: a ConvLSTM of motion, and the whole last frame."""

    def __init__(self, config: ConditioningConfig, initial: Initial) -> None:
        super().__init__()
        self.config = config
        colours, channels = config.picture_channels, config.map_channels
        moved = config.action_channels + config.state_channels
        self.half = Convolution((3, colours, channels), initial, 2, RELU_GAIN)
        self.quarter = Convolution((3, channels, channels), initial, 2, RELU_GAIN)
        self.conv_lstm = ConvLSTM(channels + moved, channels, initial)
        # Each cell is upsampled to a square of pixels.
        square = VIDEO_REDUCTION**2 * channels
        self.painting = Convolution((1, channels, square), initial)
        self.frame = Convolution((3, colours, channels), initial)
        self.merged = Convolution((3, channels, channels), initial, gain=RELU_GAIN)
        self.vector_kernel = None
        if moved:
            shape = [moved, VIDEO_VECTOR_CHANNELS]
            self.vector_kernel = initial.kernel(shape, "vector_kernel", RELU_GAIN)
            self.vector_bias = initial.zeros([VIDEO_VECTOR_CHANNELS], "vector_bias")

    def __call__(self, past: tf.Tensor, steps: list[tf.Tensor]) -> Condition:
        """Return the vector [batch, 64] and the map [batch, height, width, map + image channels].

        Without `steps`, float32 [batch, context_frames, numbers] each, there is no vector.
        """
        config = self.config
        _check_shape(
            "past", past, (None, config.context_frames, None, None, config.picture_channels)
        )
        for side, pixels in zip(("height", "width"), past.shape[2:4], strict=True):
            if pixels % VIDEO_REDUCTION:
                raise UserError(
                    f"The {side} of `past` must be a multiple of {VIDEO_REDUCTION}, got {pixels}."
                )
        frames = value_of(past, self.config.levels)
        moved = tf.concat(steps, -1) if steps else None
        last = frames[:, -1]
        seen = self.conv_lstm(self._cells(frames, moved))
        painted = tf.nn.depth_to_space(self.painting(seen), VIDEO_REDUCTION)
        merged = self.merged(tf.nn.relu(painted + self.frame(last)))
        vector = None
        if moved is not None:
            units = tf.matmul(moved[:, -1], self.vector_kernel) + self.vector_bias
            vector = tf.nn.relu(units)
        return Condition(vector, tf.concat([merged, last], -1))

    def _cells(self, frames: tf.Tensor, moved: tf.Tensor | None) -> tf.Tensor:
        time, *size = frames.shape[1:]
        cells = tf.nn.relu(self.half(tf.reshape(frames, [-1, *size])))
        cells = tf.nn.relu(self.quarter(cells))
        cells = tf.reshape(cells, [-1, time, *cells.shape[1:]])
        if moved is None:
            return cells
        everywhere = tf.ones_like(cells[..., :1]) * moved[:, :, None, None]
        return tf.concat([cells, everywhere], -1)


class Conditioner(tf.Module):
    """An encoder of the conditions in a batch; `size` is the side of the images in pixels."""

    def __init__(self, config: ConditioningConfig, initial: Initial, size: int = 0) -> None:
        super().__init__()
        self.config = config
        if config.kind in ("class", "map"):
            require(config.classes >= 1, "classes", f"at least 1 for kind {config.kind}", 0)
        self.text = self.painted = self.map = self.video = None
        if config.kind == "text":
            encoder = CaptionEncoder if config.text_unit == "character" else WordEncoder
            self.text = encoder(config.text_channels, initial)
            if config.text_map_channels:
                self.painted = CaptionMap(config, size, initial)
        elif config.kind == "map":
            self.map = MapEncoder(config, initial)
        elif config.kind == "video":
            self.video = VideoEncoder(config, initial)

    @property
    def vector_channels(self) -> int:
        """Number of channels of the condition's vector; 0: no vector."""
        config = self.config
        moved = config.action_channels + config.state_channels
        video = VIDEO_VECTOR_CHANNELS if moved else 0
        sizes = {"class": config.classes, "text": config.text_channels, "video": video}
        return sizes.get(config.kind, 0)

    @property
    def map_channels(self) -> int:
        """Number of channels of the condition's map; 0: no map."""
        config = self.config
        video = config.map_channels + config.picture_channels
        sizes = {"text": config.text_map_channels, "map": config.map_channels, "video": video}
        return sizes.get(config.kind, 0)

    def __call__(self, batch: Mapping[str, tf.Tensor]) -> Condition:
        """Return the condition of each image in a batch of arrays by name, depending on its kind.

        - class: `label` int32 [batch]; a label outside the classes gives a zero vector.
        - text: `caption` int32 [batch, 201], codes from `captions.encode_caption`.
        - map: `map`, integers [batch, height, width] or numbers [..., classes].
        - video: `past` int32 [batch, context_frames, height, width, channels], and `action` and
          `state`, if they have channels, float32 [batch, context_frames, channels].
        """
        if self.text is not None:
            vector = self.text(self._take_tensor(batch, "caption", (None, None)))
            return Condition(vector, self.painted and self.painted(vector))
        if self.map is not None:
            return Condition(map=self.map(self._take_tensor(batch, "map", None)))
        if self.video is not None:
            return self.video(self._take_tensor(batch, "past", None), self._steps(batch))
        if self.config.kind == "class":
            label = self._take_tensor(batch, "label", (None,))
            return Condition(vector=tf.one_hot(label, self.config.classes))
        return NONE

    def with_null(self, condition: Condition) -> Condition:
        """Concatenate the condition and the null condition along the batch axis.

        The null condition is zero after training with dropped ones, otherwise the mean of all
        classes.
        """
        if not self.config.has_null:
            raise UserError(
                "Only classes, and captions that training dropped, have a null condition, got kind "
                f"{self.config.kind}."
            )
        mean = 0.0 if self.config.dropout else 1.0 / self.config.classes
        null = tf.fill(tf.shape(condition.vector), mean)
        map_ = condition.map
        if map_ is not None:
            map_ = tf.concat([map_, tf.zeros_like(map_)], 0)
        return Condition(tf.concat([condition.vector, null], 0), map_)

    def _steps(self, batch: Mapping[str, tf.Tensor]) -> list[tf.Tensor]:
        config = self.config
        channels = {"action": config.action_channels, "state": config.state_channels}
        shapes = {name: (None, config.context_frames, n) for name, n in channels.items() if n}
        found = [self._take_tensor(batch, name, shape) for name, shape in shapes.items()]
        return [tf.cast(tensor, tf.float32) for tensor in found]

    def _take_tensor(
        self, batch: Mapping[str, tf.Tensor], name: str, shape: tuple[int | None, ...] | None
    ) -> tf.Tensor:
        if name not in batch:
            raise ValueError(
                f"`batch` must have `{name}` for kind {self.config.kind}, "
                f"got {', '.join(sorted(batch)) or 'nothing'}."
            )
        tensor = tf.convert_to_tensor(batch[name])
        if shape is not None:
            _check_shape(name, tensor, shape)
        return tensor


def check_label(label: int, classes: int) -> None:
    """Raise a UserError unless the label is at least 0 and below `classes`."""
    if not 0 <= label < classes:
        raise UserError(f"There is no class {label}; there are 0 to {classes - 1}.")


def _check_shape(name: str, tensor: tf.Tensor, shape: tuple[int | None, ...]) -> None:
    if not tensor.shape.is_compatible_with(shape):
        sizes = ", ".join("any" if size is None else str(size) for size in shape)
        raise ValueError(f"`{name}` must have the shape [{sizes}], got {tensor.shape}.")
