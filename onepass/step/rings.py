"""Ring buffers of past rows: the row of time step t is in slot t modulo the ring's size."""

from collections.abc import Sequence

import tensorflow as tf


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
