"""Caches of past rows in a step's state: all rows up to the horizon, or the last ones in a ring."""

from collections.abc import Sequence

import tensorflow as tf

from onepass.step.streams import Keys


def read_delays(
    ring: tf.Tensor | None, rows: tf.Tensor, position: tf.Tensor, delays: Sequence[int], axis: int
) -> list[tf.Tensor]:
    """Return the rows at each of several delays.

    Args:
      ring: [size, ...], rows of the last `size` time steps, time first; None if all delays are 0.
      rows: [..., n, ...] with time at `axis`; the first row belongs to time step `position`.
    """
    if ring is None:
        return [rows] * len(delays)
    size = ring.shape[0]
    if rows.shape[axis] == 1:
        return [
            rows if delay == 0 else _row(ring, position + (size - delay), axis) for delay in delays
        ]
    # Slot `position` modulo size contains the oldest row; starting there, rows are in order.
    past = tf.gather(ring, tf.math.floormod(position + tf.range(size), size))
    whole = tf.concat([past, _time_first(rows, axis)], 0)
    starts = [size - delay for delay in delays]
    return [_time_back(whole[start : start + rows.shape[axis]], axis) for start in starts]


def push_rows(ring: tf.Tensor, rows: tf.Tensor, position: tf.Tensor, axis: int) -> tf.Tensor:
    """Return the ring after writing `rows`, the first of which belongs to time step `position`."""
    size, count = ring.shape[0], rows.shape[axis]
    if count == 1:
        slot = tf.math.floormod(position, size)
        row = tf.squeeze(rows, axis)[tf.newaxis]
        return tf.tensor_scatter_nd_update(ring, tf.reshape(slot, [1, 1]), row)
    past = tf.gather(ring, tf.math.floormod(position + tf.range(size), size))
    last = tf.concat([past, _time_first(rows, axis)], 0)[-size:]
    # `last` starts at time step position + count - size; each row goes to slot time modulo size.
    return tf.gather(last, tf.math.floormod(tf.range(size) - position - count, size))


def _row(ring: tf.Tensor, time: tf.Tensor, axis: int) -> tf.Tensor:
    return tf.expand_dims(ring[tf.math.floormod(time, ring.shape[0])], axis)


def _time_first(rows: tf.Tensor, axis: int) -> tf.Tensor:
    rest = [i for i in range(rows.shape.rank) if i != axis]
    return tf.transpose(rows, [axis, *rest])


def _time_back(rows: tf.Tensor, axis: int) -> tf.Tensor:
    order = list(range(1, rows.shape.rank))
    order.insert(axis, 0)
    return tf.transpose(rows, order)


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
