"""Inverse autoregressive flows over an image: noise to all its pixels in one pass.

    x_t = z_t s(z_<t, c) + mu(z_<t, c),     log|det dx/dz| = sum_t log s_t

where t runs through the pixels in raster order and through the channels of each (Kingma et al.
2016, arXiv 1606.04934; van den Oord et al. 2017, arXiv 1711.10433, section 3.2). mu and s come
from the two stacks of a PixelCNN that read the noise in place of pixels, squashed: what they say is
bounded, so that the search for the noise of an image cannot run off. z is logistic, so that a
number given the noise before it is logistic: its entropy is log s + 2 nats.

A pixel is the level nearest to x, and the outer levels take all that lies beyond: the probability
of an image is an integral of the density over a box, of which there is a lower bound.
"""

import dataclasses
import functools
import math

import tensorflow as tf

from likelihoods import noise as counter_noise
from likelihoods.affine import FlowOutput, compose
from likelihoods.initial import Initial
from likelihoods.levels import nearest, value_of
from likelihoods.pixels import PAIRS
from pixelcnn.networks.conditioning import Condition
from pixelcnn.networks.config import OutputConfig, PixelCNNConfig
from pixelcnn.networks.layers import matmul
from pixelcnn.networks.mode import EXACT, Mode
from pixelcnn.networks.pixelcnn import PixelCNN

INITIAL_SCALE = 0.15  # of an untrained flow's output, 1 being half the range of the levels
SETTLED = 1e-5  # by how much noise may move in a pass of `inverse` that counts as its last
LARGEST = 1e6  # that a pass of `inverse`, or of its gradient, may guess while it waits for others
REACH = 4.0  # noise beyond it looks much alike to the stacks: 1 number in 28


class AffineOutput(tf.Module):
    """Location and log-scale of every channel; those of a pixel depend on each other linearly."""

    def __init__(self, config: OutputConfig, units: int, initial: Initial, scale=1.0, name=None):
        super().__init__(name=name)
        self.channels, self.min_log_scale = config.channels, config.min_log_scale
        self.pairs = PAIRS[config.channels]
        count = 2 * self.channels + len(self.pairs)
        self.kernel = initial.kernel([units, count], "kernel", 0.1)
        start = [0.0] * self.channels + [math.log(scale)] * self.channels + [0.0] * len(self.pairs)
        self.bias = tf.Variable(start, name="bias")

    def __call__(self, hidden, noise) -> FlowOutput:
        """What the noise float32 [..., channels] becomes.

        hidden: of each pixel, given the noise of those before it.
        """
        raw = matmul(tf.cast(hidden.units, tf.float32), self.kernel) + self.bias
        sizes = [self.channels, self.channels, len(self.pairs)]
        location, log_scale, coefficients = tf.split(raw, sizes, -1)
        moved = tf.unstack(location + hidden.prediction, axis=-1)
        for i, (channel, by) in enumerate(self.pairs):
            moved[channel] += coefficients[..., i] * noise[..., by]
        location, log_scale = tf.stack(moved, -1), tf.maximum(log_scale, self.min_log_scale)
        return FlowOutput(noise * tf.exp(log_scale) + location, location, log_scale)


