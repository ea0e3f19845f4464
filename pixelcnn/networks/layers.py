"""Layers of image networks, up to their outputs, and the groups of channels and pixels.

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
from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from onepass.likelihoods import PixelMixture, noise
from onepass.likelihoods.codec import COLDEST, sample_categorical
from onepass.likelihoods.noise import Initial
from onepass.likelihoods.registry import LIKELIHOODS
from pixelcnn.config import OutputConfig

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
