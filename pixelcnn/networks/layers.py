"""Layers of image networks: encoders of the condition, outputs, and groups of channels and pixels.

An image's condition is a class, a caption, a map of labels, or preceding frames. A condition is
encoded as a vector for the whole image, a map with values per pixel, or both (van den Oord et al.
2016, "Conditional Image Generation with PixelCNN Decoders", equations 4 and 5). The character
encoder is a CNN followed by a GRU averaged over time (Reed et al. 2017, arXiv 1703.03664). The GRU
(Cho et al. 2014, arXiv 1406.1078) applies the reset gate after the matrix product, so a step is one
product.

Each of four groups contains one pixel of every 2 x 2 tile.

    1 2      group 1 is the image sub-sampled to half the size;
    3 4      the other three groups are drawn given group 1, one after another.

Reed et al. 2017, "Parallel Multiscale Autoregressive Density Estimation" (arXiv 1703.03664),
section 3.

An output layer computes the distribution of a pixel's channels from hidden units. It provides
`log_prob(hidden, levels)` and `sample(hidden, words, temperature)`, which treat pixels
independently and model the dependence of each channel on earlier channels.
"""

import math
import string
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from onepass.foundation.rules import UserError, require
from onepass.likelihoods import PixelMixture, noise
from onepass.likelihoods.codec import COLDEST, sample_categorical, value_of
from onepass.likelihoods.noise import Initial
from onepass.likelihoods.registry import LIKELIHOODS
from pixelcnn.config import ConditioningConfig, OutputConfig
from pixelcnn.data.captions import CLOSING, CODES, NUM_CODES, PADDING, UNKNOWN

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


OFFSETS = ((0, 0), (0, 1), (1, 0), (1, 1))  # row and column of groups 1, 2, 3, 4 in a tile
STRIDES = ((1, 1), (1, 2), (2, 2))  # size of a tile in the merged image read by groups 2, 3, 4


def split(image: tf.Tensor) -> list:
    """Split an image into groups 1 to 4, [batch, height / 2, width / 2, channels] each."""
    return [image[:, row::2, column::2] for row, column in OFFSETS]


def merge(groups: list) -> tf.Tensor:
    """Merge four groups into an image [batch, 2 height, 2 width, channels]; inverse of `split`."""
    upper = _interleave_images(groups[0], groups[1], 2)
    return _interleave_images(upper, _interleave_images(groups[2], groups[3], 2), 1)


def merge_groups(groups: list) -> tf.Tensor:
    """Merge the first one, two or three groups into the image that the next factor reads.

    Two groups are interleaved, [height, 2 width]; three are merged with zeros in place of group 4,
    [2 height, 2 width].
    """
    if len(groups) == 1:
        return groups[0]
    if len(groups) == 2:
        return _interleave_images(groups[0], groups[1], 2)
    return merge([*groups, tf.zeros_like(groups[0])])


def subsample_blocks(image: tf.Tensor, size: int) -> tf.Tensor:
    """Return the upper left pixel of every block as an image, [batch, size, size, channels]."""
    height, width = image.shape[1], image.shape[2]
    if height != width or height % size:
        raise ValueError(f"`size` must divide the image, {height} x {width}, got {size}.")
    step = height // size
    return image if step == 1 else image[:, ::step, ::step]


def cut(image: tf.Tensor, side: int) -> tf.Tensor:
    """Cut images [batch, height, width, channels] into patches [batch * patches, side, side, n]."""
    shape, channels = tf.shape(image), image.shape[-1]
    rows, columns = shape[1] // side, shape[2] // side
    tiled = tf.reshape(image, [shape[0], rows, side, columns, side, channels])
    return tf.reshape(tf.transpose(tiled, [0, 1, 3, 2, 4, 5]), [-1, side, side, channels])


def paste(patches: tf.Tensor, shape: tf.Tensor) -> tf.Tensor:
    """Join patches into an image with the shape `shape`, int [4]; inverse of `cut`."""
    side, channels = patches.shape[1], patches.shape[-1]
    rows, columns = shape[1] // side, shape[2] // side
    tiled = tf.reshape(patches, [shape[0], rows, columns, side, side, channels])
    return tf.reshape(tf.transpose(tiled, [0, 1, 3, 2, 4, 5]), shape)


