"""Inverse autoregressive flows over images, which transform noise to all pixels in one pass.

    x_t = z_t s(z_<t, c) + mu(z_<t, c),     log|det dx/dz| = sum_t log s_t

where t runs over the pixels in raster order and over the channels of each pixel (Kingma et al.
2016, arXiv 1606.04934; van den Oord et al. 2017, arXiv 1711.10433). mu and s are
computed by a PixelCNN that reads squashed noise instead of pixels. The squashing bounds its
outputs, so that the inverse cannot diverge. z is logistic; therefore x_t given z_<t is logistic
too, with entropy log s + 2 nats.

A pixel is the level nearest to x, and the outer levels include all values beyond. The probability
of an image is thus an integral of the density over a box; `nats` is a lower bound on its log.
"""

import dataclasses
import functools
import math
from collections.abc import Callable

import tensorflow as tf

from onepass.likelihoods import noise as counter_noise
from onepass.likelihoods.affine import FlowOutput, compose
from onepass.likelihoods.codec import nearest, value_of
from onepass.likelihoods.mixture import PAIRS
from onepass.likelihoods.noise import Initial
from pixelcnn.config import OutputConfig, PixelCNNConfig
from pixelcnn.networks.layers import EXACT, Condition, Hidden, Mode, matmul
from pixelcnn.networks.pixelcnn import PixelCNN, Scan, run_scan

INITIAL_SCALE = 0.15  # scale of an untrained flow's output, relative to half the level range
MOST_APART = 0.1  # maximum reconstruction error after inversion, in levels
REACH = 4.0  # bound of the squashed noise, which 1 value in 28 exceeds before squashing


class AffineOutput(tf.Module):
    """An output layer with location and log-scale per channel, linear in earlier ones' noise."""

    def __init__(
        self, config: OutputConfig, units: int, initial: Initial, scale: float = 1.0
    ) -> None:
        super().__init__()
        self.channels, self.min_log_scale = config.channels, config.min_log_scale
        self.pairs = PAIRS[config.channels]
        count = 2 * self.channels + len(self.pairs)
        self.kernel = initial.kernel([units, count], "kernel", 0.1)
        start = [0.0] * self.channels + [math.log(scale)] * self.channels + [0.0] * len(self.pairs)
        self.bias = tf.Variable(start, name="bias")

    def __call__(self, hidden: Hidden, noise: tf.Tensor) -> FlowOutput:
        """Transform noise to values, float32 [..., channels], with location and log-scale."""
        location, log_scale, coefficients = self._read(hidden)
        moved = tf.unstack(location, axis=-1)
        for i, (channel, by) in enumerate(self.pairs):
            moved[channel] += coefficients[..., i] * noise[..., by]
        location = tf.stack(moved, -1)
        return FlowOutput(noise * tf.exp(log_scale) + location, location, log_scale)

    def inverse(self, hidden: Hidden, values: tf.Tensor) -> tf.Tensor:
        """Transform values to noise, float32 [..., channels], channel by channel."""
        location, log_scale, coefficients = self._read(hidden)
        left = tf.unstack(values - location, axis=-1)
        noise: list[tf.Tensor] = []
        for channel, shrink in enumerate(tf.unstack(tf.exp(-log_scale), axis=-1)):
            for i, (moved, by) in enumerate(self.pairs):
                if moved == channel:
                    left[channel] -= coefficients[..., i] * noise[by]
            noise.append(left[channel] * shrink)
        return tf.stack(noise, -1)

    def _read(self, hidden: Hidden) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        raw = matmul(tf.cast(hidden.units, tf.float32), self.kernel) + self.bias
        sizes = [self.channels, self.channels, len(self.pairs)]
        location, log_scale, coefficients = tf.split(raw, sizes, -1)
        location += hidden.prediction
        return location, tf.maximum(log_scale, self.min_log_scale), coefficients


