"""Rules for operations that read and write elements by their indices, and that order them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from onepass.networks.from_torch.table import (
    as_dtype,
    as_shape,
    aten,
    axis_of,
    broadcast_shape,
    is_tensor,
    moved_back,
    product,
    sizes,
    with_last,
)
from onepass.step.replay import static_value

Indices = Sequence[tf.Tensor | None]


def _positive(index: tf.Tensor, size: Any) -> tf.Tensor:
    known = tf.get_static_value(index)
    if known is not None and (not known.size or known.min() >= 0):
        return index
    return tf.where(index < 0, index + tf.cast(size, index.dtype), index)


def _indexed_first(x: tf.Tensor, indices: Indices) -> tuple[tf.Tensor, tf.Tensor, list[int]]:
    """Return a tensor whose indexed axes come first, their stacked indices, and the order."""
    axes = [axis for axis, index in enumerate(indices) if index is not None]
    known = sizes(x)
    found = [_positive(tf.cast(indices[axis], tf.int64), known[axis]) for axis in axes]
    shape = broadcast_shape(found)
    places = tf.stack([tf.broadcast_to(index, shape) for index in found], -1)
    order = [*axes, *(n for n in range(x.shape.rank) if n not in axes)]
    return (x if order == sorted(order) else tf.transpose(x, order)), places, order


def _moves_to(indices: Indices) -> int:
    axes = [axis for axis, index in enumerate(indices) if index is not None]
    return axes[0] if axes == list(range(axes[0], axes[0] + len(axes))) else 0


def _all_of(x: tf.Tensor, indices: Indices) -> tf.Tensor | None:
    """Return a tensor whose indexed axes come first, if its indices count all their entries.

    Masks of transformers are indexed so. A step cannot be derived from an index of time steps, but
    from an axis that moves. It is None if an index is another one, or not known.
    """
    places: dict[int, int] = {}  # of the indexed axes in the shape of the indices
    given = {axis: index for axis, index in enumerate(indices) if index is not None}
    rank = max(index.shape.rank for index in given.values())
    if tf.executing_eagerly() or not x.shape.is_fully_defined():
        return None
    for axis, index in given.items():
        known = static_value(index)
        if known is None or not np.array_equal(known.ravel(), np.arange(x.shape[axis])):
            return None
        lead = rank - known.ndim
        places[axis] = lead + int(np.argmax(known.shape)) if known.size > 1 else -1 - axis
    if len(set(places.values())) < len(places):
        return None
    order = sorted(places, key=lambda axis: places[axis])
    order += [axis for axis in range(x.shape.rank) if axis not in places]
    moved = x if order == sorted(order) else tf.transpose(x, order)
    shape = [*broadcast_shape(list(given.values())), *moved.shape[len(places) :]]
    return tf.reshape(moved, shape)


@aten("index", "_unsafe_index")
def _index(x: tf.Tensor, indices: Indices) -> tf.Tensor:
    given = [index for index in indices if index is not None]
    if any(index.dtype.is_bool for index in given):
        raise ValueError(
            "an index must be of integers, since a mask selects any number of elements"
        )
    if len(given) == 1:
        axis = _moves_to(indices)
        return tf.gather(x, _positive(given[0], sizes(x)[axis]), axis=axis)
    found, to = _all_of(x, indices), _moves_to(indices)
    rank = max(index.shape.rank for index in given)
    if found is None:
        moved, places, _ = _indexed_first(x, indices)
        found = tf.gather_nd(moved, places)
    order = [*range(rank, rank + to), *range(rank), *range(rank + to, found.shape.rank)]
    return found if not to else tf.transpose(found, order)


@aten("index_put", "_unsafe_index_put")
def _index_put(
    x: tf.Tensor, indices: Indices, values: tf.Tensor, accumulate: bool = False
) -> tf.Tensor:
    given = [index for index in indices if index is not None]
    values = tf.cast(values, x.dtype)
    if given[0].dtype.is_bool:
        if len(given) > 1 or product(values.shape.as_list() or [1]) != 1 or indices[0] is None:
            raise ValueError("a mask must be the first index and have one value")
        mask = tf.reshape(
            given[0], as_shape([*sizes(given[0]), *[1] * (x.shape.rank - given[0].shape.rank)])
        )
        values = tf.reshape(values, [])
        return tf.where(mask, x + values if accumulate else values, x)
    moved, places, order = _indexed_first(x, indices)
    rank, to = places.shape.rank - 1, _moves_to(indices)
    rest = sizes(moved)[places.shape[-1] :]
    shape = [*rest[:to], *sizes(places)[:-1], *rest[to:]]
    values = tf.broadcast_to(values, as_shape(shape))
    back = [*range(to, to + rank), *range(to), *range(to + rank, len(shape))]
    values = tf.transpose(values, back) if to else values
    write = tf.tensor_scatter_nd_add if accumulate else tf.tensor_scatter_nd_update
    written = write(moved, places, values)
    return tf.transpose(written, [order.index(n) for n in range(len(order))])


@aten("index_select")
def _index_select(x: tf.Tensor, dim: int, index: tf.Tensor) -> tf.Tensor:
    return tf.gather(x, tf.reshape(index, [-1]), axis=axis_of(x, dim))


aten("embedding")(lambda weight, index, *ignored: tf.gather(weight, index))
aten("take")(lambda x, index: tf.gather(tf.reshape(x, [-1]), _positive(index, product(sizes(x)))))


@aten("gather", "take_along_dim")
def _gather(x: tf.Tensor, dim: int, index: tf.Tensor, sparse_grad: bool = False) -> tf.Tensor:
    if is_tensor(dim):  # `take_along_dim(x, index, dim)`
        x, index, dim = x, dim, index
    axis = axis_of(x, dim)
    part = x[
        tuple(slice(None) if n == axis else slice(size) for n, size in enumerate(sizes(index)))
    ]
    moved, order = with_last(part, axis)
    places, _ = with_last(index, axis)
    return moved_back(tf.gather(moved, places, batch_dims=x.shape.rank - 1), order)


def _positions(index: tf.Tensor, axis: int) -> tf.Tensor:
    """Return the complete indices [..., rank] of elements that `scatter` writes."""
    grid = tf.meshgrid(*(tf.range(tf.cast(n, tf.int64)) for n in sizes(index)), indexing="ij")
    grid[axis] = tf.cast(index, tf.int64)
    return tf.stack(grid, -1)


WRITES = {
    None: tf.tensor_scatter_nd_update,
    **dict.fromkeys(("add", "sum"), tf.tensor_scatter_nd_add),
    "amax": tf.tensor_scatter_nd_max,
    "amin": tf.tensor_scatter_nd_min,
}


@aten("scatter", "scatter_reduce")
def _scatter(
    x: tf.Tensor,
    dim: int,
    index: tf.Tensor,
    source: Any,
    reduce: str | None = None,
    include_self: bool = True,
) -> tf.Tensor:
    if reduce not in WRITES or not include_self:
        raise ValueError(f"`reduce` must be one of add, sum, amax and amin, got {reduce!r}")
    if is_tensor(source) and source.shape.rank:
        source = source[tuple(slice(size) for size in sizes(index))]
    source = tf.broadcast_to(as_dtype(source, x.dtype), as_shape(sizes(index)))
    return WRITES[reduce](x, _positions(index, axis_of(x, dim)), source)


aten("scatter_add")(lambda x, dim, index, source: _scatter(x, dim, index, source, "add"))


def _put_along_axis(
    x: tf.Tensor, dim: int, index: tf.Tensor, source: Any, accumulate: bool = False
) -> tf.Tensor:
    indices = [*[None] * axis_of(x, dim), tf.reshape(index, [-1])]
    return _index_put(x, indices, source, accumulate)


@aten("index_add")
def _index_add(
    x: tf.Tensor, dim: int, index: tf.Tensor, source: tf.Tensor, alpha: Any = 1
) -> tf.Tensor:
    return _put_along_axis(x, dim, index, source * as_dtype(alpha, source.dtype), True)


@aten("index_copy", "index_fill")
def _index_copy(x: tf.Tensor, dim: int, index: tf.Tensor, source: Any) -> tf.Tensor:
    return _put_along_axis(x, dim, index, as_dtype(source, x.dtype))


@aten("one_hot")
def _one_hot(x: tf.Tensor, classes: int = -1) -> tf.Tensor:
    if classes < 0:
        raise ValueError("`num_classes` must be given to one_hot")
    return tf.one_hot(x, classes, dtype=tf.int64)


def _int64(index: tf.Tensor) -> tf.Tensor:
    return tf.cast(index, tf.int64)


@aten("topk")
def _topk(
    x: tf.Tensor, k: int, dim: int = -1, largest: bool = True, is_sorted: bool = True
) -> list[tf.Tensor]:
    moved, order = with_last(x, axis_of(x, dim))
    values, index = tf.math.top_k(moved if largest else -moved, k)
    values = values if largest else -values
    return [moved_back(values, order), moved_back(_int64(index), order)]


@aten("sort")
def _sort(
    x: tf.Tensor, dim: int = -1, descending: bool = False, stable: Any = None
) -> list[tf.Tensor]:
    index = _argsort(x, dim, descending)
    return [_gather(x, dim, index), index]


aten("sort.stable")(lambda x, stable, dim=-1, descending=False: _sort(x, dim, descending))


@aten("argsort")
def _argsort(
    x: tf.Tensor, dim: int = -1, descending: bool = False, stable: bool = True
) -> tf.Tensor:
    moved, order = with_last(x, axis_of(x, dim))
    moved = tf.cast(moved, tf.int32) if moved.dtype.is_bool else moved
    index = tf.argsort(moved, direction="DESCENDING" if descending else "ASCENDING", stable=True)
    return moved_back(_int64(index), order)


@aten("searchsorted")
def _searchsorted(
    borders: tf.Tensor, x: tf.Tensor, out_int32: bool = False, right: bool = False, side: Any = None
) -> tf.Tensor:
    side = "right" if right or side == "right" else "left"
    if borders.shape.rank == 1:
        flat = tf.searchsorted(borders, tf.reshape(x, [-1]), side)
        return _int64(tf.reshape(flat, as_shape(sizes(x))))
    return _int64(tf.searchsorted(borders, x, side))


@aten("bucketize")
def _bucketize(
    x: tf.Tensor, borders: tf.Tensor, out_int32: bool = False, right: bool = False
) -> tf.Tensor:
    return _searchsorted(borders, tf.cast(x, borders.dtype), right=right)


@aten("histc")
def _histc(x: tf.Tensor, bins: int = 100, low: Any = 0, high: Any = 0) -> tf.Tensor:
    if low == high:
        raise ValueError("`min` and `max` must be given to histc")
    wide = tf.cast(x, tf.float64)
    places = tf.floor((wide - low) * bins / (high - low))
    places = tf.where((wide >= low) & (wide <= high), tf.minimum(places, bins - 1.0), -1.0)
    counts = tf.reshape(tf.cast(places, tf.int32), [-1, 1]) == tf.range(bins)
    return tf.reduce_sum(tf.cast(counts, x.dtype), 0)
