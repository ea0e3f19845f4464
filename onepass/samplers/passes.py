"""Create empty symbols and draw new ones, for samplers that make passes over all symbols."""

from typing import NamedTuple

import tensorflow as tf

from onepass.likelihoods.capabilities import pixel_channels
from onepass.likelihoods.distribution import Distribution
from onepass.step import UnsupportedNetworkError

# Largest share of drawn elements that may differ: rounding moves some across the border of a level.
MOVED = 0.25
# Largest difference of real symbols by rounding, relative to one plus the symbol.
ROUNDING = 1e-3


class Settled(NamedTuple):
    """Symbols that were drawn by passes."""

    symbols: tf.Tensor
    passes: tf.Tensor
    moved: tf.Tensor  # int32 [], number of final symbols that the last pass drew otherwise

    def check_symbols(self) -> tf.Tensor:
        """Return the symbols; raise UnsupportedNetworkError if some depend on those after them."""
        moved, count = int(self.moved), int(tf.size(self.symbols))
        if moved <= MOVED * count:
            return self.symbols
        raise UnsupportedNetworkError(
            f'`method="fixed-point"` does not converge: after {int(self.passes):,} passes,'
            f" {moved:,} of {count:,} elements still change with those after them, as where"
            " activations outgrow their precision in a Fourier transform;"
            ' `method="naive"` draws one element after another.'
        )


def empty_symbols(distribution: Distribution, noise: tf.Tensor) -> tf.Tensor:
    """Return zeros with the shape and type of the symbols for noise [batch, time, channels].

    In raster order, noise is [batch, height, width, noise channels] for whole pixels, else [batch,
    height, width, channels, noise channels].
    """
    dtype = tf.float32 if distribution.levels is None else tf.int32
    sizes, channels = tf.unstack(tf.shape(noise)), pixel_channels(distribution)
    known = [sizes[axis] if size is None else size for axis, size in enumerate(noise.shape)]
    return tf.zeros([*known[:-1], *([] if channels is None else [channels])], dtype)


def sample_symbols(
    parameters: tf.Tensor,
    distribution: Distribution,
    noise: tf.Tensor,
    temperature: float | tf.Tensor,
    like: tf.Tensor,
) -> tf.Tensor:
    """Draw symbols with the shape and type of `like`."""
    drawn = distribution.sample(parameters, noise, temperature)
    return tf.cast(tf.ensure_shape(drawn, like.shape), like.dtype)


def has_moved(symbols: tf.Tensor, drawn: tf.Tensor) -> tf.Tensor:
    """Return which symbols, of two tensors of one type, differ by more than rounding, as bool."""
    if symbols.dtype.is_integer:
        return symbols != drawn
    return tf.abs(symbols - drawn) > ROUNDING * (1.0 + tf.abs(symbols))