def _interleave_images(first: tf.Tensor, second: tf.Tensor, axis: int) -> tf.Tensor:
    shape = tf.shape(first)
    # Compute the shape, since sizes may be dynamic, but keep the static ones.
    doubled = tf.tensor_scatter_nd_update(shape, [[axis]], [2 * shape[axis]])
    static = first.shape.as_list()
    if static[axis] is not None:
        static[axis] *= 2
    return tf.ensure_shape(tf.reshape(tf.stack([first, second], axis + 1), doubled), static)


class BatchSlice(NamedTuple):
    """The slice of a batch on a replica: index `number`, int32 [], of `shares` equal slices."""

    number: tf.Tensor
    shares: int


class Mode(NamedTuple):
    """Precision and dropout of a forward pass.

    `share` is this replica's slice of the batch, which selects a slice of the dropout mask.
    """

    dtype: tf.DType = tf.float32
    seed: tf.Tensor | None = None
    share: BatchSlice | None = None
    linear: tf.DType | None = None

    def for_prediction(self, x: tf.Tensor) -> tf.Tensor:
        """Cast the input of a linear prediction to the type `linear`."""
        return x if self.linear is None else tf.cast(x, self.linear)

    def dropout(self, units: tf.Tensor, rate: float, place: int) -> tf.Tensor:
        """Return the units after dropout; unchanged if there is no seed or the rate is 0.

        The masks, which differ by `place`, are TensorFlow's: they need not be equal on every
        device.
        """
        if self.seed is None or not rate:
            return units
        seed = self.seed + tf.constant([0, place], tf.int32)
        if self.share is None:
            return tf.nn.experimental.stateless_dropout(units, rate, seed)
        # Draw the mask of the whole batch and slice it.
        shape, rows = tf.shape(units), tf.shape(units)[0]
        everyone = tf.ones(tf.concat([[rows * self.share.shares], shape[1:]], 0), units.dtype)
        kept = tf.nn.experimental.stateless_dropout(everyone, rate, seed)
        own = kept[self.share.number * rows :][:rows]
        return units * tf.ensure_shape(own, units.shape)


EXACT = Mode()  # float32 without dropout, for evaluation and sampling


def convolve(
    x: tf.Tensor,
    kernel: tf.Variable,
    strides: int | Sequence[int] = 1,
    dilations: tuple[int, int] = (1, 1),
) -> tf.Tensor:
    """Convolve x [batch, height, width, channels] without padding, in x's dtype.

    The kernel is [rows, columns, inputs, outputs]; strides and dilations are (rows, columns).
    """
    if dilations == (1, 1):
        return tf.nn.conv2d(x, cast_like(kernel, x), strides, "VALID")
    # Dilated convolutions by conv2d have no gradient on some devices.
    return tf.nn.convolution(x, cast_like(kernel, x), 1, "VALID", dilations=dilations)


def matmul(x: tf.Tensor, kernel: tf.Variable) -> tf.Tensor:
    """Multiply x [..., inputs] by a kernel [inputs, outputs], in x's dtype."""
    # Flattened, since oneDNN's batched product corrupts the heap for some [batch, 1, width, few].
    rows = tf.matmul(tf.reshape(x, [-1, x.shape[-1]]), cast_like(kernel, x))
    return tf.reshape(rows, tf.concat([tf.shape(x)[:-1], [kernel.shape[-1]]], 0))


def cast_like(variable: tf.Variable, x: tf.Tensor) -> tf.Tensor:
    """Return the variable in x's dtype."""
    return tf.cast(variable, x.dtype)


class Convolution(tf.Module):
    """A square convolution with a bias and zero padding."""

    def __init__(
        self, shape: tuple[int, int, int], initial: Initial, stride: int = 1, gain: float = 1.0
    ) -> None:
        super().__init__()
        width, inputs, outputs = shape
        self.stride = stride
        self.kernel = initial.kernel([width, width, inputs, outputs], "kernel", gain)
        self.bias = initial.zeros([outputs], "bias")

    def __call__(self, pixels: tf.Tensor) -> tf.Tensor:
        """Return the convolved pixels, [batch, height / stride, width / stride, outputs]."""
        return tf.nn.conv2d(pixels, self.kernel, self.stride, "SAME") + self.bias


