"""Caches of a tensor's rows as keys: all rows up to the horizon, or the last ones in a ring."""

import tensorflow as tf

from onepass.step.rings import push_rows
from onepass.step.streams import Keys


def write_cache(cache: tf.Tensor, rows: tf.Tensor, position: tf.Tensor) -> tf.Tensor:
    """Return a cache [horizon, ...] with `rows` [n, ...] written from time step `position` on."""
    count, size = rows.shape[0], cache.shape[0]
    if count == 1:
        return tf.tensor_scatter_nd_update(cache, tf.reshape(position, [1, 1]), rows)
    shape = [size, *[1] * (cache.shape.rank - 1)]
    times = tf.reshape(tf.range(size), shape)
    padded = tf.pad(rows[:size], [[0, max(size - count, 0)], *[[0, 0]] * (cache.shape.rank - 1)])
    is_new = (times >= position) & (times < position + count)
    return tf.where(is_new, tf.roll(padded, position, 0), cache)


def write_keyed(
    cache: tf.Tensor, rows: tf.Tensor, position: tf.Tensor, keys: Keys, axis: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """Write rows to a cache; return the keys' rows in the order of `keys.times`, and the cache.

    The cache is [horizon, ...], or [window, ...] with time t in slot t modulo the window. Of the
    rows, with time at `axis`, the first belongs to time step `position`.
    """
    rest = [i for i in range(rows.shape.rank) if i != axis]
    back = [1 + rest.index(i) if i != axis else 0 for i in range(rows.shape.rank)]
    if not keys.is_window:
        new = write_cache(cache, tf.transpose(rows, [axis, *rest]), position)
        return tf.transpose(new, back), new
    new, window = push_rows(cache, rows, position, axis), cache.shape[0]
    if rows.shape[axis] == 1:
        return tf.transpose(new, back), new
    # With several rows, the first queries read keys that the new ring has already overwritten.
    past = tf.gather(cache, tf.math.floormod(keys.times[: window - 1], window))
    whole = tf.concat([past, tf.transpose(rows, [axis, *rest])], 0)
    return tf.transpose(whole, back), new


def lengthen_cache(cache: tf.Tensor, length: int) -> tf.Tensor:
    """Return a cache [horizon, ...] padded with zeros up to a longer horizon."""
    return tf.pad(cache, [[0, length - cache.shape[0]], *[[0, 0]] * (cache.shape.rank - 1)])


def as_ring(cache: tf.Tensor, position: tf.Tensor, window: int) -> tf.Tensor:
    """Return the last `window` rows before `position` of a cache [horizon, ...], as a ring."""
    # For each slot, the latest time step before `position` stored in it; negative if there is none.
    times = position - 1 - tf.math.floormod(position - 1 - tf.range(window), window)
    rows = tf.gather(cache, tf.maximum(times, 0))
    shape = [window, *[1] * (cache.shape.rank - 1)]
    return tf.where(tf.reshape(times >= 0, shape), rows, tf.zeros([], cache.dtype))
