"""Rules for operations that move elements: shapes, axes, parts, padding and repetition."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from onepass.networks.from_torch.table import (
    along,
    as_shape,
    aten,
    axes_of,
    axis_of,
    broadcast_shape,
    is_tensor,
    product,
    promote_dtypes,
    result_type,
    sizes,
)

LAST = (1 << 31) - 1  # a slice that ends after it has no end
Sizes = Sequence[Any]


# Operations that one function of TensorFlow computes, once their arguments are in its form.
DIRECT: dict[str, Callable[..., Any]] = {
    "view reshape _unsafe_view view_copy _reshape_alias": lambda x, shape, *strides: tf.reshape(
        x, as_shape(shape)
    ),
    "view_as reshape_as": lambda x, other: tf.reshape(x, as_shape(sizes(other))),
    "permute": lambda x, dims: tf.transpose(x, axes_of(x, dims)),
    "numpy_T": tf.transpose,
    "t mT": lambda x: _transpose(x, -2, -1) if x.shape.rank > 1 else x,
    "mH matrix_H adjoint": lambda x: tf.math.conj(_transpose(x, -2, -1)),
    "unsqueeze": lambda x, dim: tf.expand_dims(x, axis_of(x, dim, 1)),
    "expand_as": lambda x, other: tf.broadcast_to(x, as_shape(sizes(other))),
    "broadcast_tensors": lambda xs: [tf.broadcast_to(x, broadcast_shape(xs)) for x in xs],
    "meshgrid": lambda xs, indexing="ij": tf.meshgrid(*xs, indexing=indexing),
    "unbind": lambda x, dim=0: tf.unstack(x, axis=axis_of(x, dim)),
    "flip": lambda x, dims: tf.reverse(x, axes_of(x, dims)) if dims else x,
    "sym_size": lambda x, dim: sizes(x)[axis_of(x, dim)],
    "sym_numel numel": lambda x: product(sizes(x)),
}
for _names, _function in DIRECT.items():
    aten(*_names.split())(_function)


@aten("unflatten")
def _unflatten(x: tf.Tensor, dim: int, shape: Sizes) -> tf.Tensor:
    known, dim = sizes(x), axis_of(x, dim)
    return tf.reshape(x, as_shape([*known[:dim], *shape, *known[dim + 1 :]]))


@aten("flatten")
def _flatten(x: tf.Tensor, start: int = 0, end: int = -1) -> tf.Tensor:
    known, first, last = sizes(x), axis_of(x, start), axis_of(x, end)
    merged = product(known[first : last + 1])
    return tf.reshape(x, as_shape([*known[:first], merged, *known[last + 1 :]]))


@aten("transpose", "swapaxes", "swapdims")
def _transpose(x: tf.Tensor, first: int, second: int) -> tf.Tensor:
    order = list(range(x.shape.rank))
    first, second = axis_of(x, first), axis_of(x, second)
    if first == second:
        return x
    order[first], order[second] = second, first
    return tf.transpose(x, order)


@aten("movedim", "moveaxis")
def _movedim(x: tf.Tensor, source: Any, target: Any) -> tf.Tensor:
    found, wanted = axes_of(x, source), axes_of(x, target)
    order = [n for n in range(x.shape.rank) if n not in found]
    for place, axis in sorted(zip(wanted, found, strict=True)):
        order.insert(place, axis)
    return tf.transpose(x, order)


@aten("squeeze")
def _squeeze(x: tf.Tensor, dims: Any = None) -> tf.Tensor:
    axes = [axis for axis in axes_of(x, dims) if x.shape[axis] == 1]
    return tf.squeeze(x, axes) if axes else x  # without axes, it would take all


@aten("expand", "broadcast_to")
def _expand(x: tf.Tensor, shape: Sizes, implicit: bool = False) -> tf.Tensor:
    lead = len(shape) - x.shape.rank
    known = [None] * lead + sizes(x)
    wanted = [
        own if not is_tensor(size) and size == -1 else size
        for own, size in zip(known, shape, strict=True)
    ]
    return tf.broadcast_to(x, as_shape(wanted))


@aten("repeat", "tile")
def _repeat(x: tf.Tensor, repeats: Sizes) -> tf.Tensor:
    repeats = [*[1] * (x.shape.rank - len(repeats)), *repeats]
    lead = [1] * (len(repeats) - x.shape.rank)
    x = tf.reshape(x, as_shape([*lead, *sizes(x)])) if lead else x
    return tf.tile(x, as_shape(repeats))


@aten("repeat_interleave")
def repeat_interleave(
    x: tf.Tensor, repeats: Any, dim: int | None = None, output_size: Any = None
) -> tf.Tensor:
    """Return a tensor with every element, or row along an axis, repeated."""
    x = tf.reshape(x, [-1]) if dim is None else x
    axis = axis_of(x, dim or 0)
    if is_tensor(repeats):
        return tf.repeat(x, repeats, axis)
    known = sizes(x)
    wide = tf.tile(
        tf.expand_dims(x, axis + 1), [1] * (axis + 1) + [repeats] + [1] * (len(known) - axis - 1)
    )
    return tf.reshape(wide, as_shape([*known[:axis], known[axis] * repeats, *known[axis + 1 :]]))


@aten("cat", "concat", "concatenate")
def _cat(xs: list[tf.Tensor], dim: int = 0) -> tf.Tensor:
    # Of tensors with one axis, PyTorch skips the empty ones.
    rank = max(x.shape.rank for x in xs)
    xs = promote_dtypes(*(x for x in xs if x.shape.rank == rank), dtype=result_type(*xs))
    return tf.concat(xs, axis_of(xs[0], dim))


@aten("stack")
def _stack(xs: list[tf.Tensor], dim: int = 0) -> tf.Tensor:
    xs = promote_dtypes(*xs)
    return tf.stack(xs, axis_of(xs[0], dim, 1))


def _length(x: tf.Tensor, axis: int) -> int:
    if x.shape[axis] is None:
        raise ValueError("a tensor must be split along an axis of known size")
    return int(x.shape[axis])


@aten("split", "split_with_sizes", "unsafe_split")
def _split(x: tf.Tensor, parts: Any, dim: int = 0) -> list[tf.Tensor]:
    axis = axis_of(x, dim)
    if isinstance(parts, int):
        size = _length(x, axis)
        parts = [min(parts, size - start) for start in range(0, max(size, 1), parts)]
    return tf.split(x, list(parts), axis)


@aten("chunk", "unsafe_chunk")
def _chunk(x: tf.Tensor, count: int, dim: int = 0) -> list[tf.Tensor]:
    return _split(x, -(-_length(x, axis_of(x, dim)) // count), dim)


@aten("tensor_split")
def _tensor_split(x: tf.Tensor, parts: Any, dim: int = 0) -> list[tf.Tensor]:
    axis = axis_of(x, dim)
    size = _length(x, axis)
    if isinstance(parts, int):
        small, more = divmod(size, parts)
        return tf.split(x, [small + (n < more) for n in range(parts)], axis)
    ends = [*parts, size]
    return [x[along(axis, start, end)] for start, end in zip([0, *parts], ends, strict=True)]


@aten("slice")
def _slice(
    x: tf.Tensor, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> tf.Tensor:
    end = None if end is not None and not is_tensor(end) and end > LAST else end
    if (start is None or (not is_tensor(start) and start == 0)) and end is None and step == 1:
        return x
    return x[along(axis_of(x, dim), start, end, step)]


@aten("select")
def _select(x: tf.Tensor, dim: int, index: Any) -> tf.Tensor:
    if is_tensor(index) and index.dtype == tf.int64:
        index = tf.cast(index, tf.int32)
    return x[(*[slice(None)] * axis_of(x, dim), index)]


@aten("narrow")
def _narrow(x: tf.Tensor, dim: int, start: Any, length: Any) -> tf.Tensor:
    axis = axis_of(x, dim)
    if not is_tensor(start) and start < 0:
        start = start + sizes(x)[axis]
    return x[along(axis, start, start + length)]


@aten("slice_scatter")
def _slice_scatter(
    x: tf.Tensor, source: tf.Tensor, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> tf.Tensor:
    axis = axis_of(x, dim)
    places = tf.range(sizes(x)[axis])[
        slice(start, None if end is None or end > LAST else end, step)
    ]
    first = [axis, *(n for n in range(x.shape.rank) if n != axis)]
    moved, source = (tf.transpose(each, first) for each in (x, tf.cast(source, x.dtype)))
    written = tf.tensor_scatter_nd_update(moved, places[:, None], source)
    return tf.transpose(written, [first.index(n) for n in range(len(first))])


@aten("select_scatter")
def _select_scatter(x: tf.Tensor, source: tf.Tensor, dim: int, index: int) -> tf.Tensor:
    axis = axis_of(x, dim)
    is_there = tf.range(sizes(x)[axis]) == (index if index >= 0 else index + sizes(x)[axis])
    is_there = tf.reshape(is_there, [-1] + [1] * (x.shape.rank - axis - 1))
    return tf.where(is_there, tf.cast(tf.expand_dims(source, axis), x.dtype), x)


@aten("roll")
def _roll(x: tf.Tensor, shifts: Any, dims: Any = ()) -> tf.Tensor:
    shifts = shifts if isinstance(shifts, list | tuple) else [shifts]
    if not dims:
        return tf.reshape(_roll(tf.reshape(x, [-1]), shifts, [0]), as_shape(sizes(x)))
    for shift, axis in zip(shifts, axes_of(x, dims), strict=True):
        cut = (-shift) % sizes(x)[axis]
        x = tf.concat([x[along(axis, cut, None)], x[along(axis, 0, cut)]], axis)
    return x


@aten("unfold")
def _unfold(x: tf.Tensor, dim: int, size: int, step: int) -> tf.Tensor:
    axis = axis_of(x, dim)
    span = (sizes(x)[axis] - size) // step * step + 1
    return tf.stack([x[along(axis, n, n + span, step)] for n in range(size)], -1)


@aten("diagonal")
def _diagonal(x: tf.Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> tf.Tensor:
    first, second = axis_of(x, dim1), axis_of(x, dim2)
    rest = [n for n in range(x.shape.rank) if n not in (first, second)]
    return tf.linalg.diag_part(tf.transpose(x, [*rest, first, second]), k=offset)


@aten("pixel_shuffle")
def _pixel_shuffle(x: tf.Tensor, factor: int) -> tf.Tensor:
    *lead, channels, height, width = sizes(x)
    rank, kept = len(lead), channels // factor**2
    x = tf.reshape(x, as_shape([*lead, kept, factor, factor, height, width]))
    x = tf.transpose(x, [*range(rank + 1), *(rank + n for n in (3, 1, 4, 2))])
    return tf.reshape(x, as_shape([*lead, kept, height * factor, width * factor]))


@aten("pixel_unshuffle")
def _pixel_unshuffle(x: tf.Tensor, factor: int) -> tf.Tensor:
    *lead, channels, height, width = sizes(x)
    rank, low, thin = len(lead), height // factor, width // factor
    x = tf.reshape(x, as_shape([*lead, channels, low, factor, thin, factor]))
    x = tf.transpose(x, [*range(rank + 1), *(rank + n for n in (2, 4, 1, 3))])
    return tf.reshape(x, as_shape([*lead, channels * factor**2, low, thin]))