NULL_FLOOR = 1e-5  # lower bound of a level's probability under the null condition in guidance
SMALLEST = 1e-30  # lower bound of probabilities before taking logarithms
START_REACH = 0.25  # initial spread of the components around the prediction; 1 is half the range


class Hidden(NamedTuple):
    """Hidden states of pixels: units [..., units], and a linear prediction [..., channels]."""

    units: tf.Tensor
    prediction: tf.Tensor


class PixelOutput(tf.Module):
    """The last layer of a network of images, which reads `hidden_units` of a pixel.

    It draws a pixel by `noise_words` random words.
    """

    hidden_units: int
    noise_words: int

    def __init__(self, config: OutputConfig) -> None:
        super().__init__()
        self.kind, self.levels, self.channels = config.likelihood, config.levels, config.channels

    def sample(
        self,
        hidden: Hidden,
        words: tf.Tensor,
        temperature: float | tf.Tensor = 1.0,
        guidance: float | tf.Tensor | None = None,
    ) -> tf.Tensor:
        """Sample pixels, int32 [..., channels], from random words uint32 [..., noise_words]."""
        own: Any = self
        if guidance is not None:
            return sample_guided(own, hidden, words, temperature, guidance)
        return own.draw_pixels(hidden, words, temperature)


class MixtureOutput(PixelOutput):
    """A linear output layer for `PixelMixture`; the linear prediction is added to every mean."""

    def __init__(self, config: OutputConfig, units: int, initial: Initial) -> None:
        super().__init__(config)
        make = LIKELIHOODS[self.kind].make
        self.hidden_units = units
        self.likelihood = PixelMixture(
            self.levels, self.channels, config.components, config.min_log_scale, make
        )
        self.noise_words = self.likelihood.noise_channels
        self.kernel = initial.kernel([units, self.likelihood.num_parameters], "kernel", 0.1)
        self.bias = tf.Variable(_spread(self.likelihood), name="bias")

    def log_prob(self, hidden: Hidden, levels: tf.Tensor) -> tf.Tensor:
        """Return the log-probability in nats, float32 [...], of pixels, int32 [..., channels]."""
        return self.likelihood.log_prob(self.parameters(hidden), levels)

    def level_probabilities(self, hidden: Hidden, before: list) -> tf.Tensor:
        """Return the next channel's level probabilities, given earlier channels, [..., levels]."""
        return self.likelihood.level_probabilities(self.parameters(hidden), before)

    def level_log_probs(
        self, hidden: Hidden, before: list, temperature: float | tf.Tensor = 1.0
    ) -> tf.Tensor:
        """Return the next channel's log-probabilities at a temperature, [..., levels], in nats."""
        return self.likelihood.level_log_probs(self.parameters(hidden), before, temperature)

    def draw_pixels(
        self, hidden: Hidden, words: tf.Tensor, temperature: float | tf.Tensor
    ) -> tf.Tensor:
        """Return the pixels of `sample` without guidance."""
        noises = self.likelihood.noise_of(words)
        return self.likelihood.sample(self.parameters(hidden), noises, temperature)

    def parameters(self, hidden: Hidden) -> tf.Tensor:
        """Return the parameters of the mixture, [..., num_parameters]."""
        parameters = matmul(tf.cast(hidden.units, tf.float32), self.kernel) + self.bias
        return self.likelihood.shift_means(parameters, hidden.prediction)


