"""Rules for operations along axes: sums, extremes, moments, cumulative sums, norms, softmax."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from onepass.networks.from_torch.table import (
    along,
    as_dtype,
    as_shape,
    aten,
    axes_of,
    axis_of,
    floating,
    moved_back,
    product,
    sizes,
    widen_integers,
    with_last,
)

Function = Callable[..., Any]


def _reduction_rule(function: Function, prepare: Function) -> Function:
    def rule(x: tf.Tensor, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> tf.Tensor:
        x = prepare(x) if dtype is None else tf.cast(x, dtype)
        return function(x, axes_of(x, dim), keepdim)

    return rule


# What is reduced, after the function of the tensor that comes first.
REDUCTIONS: dict[str, tuple[Function, Function]] = {
    "sum": (tf.reduce_sum, widen_integers),
    "prod": (tf.reduce_prod, widen_integers),
    "mean": (tf.reduce_mean, tf.convert_to_tensor),
    "amax": (tf.reduce_max, tf.convert_to_tensor),
    "amin": (tf.reduce_min, tf.convert_to_tensor),
    "any": (tf.reduce_any, lambda x: tf.cast(x, tf.bool)),
    "all": (tf.reduce_all, lambda x: tf.cast(x, tf.bool)),
    "logsumexp": (tf.reduce_logsumexp, floating),
    "count_nonzero": (tf.reduce_sum, lambda x: tf.cast(tf.cast(x, tf.bool), tf.int64)),
}
for _name, (_function, _prepare) in REDUCTIONS.items():
    aten(_name)(_reduction_rule(_function, _prepare))


def _register_extreme(name: str, reduce: Function, place: Function) -> None:
    @aten(f"arg{name}")
    def place_of(x: tf.Tensor, dim: int | None = None, keepdim: bool = False) -> tf.Tensor:
        flat, axis = (tf.reshape(x, [-1]), 0) if dim is None else (x, axis_of(x, dim))
        found = place(flat, axis, output_type=tf.int64)
        if not keepdim:
            return found
        return tf.expand_dims(found, axis) if dim is not None else _spread(found, x)

    @aten(name)
    def extreme(x: tf.Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
        values = reduce(x, None if dim is None else axis_of(x, dim), keepdim)
        return values if dim is None else [values, place_of(x, dim, keepdim)]


def _spread(found: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    return tf.reshape(found, [1] * x.shape.rank)


_register_extreme("max", tf.reduce_max, tf.argmax)
_register_extreme("min", tf.reduce_min, tf.argmin)


def _moments(
    result: Function, x: tf.Tensor, dim: Any = None, correction: Any = None, keepdim: bool = False
) -> Any:
    """Return a function of variance and mean; `correction` is True or None for 1, False for 0."""
    if isinstance(dim, bool):  # `var(x, unbiased)`
        dim, correction = None, dim
    axes = axes_of(x, dim)
    correction = 1 if correction is None else int(correction)
    mean = tf.reduce_mean(x, axes, True)
    total = tf.reduce_sum(tf.square(x - mean), axes, keepdim)
    count = tf.cast(product([sizes(x)[axis] for axis in axes]) - correction, x.dtype)
    return result(total / count, mean if keepdim else tf.squeeze(mean, axes))


MOMENTS: dict[str, Function] = {
    "var": lambda variance, mean: variance,
    "std": lambda variance, mean: tf.sqrt(variance),
    "var_mean": lambda variance, mean: [variance, mean],
    "std_mean": lambda variance, mean: [tf.sqrt(variance), mean],
}
for _name, _result in MOMENTS.items():
    aten(_name)(functools.partial(_moments, _result))


@aten("linalg_vector_norm", "norm")
def _norm(
    x: tf.Tensor, order: Any = 2, dim: Any = None, keepdim: bool = False, dtype: Any = None
) -> tf.Tensor:
    x = tf.abs(x if dtype is None else tf.cast(x, dtype))
    axes, order = axes_of(x, dim), 2 if order is None else order
    if order == 2:
        return tf.sqrt(tf.reduce_sum(tf.square(x), axes, keepdim))
    if order == 1:
        return tf.reduce_sum(x, axes, keepdim)
    if order in (float("inf"), float("-inf")):
        return (tf.reduce_max if order > 0 else tf.reduce_min)(x, axes, keepdim)
    if order == 0:
        return tf.reduce_sum(tf.cast(x != 0, x.dtype), axes, keepdim)
    return tf.pow(tf.reduce_sum(tf.pow(x, order), axes, keepdim), 1 / order)


def _cumulative(function: Function) -> Function:
    def rule(x: tf.Tensor, dim: int, dtype: Any = None) -> tf.Tensor:
        x = widen_integers(x) if dtype is None else tf.cast(x, dtype)
        return function(x, axis_of(x, dim)) if x.shape.rank else x

    return rule


aten("cumsum")(_cumulative(tf.cumsum))
aten("cumprod")(_cumulative(tf.math.cumprod))
aten("logcumsumexp")(_cumulative(tf.math.cumulative_logsumexp))


@aten("diff")
def _diff(x: tf.Tensor, n: int = 1, dim: int = -1, prepend: Any = None, append: Any = None) -> Any:
    axis = axis_of(x, dim)
    parts = [tf.cast(part, x.dtype) for part in (prepend, x, append) if part is not None]
    x = tf.concat(parts, axis) if len(parts) > 1 else x
    for _ in range(n):
        later, earlier = x[along(axis, 1, None)], x[along(axis, None, -1)]
        x = tf.not_equal(later, earlier) if x.dtype.is_bool else later - earlier
    return x


def _over_axis(function: Callable[[tf.Tensor], tf.Tensor]) -> Function:
    def rule(x: tf.Tensor, dim: int, dtype: Any = None, *ignored: Any) -> tf.Tensor:
        x = tf.cast(x, dtype) if isinstance(dtype, tf.DType) else floating(x)
        if not x.shape.rank:
            return function(x[None])[0]
        moved, order = with_last(x, axis_of(x, dim))
        return moved_back(function(moved), order)

    return rule


aten("softmax", "_softmax", "_safe_softmax")(_over_axis(tf.nn.softmax))
aten("log_softmax", "_log_softmax")(_over_axis(tf.nn.log_softmax))


def _scale_and_shift(x: tf.Tensor, weight: Any, bias: Any) -> tf.Tensor:
    x = x if weight is None else x * weight
    return x if bias is None else x + bias


def _standard(x: tf.Tensor, axes: list[int], eps: float) -> tf.Tensor:
    centred = x - tf.reduce_mean(x, axes, True)
    variance = tf.reduce_mean(tf.square(centred), axes, True)
    return centred * tf.math.rsqrt(variance + as_dtype(eps, x.dtype))


@aten("layer_norm")
def _layer_norm(
    x: tf.Tensor, shape: Sequence[int], weight: Any = None, bias: Any = None, *rest: Any
) -> tf.Tensor:
    axes = list(range(x.shape.rank - len(shape), x.shape.rank))
    return _scale_and_shift(_standard(x, axes, rest[0] if rest else 1e-5), weight, bias)


aten("native_layer_norm")(lambda *arguments: [_layer_norm(*arguments)])


@aten("rms_norm")
def _rms_norm(
    x: tf.Tensor, shape: Sequence[int], weight: Any = None, eps: float | None = None
) -> tf.Tensor:
    axes = list(range(x.shape.rank - len(shape), x.shape.rank))
    eps = 2.0 ** (-23 if x.dtype == tf.float32 else -52) if eps is None else eps
    mean = tf.reduce_mean(tf.square(x), axes, True)
    return _scale_and_shift(x * tf.math.rsqrt(mean + as_dtype(eps, x.dtype)), weight, None)


def _by_channel(value: Any, x: tf.Tensor) -> Any:
    return None if value is None else tf.reshape(value, [-1] + [1] * (x.shape.rank - 2))


@aten("group_norm")
def _group_norm(
    x: tf.Tensor, groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5, *rest: Any
) -> tf.Tensor:
    batch, channels, *others = sizes(x)
    parts = tf.reshape(x, as_shape([batch, groups, channels // groups, *others]))
    y = _standard(parts, list(range(2, parts.shape.rank)), eps)
    y = tf.reshape(y, as_shape([batch, channels, *others]))
    return _scale_and_shift(y, _by_channel(weight, x), _by_channel(bias, x))


@aten("instance_norm")
def _instance_norm(x: tf.Tensor, weight: Any, bias: Any, mean: Any, var: Any, *rest: Any) -> Any:
    from_input, _, eps = rest[:3]
    if not from_input:
        return _batch_norm(x, weight, bias, mean, var, False, 0.0, eps)
    y = _standard(x, list(range(2, x.shape.rank)), eps)
    return _scale_and_shift(y, _by_channel(weight, x), _by_channel(bias, x))


@aten("batch_norm")
def _batch_norm(x: tf.Tensor, weight: Any, bias: Any, mean: Any, var: Any, *rest: Any) -> tf.Tensor:
    trains, momentum, eps = rest[:3]
    if trains or mean is None:
        raise ValueError("batch normalisation must use its stored statistics")
    return _native_batch_norm(x, weight, bias, mean, var, momentum, eps)[0]


@aten("_native_batch_norm_legit_no_training")
def _native_batch_norm(
    x: tf.Tensor, weight: Any, bias: Any, mean: Any, var: Any, momentum: float, eps: float
) -> list[tf.Tensor]:
    scale = tf.math.rsqrt(var + as_dtype(eps, var.dtype))
    scale = scale if weight is None else scale * weight
    shift = -mean * scale if bias is None else bias - mean * scale
    return [_scale_and_shift(x, _by_channel(scale, x), _by_channel(shift, x))]


@aten("_weight_norm")
def _weight_norm(v: tf.Tensor, g: tf.Tensor, dim: int = 0) -> tf.Tensor:
    axes = [n for n in range(v.shape.rank) if n != axis_of(v, dim)]
    return v * (g / tf.sqrt(tf.reduce_sum(tf.square(v), axes, True)))


aten("_weight_norm_interface")(lambda *arguments: [_weight_norm(*arguments)])


@aten("adaptive_avg_pool1d", "adaptive_avg_pool2d")
def _adaptive(x: tf.Tensor, shape: Sequence[int]) -> tf.Tensor:
    if any(size != 1 for size in shape):
        raise ValueError("adaptive pooling must have an output of size 1")
    return tf.reduce_mean(x, list(range(x.shape.rank - len(shape), x.shape.rank)), True)


@aten("cosine_similarity")
def _cosine(a: tf.Tensor, b: tf.Tensor, dim: int = 1, eps: float = 1e-8) -> tf.Tensor:
    norms = [tf.maximum(_norm(each, 2, dim, True), as_dtype(eps, each.dtype)) for each in (a, b)]
    return tf.reduce_sum((a / norms[0]) * (b / norms[1]), axis_of(a, dim))
