"""Passes over a window of rows of an image, in place of passes over the whole of it.

Rows settle from the top. What has settled is only read as far as the network reads upwards, and
what is far below is not computed before its turn.
"""

from typing import Any

import tensorflow as tf

from autoregressive.samplers.passes import redrawn
from autoregressive.symbols import SymbolNetwork
from likelihoods.distribution import Distribution

ACTIVE = 6  # rows of a window that are drawn: more would settle seldom
WORTH = 1.5  # an image must be so many times as high as a window


def window_of(network: SymbolNetwork, height: int | None) -> tuple[int, int] | None:
    """Return the rows of a window and those of it above what is drawn, or None: no windows.

    Args:
      network: a network of images; `rows_above` says how many rows upwards it reads.
      height: height of the images, in pixels; None: unknown.
    """
    above = None if height is None else getattr(network, "rows_above", None)
    if above is None or height is None or height < WORTH * (above + ACTIVE):
        return None
    return above + ACTIVE, above


def by_windows(
    network: SymbolNetwork,
    distribution: Distribution,
    noise: tf.Tensor,
    unsettled: tf.Tensor,
    symbols: tf.Tensor,
    temperature: Any,
    window: tuple[int, int],
) -> tf.Tensor:
    """Return the symbols of images as passes over windows of rows settle them.

    Args:
      network: a network of images.
      distribution: the distribution of a symbol.
      noise: the noise of all positions, [batch, height, width, ..., noise channels].
      unsettled: whether the symbols may change; if not, they are returned.
      symbols: symbols to start from, any levels, [batch, height, width, channels].
      temperature: 1 samples the distribution, smaller values are closer to its mode.
      window: the rows of a window, and those of it above the first drawn row, from `window_of`.
    """
    size, above = window
    height = symbols.shape[1]
    places = tf.range(height)

    def body(settled: tf.Tensor, symbols: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        start = tf.clip_by_value(settled - above, 0, height - size)
        rows = start + tf.range(size)
        before, own = (tf.gather(x, rows, axis=1) for x in (symbols, noise))
        drawn = redrawn(network, distribution, before, own, None, temperature)
        drawn = tf.where((rows >= settled)[:, tf.newaxis, tf.newaxis], drawn, before)
        changed = tf.reduce_any(drawn != before, [0, 2, 3])
        first = tf.reduce_min(tf.where(changed, rows, start + size))
        taken = tf.gather(drawn, tf.clip_by_value(places - start, 0, size - 1), axis=1)
        inside = (places >= start) & (places < start + size)
        return first, tf.where(inside[:, tf.newaxis, tf.newaxis], taken, symbols)

    begun = tf.where(unsettled, 0, height)
    most = tf.size(network.positions(symbols)) + height
    return tf.while_loop(
        lambda settled, _: settled < height, body, (begun, symbols), maximum_iterations=most
    )[1]