class SoftmaxOutput(PixelOutput):
    """An output layer with a softmax for each channel, given the channels before it.

        logits_c = relu(h A_c + sum_{d < c} E_cd[x_d]) B_c + b_c

    Source: van den Oord et al. 2016, arXiv:1601.06759, equation 2; here the dependence of a channel
    on earlier channels is modelled in the last layer, not by masks in all layers.
    """

    def __init__(self, config: OutputConfig, units: int, initial: Initial) -> None:
        super().__init__(config)
        self.hidden_units, self.noise_words = units, config.channels
        width = config.softmax_units
        each = range(config.channels)
        self.hidden_kernels = [
            initial.kernel([units + config.channels, width], f"hidden_{c}") for c in each
        ]
        self.hidden_biases = [initial.zeros([width], f"hidden_bias_{c}") for c in each]
        self.embeddings = [
            [initial.kernel([1, self.levels, width], f"embedding_{c}_{d}") for d in range(c)]
            for c in each
        ]
        self.kernels = [initial.kernel([width, self.levels], f"kernel_{c}", 0.3) for c in each]
        self.biases = [initial.zeros([self.levels], f"bias_{c}") for c in each]

    def log_prob(self, hidden: Hidden, levels: tf.Tensor) -> tf.Tensor:
        """Return the log-probability in nats, float32 [...], of pixels, int32 [..., channels]."""
        values = tf.unstack(levels, axis=-1)
        total = 0.0
        for c in range(self.channels):
            total -= tf.nn.sparse_softmax_cross_entropy_with_logits(
                labels=values[c], logits=self._logits(hidden, c, values[:c])
            )
        return total

    def level_probabilities(self, hidden: Hidden, before: list) -> tf.Tensor:
        """Return the next channel's level probabilities, given earlier channels, [..., levels]."""
        return tf.nn.softmax(self._logits(hidden, len(before), before))

    def level_log_probs(
        self, hidden: Hidden, before: list, temperature: float | tf.Tensor = 1.0
    ) -> tf.Tensor:
        """Return the next channel's log-probabilities at a temperature, [..., levels], in nats."""
        cold = tf.maximum(temperature, COLDEST)[..., tf.newaxis]
        return tf.nn.log_softmax(self._logits(hidden, len(before), before) / cold)

    def draw_pixels(
        self, hidden: Hidden, words: tf.Tensor, temperature: float | tf.Tensor
    ) -> tf.Tensor:
        """Return the pixels of `sample` without guidance."""
        uniforms = noise.uniform_from_bits(words)
        pixel: list[tf.Tensor] = []
        for c in range(self.channels):
            logits = self._logits(hidden, c, pixel)
            pixel.append(sample_categorical(logits, uniforms[..., c], temperature))
        return tf.stack(pixel, axis=-1)

    def _logits(self, hidden: Hidden, channel: int, before: Sequence[tf.Tensor]) -> tf.Tensor:
        units = tf.concat([tf.cast(hidden.units, tf.float32), hidden.prediction], -1)
        inside = matmul(units, self.hidden_kernels[channel])
        inside += self.hidden_biases[channel]
        for value, embedding in zip(before, self.embeddings[channel], strict=True):
            inside += tf.gather(embedding[0], value)
        return matmul(tf.nn.relu(inside), self.kernels[channel]) + self.biases[channel]


Output = MixtureOutput | SoftmaxOutput


class PixelOutputs(NamedTuple):
    """The conditional distribution of every pixel, with the pixels' levels.

    A row of the hidden states [rows, height, width, ...] is an image, or a patch of one. `share` is
    a factor of sums if the pixels are a sub-sample of the image; `weights` are those of the pixels
    of a crop, float32 [rows, height, width].
    """

    output: Output
    hidden: Hidden
    levels: tf.Tensor
    images: tf.Tensor | None = None
    share: float = 1.0
    weights: tf.Tensor | None = None

    def nats(self) -> tf.Tensor:
        """Return the log-probability of each image's pixels, float32 [images], in nats."""
        return self.sum_per_image(self.output.log_prob(self.hidden, self.levels))

    def sum_per_image(self, each: tf.Tensor) -> tf.Tensor:
        """Return the weighted sum of `each` [rows, height, width] for each image, by `share`."""
        if self.weights is not None:
            each = self.weights * each
        rows = tf.reduce_sum(each, [1, 2])
        if self.images is not None:
            rows = tf.reduce_sum(tf.reshape(rows, [self.images, -1]), 1)
        return self.share * rows

    def apply_weights(self, weights: tf.Tensor) -> "PixelOutputs":
        """Return a copy with weights [images, height, width], cut into patches like the images."""
        if self.images is not None:
            weights = cut(weights[..., tf.newaxis], self.levels.shape[1])[..., 0]
        return self._replace(weights=weights)


