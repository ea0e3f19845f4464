"""A PixelCNN as a network of symbols, for the samplers and densities of `autoregressive`."""

from typing import Any

import tensorflow as tf

from autoregressive.model import Autoregressive
from autoregressive.samplers import register
from autoregressive.symbols import raster_positions
from foundation.errors import UserError
from likelihoods import Integers, noise
from pixelcnn.density import ImageDensity
from pixelcnn.networks.conditioning import Condition
from pixelcnn.networks.outputs import Hidden, Output
from pixelcnn.networks.pixelcnn import PixelCNN
from pixelcnn.sampling.pixelcnn_sampler import sample

Batch = dict[str, tf.Tensor]


def autoregressive(density: ImageDensity) -> Autoregressive:
    """Return a PixelCNN as a model of images int32 [batch, height, width, channels].

    Its condition is a dict of what the conditioner reads, such as {"label": int32 [batch]}.

    Raises:
      UserError: the density belongs to a multiscale model, which draws groups of pixels at once.
    """
    if density.pixelcnn is None:
        raise UserError("Only a PixelCNN draws in raster order; a multiscale model draws groups.")
    symbols = PixelSymbols(density.pixelcnn, density.conditioner)
    distribution = PixelDistribution(density.pixelcnn.output, density.config.output)
    return Autoregressive.of_symbols(
        symbols, distribution, Integers(density.config.output.levels), "raster"
    )


class PixelSymbols:
    """A PixelCNN over levels in raster order; its parameters are its hidden states."""

    condition = None
    has_step = False
    inputs = tf.TensorSpec([None, None, None, None], tf.int32)

    def __init__(self, network: PixelCNN, conditioner: Any) -> None:
        self.network, self.conditioner = network, conditioner

    def parameters(self, symbols: tf.Tensor, condition: Batch | None = None) -> tf.Tensor:
        """Return each pixel's parameters given those before, [batch, height, width, parameters]."""
        hidden = self.network(symbols, self.conditioner(condition or {}))
        return tf.concat([tf.cast(hidden.units, tf.float32), hidden.prediction], -1)

    @property
    def call(self) -> Any:
        """Raise UserError, since the network is stored in a model folder with its configuration."""
        raise UserError("A shipped kind of network is stored in its own model folder.")

    def positions(self, symbols: tf.Tensor) -> tf.Tensor:
        """Return int32 [1, height, width, 1]: all channels of a pixel have one position."""
        return raster_positions(symbols)


class PixelDistribution:
    """The distribution of a pixel that an output layer reads from a hidden state.

    See `likelihoods.distribution.Distribution`. Its noise consists of the random words themselves.
    """

    def __init__(self, output: Output, config: Any) -> None:
        self._output, self.levels, self.channels = output, config.levels, config.channels
        self.noise_channels = output.noise_words
        self.num_parameters = output.hidden_units + config.channels

    def log_prob(self, parameters: tf.Tensor, symbols: tf.Tensor) -> tf.Tensor:
        """Return the log-probability float32 [...], nats, of pixels int32 [..., channels]."""
        return self._output.log_prob(self._hidden(parameters), symbols)

    def sample(
        self, parameters: tf.Tensor, noise: tf.Tensor, temperature: float | tf.Tensor = 1.0
    ) -> tf.Tensor:
        """Return pixels int32 [..., channels], a function of the parameters and the words."""
        return self._output.sample(self._hidden(parameters), noise, temperature)

    def mode(self, parameters: tf.Tensor) -> tf.Tensor:
        """Return the most probable level of each channel given those before it."""
        hidden, drawn = self._hidden(parameters), list[tf.Tensor]()
        for _ in range(self.channels):
            table = self._output.level_log_probs(hidden, drawn)
            drawn.append(tf.argmax(table, axis=-1, output_type=tf.int32))
        return tf.stack(drawn, axis=-1)

    def noise(
        self, seed: int | tf.Tensor, rows: tf.Tensor, start: int | tf.Tensor, length: int
    ) -> tf.Tensor:
        """Return random words uint32 [rows, length, noise_channels], a pixel's noise."""
        return noise.words(seed, rows, start, length, self.noise_channels)

    def _hidden(self, parameters: tf.Tensor) -> Hidden:
        units = self.num_parameters - self.channels
        return Hidden(*tf.split(parameters, [units, self.channels], -1))


@register(PixelCNN, object)
def cached_rows(network: PixelCNN, distribution: Any) -> Any:
    """Return the sampler that caches the rows of every layer, as one program for each shape."""

    @tf.function(jit_compile=True, autograph=False)
    def program(
        words: tf.Tensor, condition: Condition, temperature: float | tf.Tensor
    ) -> tf.Tensor:
        return sample(network, words, condition, temperature=temperature)

    def run(
        symbols: PixelSymbols,
        distribution: Any,
        noise: tf.Tensor,
        condition: Batch | None,
        temperature: float | tf.Tensor,
    ) -> tf.Tensor:
        return program(noise, symbols.conditioner(condition or {}), temperature)

    return run
