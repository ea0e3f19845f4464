"""Rules for operations that create tensors."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from onepass.networks.from_torch.table import UNITS, as_dtype, as_shape, aten, is_tensor, sizes

VALUES = {"zeros": 0, "ones": 1, "empty": 0}


def _fill_shape(shape: Sequence[Any], value: Any, dtype: Any) -> tf.Tensor:
    return tf.fill(as_shape(shape), as_dtype(value, tf.as_dtype(dtype)))


def _register(name: str, value: int) -> None:
    @aten(name)
    def _new(shape: Sequence[Any], *ignored: Any, dtype: Any = None) -> tf.Tensor:
        return _fill_shape(shape, value, dtype or tf.float32)

    @aten(f"{name}_like")
    def _like(x: tf.Tensor, dtype: Any = None) -> tf.Tensor:
        return _fill_shape(sizes(x), value, dtype or x.dtype)

    @aten(f"new_{name}")
    def _of_dtype(x: tf.Tensor, shape: Sequence[Any], dtype: Any = None) -> tf.Tensor:
        return _fill_shape(shape, value, dtype or x.dtype)


for _name, _value in VALUES.items():
    _register(_name, _value)


def _dtype_of(value: Any) -> tf.DType:
    return value.dtype if is_tensor(value) else UNITS[type(value)]


@aten("full")
def _full(shape: Sequence[Any], value: Any, dtype: Any = None) -> tf.Tensor:
    return _fill_shape(shape, value, dtype or _dtype_of(value))


aten("full_like", "fill")(
    lambda x, value, dtype=None: _fill_shape(sizes(x), value, dtype or x.dtype)
)
aten("new_full")(lambda x, shape, value, dtype=None: _fill_shape(shape, value, dtype or x.dtype))
aten("scalar_tensor")(lambda value, dtype=None: as_dtype(value, dtype or tf.float32))


@aten("copy")
def _copy(x: tf.Tensor, source: tf.Tensor, *ignored: Any) -> tf.Tensor:
    return tf.broadcast_to(tf.cast(source, x.dtype), as_shape(sizes(x)))


def _whole(value: Any) -> bool:
    return value.dtype.is_integer if is_tensor(value) else isinstance(value, int)


@aten("arange")
def _arange(*bounds: Any, dtype: Any = None) -> tf.Tensor:
    start, end, step = (0, *bounds, 1) if len(bounds) == 1 else (*bounds, 1)[:3]
    if dtype is not None and dtype.is_integer:  # a number such as 2.5 is rounded down first
        start, end, step = (x if is_tensor(x) else int(x) for x in (start, end, step))
    if all(map(_whole, (start, end, step))):
        dtype = dtype or tf.int64
        if any(map(is_tensor, (start, end, step))):
            start, end, step = (tf.cast(x, tf.int32) for x in (start, end, step))
            return tf.cast(tf.range(start, end, step), dtype)
        return tf.cast(tf.range(start, end, step, tf.int64), dtype)
    count: Any = (end - start) / step
    count = tf.math.ceil(count) if is_tensor(count) else math.ceil(count)
    places = tf.cast(tf.range(tf.cast(count, tf.int32)), tf.float64)
    values = as_dtype(start, tf.float64) + places * as_dtype(step, tf.float64)
    return tf.cast(values, dtype or tf.float32)


@aten("linspace")
def _linspace(start: Any, end: Any, steps: Any, dtype: Any = None) -> tf.Tensor:
    places = tf.cast(tf.range(steps), tf.float64) / tf.cast(tf.maximum(steps - 1, 1), tf.float64)
    low, high = as_dtype(start, tf.float64), as_dtype(end, tf.float64)
    return tf.cast(low + (high - low) * places, dtype or tf.float32)


@aten("eye")
def _eye(rows: Any, columns: Any = None, dtype: Any = None) -> tf.Tensor:
    places = tf.range(rows if columns is None else columns)
    return tf.cast(tf.range(rows)[:, None] == places, dtype or tf.float32)


def _band(keep: Callable[[tf.Tensor, Any], tf.Tensor]) -> Callable[..., tf.Tensor]:
    def rule(x: tf.Tensor, diagonal: Any = 0) -> tf.Tensor:
        rows, columns = sizes(x)[-2:]
        ahead = tf.range(columns) - tf.range(rows)[:, None]
        return tf.where(keep(ahead, diagonal), x, tf.zeros([], x.dtype))

    return rule


aten("tril")(_band(lambda ahead, diagonal: ahead <= diagonal))
aten("triu")(_band(lambda ahead, diagonal: ahead >= diagonal))