class ImageFlow(tf.Module):
    """A sequence of flows over images of any size; `layers` of each replace `config.layers`."""

    def __init__(
        self,
        config: PixelCNNConfig,
        layers: tuple[int, ...],
        output: OutputConfig,
        initial: Initial,
        vector_channels: int = 0,
        map_channels: int = 0,
    ) -> None:
        super().__init__()
        self.output_config, self.noise_words = output, output.channels
        self._width = 2.0 / (output.levels - 1)
        vector, map_, self.flows = vector_channels, map_channels, list[PixelCNN]()
        for i, count in enumerate(layers):
            scale = INITIAL_SCALE if i == len(layers) - 1 else 1.0
            make = functools.partial(AffineOutput, scale=scale)
            own = dataclasses.replace(config, layers=count)
            self.flows.append(PixelCNN(own, output, initial, vector, map_, 0.0, make))

    def __call__(self, noise: tf.Tensor, condition: Condition, mode: Mode = EXACT) -> FlowOutput:
        """Return all flows' unbounded output for noise, scaled so that levels span [-1, 1]."""
        return self._run_flows(noise, self.flows[0].add_coordinates(condition, noise), mode)

    def _run_flows(self, noise: tf.Tensor, condition: Condition, mode: Mode) -> FlowOutput:
        steps = []
        for flow in self.flows:
            hidden = flow.compute_hidden(squash_noise(noise), condition, mode)
            steps.append(flow.output(hidden, noise))
            noise = steps[-1].output
        return compose(steps)

    def sample(
        self, words: tf.Tensor, condition: Condition, temperature: float | tf.Tensor = 1.0
    ) -> tf.Tensor:
        """Sample int32 [batch, height, width, channels] by uint32 [..., `noise_words` or more]."""
        noise = counter_noise.logistic_from_bits(words[..., : self.noise_words])
        flowed = self(temperature * noise, condition)
        return nearest(flowed.output, self.output_config.levels)

    def log_density(self, values: tf.Tensor, condition: Condition, mode: Mode = EXACT) -> tf.Tensor:
        """Return the log-density of real-valued images, float32 [batch], in nats; differentiable.

        In the mode `EXACT`, it is NaN for images that the inverted noise does not reconstruct to
        within a tenth of a level, since rounding errors can grow without bound in the inverse.
        """
        noise = self.inverse(values, condition, mode)
        again = self(noise, condition, mode)
        nats = _density_of(noise, again)
        if mode is not EXACT:
            return nats
        # Rounding errors can grow from pixel to pixel in the inverse: check the reconstruction.
        apart = tf.reduce_max(tf.abs(again.output - values), [1, 2, 3])
        return tf.where(apart <= MOST_APART * self._width, nats, math.nan)

    def drawn_nats(self, words: tf.Tensor, condition: Condition) -> tf.Tensor:
        """Return the log-density of what `sample` draws from these words, float32 [batch], nats.

        It is the log-density of the values before rounding, plus the log of a level's width for
        each value.
        """
        noise = counter_noise.logistic_from_bits(words[..., : self.noise_words])
        numbers = math.prod(noise.shape[1:])
        return _density_of(noise, self(noise, condition)) + numbers * math.log(self._width)

    def nats(
        self,
        levels: tf.Tensor,
        condition: Condition,
        mode: Mode = EXACT,
        seeds: tf.Tensor | None = None,
    ) -> tf.Tensor:
        """Return a lower bound on the log-probability of images, float32 [batch], in nats.

        The bound holds in expectation over u (Theis et al. 2016, arXiv 1511.01844, section 3.1):

            log P(levels) >= E_u[log p(value + u width)] + numbers log width

        The seeds, int32 [batch, 2], determine u, which is uniform in (-1/2, 1/2); None: the same u
        for every image.
        """
        shape = levels.shape[1:]
        width = self._width
        seeds, rows = (0, [0]) if seeds is None else (seeds, tf.zeros_like(seeds[:, 0]))
        words = counter_noise.words(seeds, rows, 0, shape[0] * shape[1], shape[2])
        inside = tf.reshape(counter_noise.uniform_from_bits(words), [-1, *shape]) - 0.5
        values = value_of(levels, self.output_config.levels) + width * inside
        return self.log_density(values, condition, mode) + math.prod(shape) * math.log(width)

    def inverse(self, values: tf.Tensor, condition: Condition, mode: Mode = EXACT) -> tf.Tensor:
        """Return the noise of real-valued images, [batch, height, width, channels]; differentiable.

        It is computed from the last flow to the first, pixel by pixel, as
        z_t = (x_t - mu(z_<t)) / s(z_<t). For gradients, the same formula is recorded for all pixels
        at once, given the noise. The gradient of the recorded formula's result is

            w = s dz/dx^T g

        where g is the gradient of the result (implicit differentiation, Bai et al. 2019, arXiv
        1909.01377, theorem 1). The weights' gradient then takes one pass instead of one per pixel.
        """
        condition = self.flows[0].add_coordinates(condition, values)
        # A tape must not record the scan, since it would store every step of the loop over pixels.
        noise = tf.stop_gradient(self._invert_flows(values, condition))
        flowed = self._run_flows(noise, condition, mode)

        @tf.custom_gradient
        def with_gradient(noise: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
            def gradient(upstream: tf.Tensor) -> tf.Tensor:
                with tf.GradientTape(watch_accessed_variables=False) as tape:
                    tape.watch(values)
                    again = self._invert_flows(values, condition)
                return tape.gradient(again, values, upstream) * tf.exp(flowed.log_scale)

            return tf.identity(noise), gradient

        return with_gradient((values - flowed.location) * tf.exp(-flowed.log_scale))

    def _invert_flows(self, values: tf.Tensor, condition: Condition) -> tf.Tensor:
        for flow in reversed(self.flows):
            values = _noise_of(flow, values, condition)
        return values


def _density_of(noise: tf.Tensor, flowed: FlowOutput) -> tf.Tensor:
    each = -noise - 2.0 * tf.math.softplus(-noise) - flowed.log_scale
    return tf.reduce_sum(each, [1, 2, 3])


def _noise_of(flow: PixelCNN, values: tf.Tensor, condition: Condition) -> tf.Tensor:
    batch, (height, width) = tf.shape(values)[0], values.shape[1:3]

    def pixel(y: tf.Tensor, x: tf.Tensor, hidden: Hidden) -> tf.Tensor:
        return flow.output.inverse(hidden, values[:, y, x])

    scan = Scan(flow, width, condition, pixel, squash_noise, tf.float32, differentiable=True)
    return run_scan(scan, batch, height)


def squash_noise(noise: tf.Tensor) -> tf.Tensor:
    """Return the noise squashed to [-REACH, REACH], as the PixelCNNs read it."""
    return REACH * tf.tanh(noise / REACH)
