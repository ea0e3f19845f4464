"""The table of rules, which say how TensorFlow computes each operation of an exported graph."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

UNITS = {bool: tf.bool, int: tf.int64, float: tf.float32, complex: tf.complex64}
# Dtypes that are the result of two others of the same category and size, or of signs.
MIXED = {frozenset({tf.float16, tf.bfloat16}): tf.float32, frozenset({tf.uint8, tf.int8}): tf.int16}


def is_tensor(value: Any) -> bool:
    """Return whether a value is a tensor or a variable of TensorFlow, not a Python number."""
    return tf.is_tensor(value) or isinstance(value, tf.Variable)


def sizes(x: tf.Tensor) -> list[Any]:
    """Return a tensor's sizes: integers, or scalar tensors where they vary."""
    if x.shape.is_fully_defined():
        return x.shape.as_list()
    dynamic = tf.shape(x)
    return [dynamic[n] if size is None else size for n, size in enumerate(x.shape)]


def as_shape(given: Sequence[Any]) -> Any:
    """Return sizes as an argument of TensorFlow."""
    if not any(is_tensor(size) for size in given):
        return [int(size) for size in given]
    return tf.stack([tf.cast(size, tf.int32) for size in given])


def broadcast_shape(xs: Sequence[tf.Tensor]) -> Any:
    """Return the shape to which tensors are broadcast together, static if theirs are."""
    if all(x.shape.is_fully_defined() for x in xs):
        return functools.reduce(tf.broadcast_static_shape, (x.shape for x in xs)).as_list()
    return functools.reduce(tf.broadcast_dynamic_shape, map(tf.shape, xs))


def product(given: Sequence[Any]) -> Any:
    """Return the product of sizes."""
    result: Any = 1
    for size in given:
        result = result * size
    return result


def axis_of(x: tf.Tensor, axis: int, more: int = 0) -> int:
    """Return an axis, which may be negative, as an index; `more`: of a result with more axes."""
    return axis % max(1, x.shape.rank + more)


def axes_of(x: tf.Tensor, axes: Any = None) -> list[int]:
    """Return axes as indices; None and [] are all axes."""
    axes = [axes] if isinstance(axes, int) else axes
    return [axis_of(x, axis) for axis in axes] if axes else list(range(x.shape.rank))


def along(axis: int, *key: Any) -> tuple[Any, ...]:
    """Return an index that applies `slice(*key)` to one axis."""
    return (*[slice(None)] * axis, slice(*key))


def with_last(x: tf.Tensor, axis: int) -> tuple[tf.Tensor, list[int]]:
    """Return a tensor with one axis moved to the end, and the order that moves it back."""
    order = [*(n for n in range(x.shape.rank) if n != axis), axis]
    if axis == x.shape.rank - 1:
        return x, order
    return tf.transpose(x, order), [order.index(n) for n in range(x.shape.rank)]


def moved_back(x: tf.Tensor, order: list[int]) -> tf.Tensor:
    """Return a tensor whose last axis is moved back to where `with_last` found it."""
    return x if order == sorted(order) else tf.transpose(x, order)


def _category(dtype: tf.DType) -> int:
    return 0 if dtype.is_bool else 1 if dtype.is_integer else 2 if dtype.is_floating else 3


def _larger(first: tf.DType | None, second: tf.DType) -> tf.DType:
    if first is None or first == second:
        return second
    if frozenset({first, second}) in MIXED:
        return MIXED[frozenset({first, second})]
    if _category(first) != _category(second):
        return max(first, second, key=_category)
    return max(first, second, key=lambda dtype: dtype.size)


def result_type(*values: Any) -> tf.DType:
    """Return the dtype in which PyTorch computes with tensors and numbers.

    A scalar tensor, and even less a number, raises the dtype of another tensor only to a higher
    category: bool, integer, float, complex.
    """
    levels: list[tf.DType | None] = [None, None, None]  # tensors with axes, scalars, numbers
    for value in values:
        level = (0 if value.shape.rank else 1) if is_tensor(value) else 2
        dtype = value.dtype if level < 2 else UNITS[type(value)]
        levels[level] = _larger(levels[level], dtype)
    result = levels[0]
    for lower in levels[1:]:
        if result is None or (lower is not None and _category(lower) > _category(result)):
            result = lower or result
    return tf.as_dtype(result)


def as_dtype(value: Any, dtype: tf.DType) -> tf.Tensor:
    """Return a tensor or a number in a dtype; a number is not rounded to float32 on the way."""
    if is_tensor(value):
        return tf.cast(value, dtype)
    whole = bool if dtype.is_bool else int
    return tf.constant(value if dtype.is_floating or dtype.is_complex else whole(value), dtype)


def promote_dtypes(*values: Any, dtype: tf.DType | None = None) -> list[tf.Tensor]:
    """Return tensors and numbers as tensors of one dtype, that of `result_type` by default."""
    dtype = dtype or result_type(*values)
    return [as_dtype(value, dtype) for value in values]


def floating(x: Any) -> tf.Tensor:
    """Return integers and booleans as float32, other tensors unchanged."""
    x = tf.convert_to_tensor(x)
    return x if x.dtype.is_floating or x.dtype.is_complex else tf.cast(x, tf.float32)


def widen_integers(x: tf.Tensor) -> tf.Tensor:
    """Return integers and booleans as int64, as sums need them, other tensors unchanged."""
    return tf.cast(x, tf.int64) if x.dtype.is_bool or x.dtype.is_integer else x


def pairs(value: Any, axes: int) -> list[int]:
    """Return one number for each axis, such as the strides of a convolution."""
    value = list(value) if isinstance(value, list | tuple) else [value]
    return value * axes if len(value) == 1 else value


RULES: dict[str, Callable[..., Any]] = {}
# Python's operators on sizes, which are integers or scalar tensors.
SIZES = "py."


def aten(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function as the rule for operations of PyTorch.

    A rule that is registered later replaces an earlier one.

    Args:
      *names: names of operations: "conv1d" for all overloads of `aten.conv1d`, "max.dim" for one,
        "mylib.smooth" for an operation of `torch.library`.

    Returns:
      A decorator for a function of the operation's arguments, in PyTorch's order: tensors of
      TensorFlow, numbers, lists and dtypes of TensorFlow. It returns a tensor or a list of them.

    Raises:
      ValueError: a name is not a string, or there is none.
    """
    if not names or not all(isinstance(name, str) and name for name in names):
        raise ValueError(f'`names` must be names of operations, such as "conv1d", got {names}.')

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        RULES.update(dict.fromkeys(names, function))
        return function

    return add


def rule_for(operation: str) -> Callable[..., Any] | None:
    """Return the rule for an operation, such as "add.Tensor": its own or that of "add"; or None."""
    plain = operation.removesuffix(".default")
    return RULES.get(plain) or RULES.get(plain.rpartition(".")[0])