class ImageFlow(tf.Module):
    """Flows, one after another, over images [batch, height, width, channels] of any size.

    Args:
      config: of each flow's stacks, but for the number of layers. layers: of each flow.
      output: levels, channels and the least log-scale. The rest as for a `PixelCNN`.
    """

    def __init__(
        self,
        config: PixelCNNConfig,
        layers: tuple[int, ...],
        output: OutputConfig,
        initial: Initial,
        vector_channels: int = 0,
        map_channels: int = 0,
        name="image_flow",
    ):
        super().__init__(name=name)
        self.output_config = output
        last = len(layers) - 1
        self.flows = [
            PixelCNN(
                dataclasses.replace(config, layers=count),
                output,
                initial,
                vector_channels,
                map_channels,
                0.0,
                f"flow_{i}",
                functools.partial(AffineOutput, scale=INITIAL_SCALE if i == last else 1.0),
            )
            for i, count in enumerate(layers)
        ]

    @property
    def noise_words(self) -> int:
        """Random words that a pixel takes."""
        return self.output_config.channels

    def __call__(self, noise, condition: Condition, mode: Mode = EXACT) -> FlowOutput:
        """What the flows together make of noise float32 [batch, height, width, channels].

        Its output is in units in which the levels span [-1, 1]; it may lie beyond them.
        """
        steps, condition = [], self.flows[0].placed(condition, noise)
        for flow in self.flows:
            hidden = flow.hidden(REACH * tf.tanh(noise / REACH), condition, mode)
            steps.append(flow.output(hidden, noise))
            noise = steps[-1].output
        return compose(steps)

    def sample(self, words, condition: Condition, temperature=1.0):
        """int32 [batch, height, width, channels], images, in one pass.

        words: uint32 [batch, height, width, at least noise_words]. temperature: of the noise.
        """
        noise = counter_noise.logistic_from_bits(words[..., : self.noise_words])
        flowed = self(temperature * noise, condition)
        return nearest(flowed.output, self.output_config.levels)

    def log_density(self, values, condition: Condition, mode: Mode = EXACT):
        """float32 [batch], nats: the log-density of real images, differentiable in all."""
        noise = self.inverse(values, condition, mode)
        log_scale = self(noise, condition, mode).log_scale
        each = -noise - 2.0 * tf.math.softplus(-noise) - log_scale
        return tf.reduce_sum(each, [1, 2, 3])

    def nats(self, levels, condition: Condition, mode: Mode = EXACT, seeds=None):
        """float32 [batch], a lower bound of the log-probability of images, in the mean over seeds.

            log P(levels) >= E_u[log p(value + u width)] + numbers log width

        Theis et al. 2016, arXiv 1511.01844, section 3.1.

        Args:
          levels: int32 [batch, height, width, channels]. condition, mode: as for a call.
          seeds: int32 [batch, 2], of u, uniform in (-1/2, 1/2); None: the same u in every image.
        """
        shape = levels.shape[1:]
        width = 2.0 / (self.output_config.levels - 1)
        seeds, rows = (0, [0]) if seeds is None else (seeds, tf.zeros_like(seeds[:, 0]))
        words = counter_noise.words(seeds, rows, 0, shape[0] * shape[1], shape[2])
        inside = tf.reshape(counter_noise.uniform_from_bits(words), [-1, *shape]) - 0.5
        values = value_of(levels, self.output_config.levels) + width * inside
        return self.log_density(values, condition, mode) + math.prod(shape) * math.log(width)

    def inverse(self, values, condition: Condition, mode: Mode = EXACT):
        """The noise [batch, height, width, channels] that becomes real images, differentiable.

        Iterates z <- (x - mu(z)) / s(z), of which every pass settles one number more at least, to
        its fixed point; the gradient iterates the transposed derivative in the same way (implicit
        differentiation: Bai et al. 2019, arXiv 1909.01377, theorem 1).
        """

        def one_pass(noise):
            flowed = self(noise, condition, mode)
            return (values - flowed.location) * tf.exp(-flowed.log_scale)

        limit = math.prod(values.shape[1:])
        settled = _iterated(lambda noise: _bounded(one_pass(noise)), tf.zeros_like(values), limit)
        settled = tf.stop_gradient(settled)

        @tf.custom_gradient
        def with_gradient(noise):
            def gradient(upstream):
                def transposed(w):
                    with tf.GradientTape() as tape:
                        tape.watch(settled)
                        again = one_pass(settled)
                    return _bounded(upstream + tape.gradient(again, settled, w))

                return _iterated(transposed, upstream, limit)

            return tf.identity(noise), gradient

        return with_gradient(one_pass(settled))


def _bounded(guess):
    """The guess where it is finite, within bounds: what follows from it stays finite."""
    return tf.clip_by_value(tf.where(tf.math.is_finite(guess), guess, 0.0), -LARGEST, LARGEST)


def _iterated(step, start, limit: int):
    """The fixed point of `step` from `start` on, reached in at most `limit` steps."""

    def advance(count, before, _):
        after = step(before)
        # Not `moved > SETTLED`: a gradient that waits for others may be infinite, or no number.
        still = tf.reduce_all(tf.abs(after - before) <= SETTLED * tf.maximum(1.0, tf.abs(after)))
        return count + 1, after, still

    start = (tf.constant(0), tf.stop_gradient(start), tf.constant(False))
    going_on = lambda count, _, still: (count < limit) & ~still  # noqa: E731
    return tf.while_loop(going_on, advance, start, maximum_iterations=limit)[1]