def sample_guided(
    output: Output,
    hidden: Hidden,
    words: tf.Tensor,
    temperature: float | tf.Tensor,
    weight: float | tf.Tensor,
) -> tf.Tensor:
    """Sample pixels from the distribution of `guided_nats`, int32 [2 batch, ..., channels].

    The first half of the hidden states [2 batch, ...] is computed under the conditions, the second
    half under the null condition. Both halves of the words, uint32 [2 batch, ..., noise words], are
    the same, and so are both halves of the result. Temperature 0 selects the most probable level.
    """
    sides = both_sides(hidden)
    drawn: list[tf.Tensor] = []
    uniforms = noise.uniform_from_bits(tf.split(words, 2)[0])
    for c in range(hidden.prediction.shape[-1]):
        moved = guided_nats(output, sides, drawn, weight, temperature)
        drawn.append(sample_categorical(moved, uniforms[..., c], tf.sign(temperature)))
    return tf.tile(tf.stack(drawn, axis=-1), [2] + [1] * (words.shape.rank - 1))


def guided_log_prob(
    output: Output, hidden: Hidden, levels: tf.Tensor, weight: float | tf.Tensor
) -> tf.Tensor:
    """Return guided log-probabilities of pixels, float32 nats, of states as in `sample_guided`."""
    sides, channels = both_sides(hidden), tf.unstack(levels, axis=-1)
    total = 0.0
    for c, level in enumerate(channels):
        moved = guided_nats(output, sides, channels[:c], weight)
        total -= tf.nn.sparse_softmax_cross_entropy_with_logits(labels=level, logits=moved)
    return total


def both_sides(hidden: Hidden) -> list[Hidden]:
    """Split hidden states [2 batch, ...] into those under the conditions and the null condition."""
    units, prediction = (tf.split(part, 2) for part in hidden)
    return [Hidden(units[side], prediction[side]) for side in range(2)]


def guided_nats(
    output: Output,
    sides: list[Hidden],
    before: list,
    weight: float | tf.Tensor,
    temperature: float | tf.Tensor = 1.0,
) -> tf.Tensor:
    """Return the guided log-probabilities of the next channel's levels, float32 [..., levels].

    Up to a constant, the guided distribution q is, where p is the model's distribution,

        log q(x) = log p_T(x | condition) + weight / T (log p(x | condition) - log p(x | null))

    p_T is the distribution of `output.sample` at temperature T, a number or a tensor [...], so that
    for weight 0 the temperature has the same meaning as without guidance. (For a softmax, q at
    temperature T is proportional to q at temperature 1 to the power 1/T.) p(x | null) is clipped to
    at least `NULL_FLOOR`, since its tails carry no information but would attract samples.

    Source: Ho and Salimans 2021, "Classifier-Free Diffusion Guidance" (arXiv 2207.12598), with
    conditional log-probabilities instead of scores.
    """
    given, null = (output.level_probabilities(side, before) for side in sides)
    nats = tf.math.log(tf.maximum(given, SMALLEST))
    # log p(x | condition) - log p(x | null), the direction away from the null condition.
    moved = nats - tf.math.log(tf.maximum(null, NULL_FLOOR))
    if isinstance(temperature, float) and temperature == 1.0:
        return nats + weight * moved
    cooled = tf.cond(  # saves computing the table again at temperature 1
        tf.reduce_all(tf.equal(temperature, 1.0)),
        lambda: nats,
        lambda: output.level_log_probs(sides[0], before, temperature),
    )
    strength = weight / tf.maximum(temperature, COLDEST)[..., tf.newaxis]
    return cooled + strength * moved


def make_output(config: OutputConfig, units: int, initial: Initial) -> Output:
    """Return the output layer for a configuration."""
    kind = MixtureOutput if config.has_density else SoftmaxOutput
    return kind(config, units, initial)


def _spread(likelihood: PixelMixture) -> tf.Tensor:
    count, channels = likelihood.components, likelihood.channels
    middle = START_REACH * ((2.0 * tf.range(count, dtype=tf.float32) + 1.0) / count - 1.0)
    wide = tf.fill([count], math.log(START_REACH / count))
    pairs = likelihood.num_parameters // count - 1 - 2 * channels
    rows = [tf.zeros([count]), *[middle] * channels, *[wide] * channels]
    return tf.concat([*rows, tf.zeros([pairs * count])], 0)
