"""Adapter from PixelCNNs to `autoregressive`, which samples and evaluates networks of symbols."""

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from onepass.foundation.rules import UserError
from onepass.likelihoods import Integers, noise
from onepass.model import Autoregressive
from onepass.networks.conditions import NOTHING
from onepass.networks.symbols import raster_positions
from onepass.samplers import register
from pixelcnn.density import ImageDensity, condition_specs, sample
from pixelcnn.networks.layers import NONE, Condition, Hidden, Output
from pixelcnn.networks.pixelcnn import FRONT_ROWS, PixelCNN

ACTIVE_ROWS = 16  # rows per fixed-point pass; more rows need fewer passes, which take longer
# Predicts the parameters that the next pass will compute, from the network, the parameters for the
# old levels, the old levels, the newly sampled levels, and the condition.
Forecast = Callable[[PixelCNN, tf.Tensor, tf.Tensor, tf.Tensor, Condition], tf.Tensor]


def autoregressive(density: ImageDensity) -> Autoregressive:
    """Return a PixelCNN as a model of int32 images, with dicts of inputs as conditions."""
    if density.pixelcnn is None:
        raise UserError("Only a PixelCNN draws in raster order; a multiscale model draws groups.")
    config = density.config
    symbols = PixelSymbols(density.pixelcnn, density.conditioner)
    symbols.conditions = {
        name: tf.TensorSpec([None, *spec.shape[1:]], spec.dtype)
        for name, spec in condition_specs(config).items()
    }
    if config.conditioning.kind == "class":
        symbols.class_counts = {"label": config.conditioning.classes}
    distribution = PixelDistribution(density.pixelcnn.output, config.output)
    return Autoregressive.of_symbols(
        symbols, distribution, Integers(config.output.levels), "raster"
    )


def linear_forecast(
    network: PixelCNN,
    parameters: tf.Tensor,
    levels: tf.Tensor,
    newer: tf.Tensor,
    condition: Condition,
) -> tf.Tensor:
    """Return the parameters with the linear prediction, which matters most, from newer pixels."""
    units = parameters[..., : -levels.shape[-1]]
    return tf.concat([units, network.prediction(newer, condition)], -1)


class PixelSymbols:
    """A PixelCNN as a network over pixels in raster order, for `Autoregressive.of_symbols`.

    The parameters of a pixel's distribution are its hidden state. Without a `conditioner` of
    conditions given by name, they are already encoded. `forecast` predicts the parameters of the
    next fixed-point pass; None: only the newly sampled values are used.
    """

    has_step = False
    block = 1
    inputs = tf.TensorSpec([None, None, None, None], tf.int32)
    active_rows = ACTIVE_ROWS

    def __init__(
        self,
        network: PixelCNN,
        conditioner: Any = None,
        forecast: Forecast | None = linear_forecast,
    ) -> None:
        self.network, self._conditioner = network, conditioner
        self.conditions: dict[str, tf.TensorSpec] = {}
        self.class_counts: dict[str, int] = {}
        self.rows_above = context_rows(network)
        self.forecast = forecast and functools.partial(forecast, network)

    def parameters(self, symbols: tf.Tensor, condition: Any = NOTHING) -> tf.Tensor:
        """Return each pixel's parameters given earlier pixels, [batch, height, width, ...]."""
        hidden = self.network.compute_hidden(symbols, self.prepare_condition(condition, symbols))
        return tf.concat([tf.cast(hidden.units, tf.float32), hidden.prediction], -1)

    def prepare_condition(self, condition: Any, like: tf.Tensor) -> Condition:
        """Return the encoded condition, with coordinates for images with the shape of `like`."""
        if isinstance(condition, Condition):  # an earlier result of this method
            return condition
        return self.network.add_coordinates(self.encode_condition(condition), like)

    def encode_condition(self, condition: Any) -> Condition:
        """Return the encoding of conditions given by name, without coordinates."""
        return NONE if self._conditioner is None else self._conditioner(condition.fixed)

    def rows_of(self, condition: Condition, at: tf.Tensor) -> Condition:
        """Return the condition of the image rows at `at`, (image, row) int32 [images, rows, 2]."""
        vector, map_ = condition
        return Condition(
            None if vector is None else tf.gather(vector, at[:, 0, 0]),
            # A map of only coordinates is shared by all images.
            None if map_ is None else tf.gather_nd(map_, at * [int(map_.shape[0] != 1), 1]),
        )

    def positions(self, symbols: tf.Tensor) -> tf.Tensor:
        """Return the position of each pixel in raster order, int32 [1, height, width, 1]."""
        return raster_positions(symbols)


def context_rows(network: PixelCNN) -> int:
    """Return the number of rows above a pixel in its receptive field."""
    return FRONT_ROWS + sum(network.config.layer_dilations)


class PixelDistribution:
    """The distribution of a pixel, as a function of the network's hidden state.

    With `guidance`, the second half of a batch repeats the first under the null condition.
    """

    def __init__(self, output: Output, config: Any, guidance: Any = None) -> None:
        self._output, self.levels, self.channels = output, config.levels, config.channels
        self._guidance, self.twins = guidance, 1 if guidance is None else 2
        self.noise_channels = output.noise_words
        self.num_parameters = output.hidden_units + config.channels

    def log_prob(self, parameters: tf.Tensor, symbols: tf.Tensor) -> tf.Tensor:
        """Return the log-probability of pixels int32 [..., channels], float32 [...], in nats."""
        return self._output.log_prob(self._split_hidden(parameters), symbols)

    def sample(
        self, parameters: tf.Tensor, noise: tf.Tensor, temperature: float | tf.Tensor = 1.0
    ) -> tf.Tensor:
        """Draw pixels int32 [..., channels], a pure function of parameters and `noise`."""
        return self._output.sample(
            self._split_hidden(parameters), noise, temperature, self._guidance
        )

    def mode(self, parameters: tf.Tensor) -> tf.Tensor:
        """Return the most probable level of each channel given those before it, int32."""
        hidden, drawn = self._split_hidden(parameters), list[tf.Tensor]()
        for _ in range(self.channels):
            table = self._output.level_log_probs(hidden, drawn)
            drawn.append(tf.argmax(table, axis=-1, output_type=tf.int32))
        return tf.stack(drawn, axis=-1)

    def noise(
        self, seed: int | tf.Tensor, rows: tf.Tensor, start: int | tf.Tensor, length: int
    ) -> tf.Tensor:
        """Return the random words of every pixel, uint32 [rows, length, noise_channels]."""
        return noise.words(seed, rows, start, length, self.noise_channels)

    def _split_hidden(self, parameters: tf.Tensor) -> Hidden:
        sizes = [self.num_parameters - self.channels, self.channels]
        units, prediction = tf.split(parameters, sizes, -1)
        return Hidden(units, prediction)


@register(PixelCNN, object, method="cached")
def cached_rows(network: PixelCNN, distribution: Any) -> Any:
    """Return the cached sampler, compiled once for each shape."""

    @tf.function(jit_compile=True, autograph=False)
    def program(words: tf.Tensor, condition: Condition, temperature: Any) -> tf.Tensor:
        return sample(network, words, condition, temperature=temperature)

    def run(
        symbols: PixelSymbols,
        distribution: Any,
        noise: tf.Tensor,
        condition: Any,
        temperature: float | tf.Tensor,
    ) -> tf.Tensor:
        return program(noise, symbols.encode_condition(condition), temperature)

    return run
