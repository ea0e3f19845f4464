"""Rules for operations on single elements: arithmetic, comparisons, activations, casts."""

import functools
import operator
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from onepass.networks.from_torch.table import aten
from onepass.networks.from_torch.values import (
    as_dtype,
    axis_of,
    floating,
    is_tensor,
    promoted,
    result_type,
)

Function = Callable[..., tf.Tensor]
LOG_2, LOG_10 = 0.6931471805599453, 2.302585092994046

# The same in PyTorch and in TensorFlow.
ALIKE = """
exp log log1p expm1 sqrt rsqrt reciprocal sin cos tan asin acos atan sinh cosh tanh asinh acosh
atanh sigmoid erf erfc erfinv lgamma digamma
"""
OF_FLOATS: dict[str, Function] = {
    **{name: getattr(tf.math, name) for name in ALIKE.split()},
    "log2": lambda x: tf.math.log(x) / LOG_2,
    "log10": lambda x: tf.math.log(x) / LOG_10,
    "exp2": lambda x: tf.exp(x * LOG_2),
    "silu": lambda x: x * tf.sigmoid(x),
    "mish": lambda x: x * tf.tanh(tf.nn.softplus(x)),
    "selu": tf.nn.selu,
    "hardsigmoid": lambda x: tf.nn.relu6(x + 3.0) / 6.0,
    "hardswish": lambda x: x * tf.nn.relu6(x + 3.0) / 6.0,
    "log_sigmoid": lambda x: -tf.nn.softplus(-x),
}
UNCHANGED_IF_INTEGER: dict[str, Function] = {
    "floor": tf.floor,
    "ceil": tf.math.ceil,
    "trunc": lambda x: tf.sign(x) * tf.floor(tf.abs(x)),
    "frac": lambda x: x - tf.sign(x) * tf.floor(tf.abs(x)),
}
OF_ANY: dict[str, Function] = {
    "neg": tf.negative,
    "abs": tf.abs,
    "sign": tf.sign,
    "square": tf.square,
    "relu": lambda x: tf.nn.relu(x) if x.dtype.is_floating else tf.maximum(x, 0),
    "relu6": lambda x: tf.clip_by_value(x, tf.cast(0, x.dtype), tf.cast(6, x.dtype)),
}
SAME = """
clone detach alias contiguous lift_fresh lift_fresh_copy dropout feature_dropout alpha_dropout
positive native_dropout resolve_conj resolve_neg
"""
COMPARISONS = {
    ("lt", "less"): tf.less,
    ("le", "less_equal"): tf.less_equal,
    ("gt", "greater"): tf.greater,
    ("ge", "greater_equal"): tf.greater_equal,
    ("eq",): tf.equal,
    ("ne", "not_equal"): tf.not_equal,
}


def _register() -> None:
    for name, function in OF_FLOATS.items():
        aten(name)(lambda x, f=function: f(floating(x)))
    for name, function in UNCHANGED_IF_INTEGER.items():
        aten(name)(lambda x, f=function: f(x) if x.dtype.is_floating else x)
    for name, function in OF_ANY.items():
        aten(name)(lambda x, f=function: f(x))
    aten(*SAME.split())(lambda x, *ignored, **options: tf.identity(x))
    for names, function in COMPARISONS.items():
        aten(*names)(functools.partial(_compared, function))


def _compared(function: Function, a: Any, b: Any) -> tf.Tensor:
    a, b = promoted(a, b)
    if a.dtype.is_bool and function not in (tf.equal, tf.not_equal):
        a, b = tf.cast(a, tf.int32), tf.cast(b, tf.int32)
    return function(a, b)


_register()


@aten("add")
def _add(a: Any, b: Any, alpha: Any = 1) -> tf.Tensor:
    a, b = promoted(a, b)
    if a.dtype.is_bool:
        return tf.logical_or(a, b)
    return a + b if alpha == 1 else a + b * as_dtype(alpha, b.dtype)


@aten("sub", "subtract")
def _sub(a: Any, b: Any, alpha: Any = 1) -> tf.Tensor:
    a, b = promoted(a, b)
    return a - b if alpha == 1 else a - b * as_dtype(alpha, b.dtype)


@aten("rsub")
def _rsub(a: Any, b: Any, alpha: Any = 1) -> tf.Tensor:
    return _sub(b, a, alpha)


@aten("mul", "multiply")
def _mul(a: Any, b: Any) -> tf.Tensor:
    a, b = promoted(a, b)
    return tf.logical_and(a, b) if a.dtype.is_bool else a * b


@aten("div", "divide", "true_divide")
def _div(a: Any, b: Any, rounding_mode: str | None = None) -> tf.Tensor:
    a, b = promoted(a, b)
    if rounding_mode is None:
        a, b = floating(a), floating(b)
        return a / b
    if rounding_mode == "floor":
        return tf.math.floordiv(a, b)
    if a.dtype.is_integer:
        return tf.truncatediv(a, b)
    return tf.sign(a / b) * tf.floor(tf.abs(a / b))


@aten("floor_divide")
def _floor_divide(a: Any, b: Any) -> tf.Tensor:
    return _div(a, b, "floor")


@aten("float_power")
def _float_power(a: Any, b: Any) -> tf.Tensor:
    return tf.pow(*promoted(a, b, dtype=tf.float64))


@aten("pow")
def _pow(a: Any, b: Any) -> tf.Tensor:
    if not is_tensor(b) and b == 2:
        return tf.square(promoted(a, b)[0])
    return tf.pow(*promoted(a, b))


@aten("maximum", "max.other", "fmax")
def _maximum(a: Any, b: Any) -> tf.Tensor:
    a, b = promoted(a, b)
    return tf.logical_or(a, b) if a.dtype.is_bool else tf.maximum(a, b)


@aten("minimum", "min.other", "fmin")
def _minimum(a: Any, b: Any) -> tf.Tensor:
    a, b = promoted(a, b)
    return tf.logical_and(a, b) if a.dtype.is_bool else tf.minimum(a, b)


@aten("remainder")
def _remainder(a: Any, b: Any) -> tf.Tensor:
    return tf.math.floormod(*promoted(a, b))


@aten("fmod")
def _fmod(a: Any, b: Any) -> tf.Tensor:
    return tf.truncatemod(*promoted(a, b))


@aten("atan2", "arctan2")
def _atan2(a: Any, b: Any) -> tf.Tensor:
    return tf.atan2(*map(floating, promoted(a, b)))


@aten("logaddexp")
def _logaddexp(a: Any, b: Any) -> tf.Tensor:
    a, b = promoted(a, b)
    return tf.maximum(a, b) + tf.math.log1p(tf.exp(-tf.abs(a - b)))


@aten("xlogy")
def _xlogy(a: Any, b: Any) -> tf.Tensor:
    return tf.math.xlogy(*map(floating, promoted(a, b)))


@aten("hypot")
def _hypot(a: Any, b: Any) -> tf.Tensor:
    a, b = promoted(a, b)
    return tf.sqrt(a * a + b * b)


@aten("lerp")
def _lerp(a: Any, b: Any, weight: Any) -> tf.Tensor:
    return a + as_dtype(weight, a.dtype) * (b - a)


@aten("addcmul")
def _addcmul(x: Any, a: Any, b: Any, value: Any = 1) -> tf.Tensor:
    return _add(x, _mul(a, b), value)


@aten("addcdiv")
def _addcdiv(x: Any, a: Any, b: Any, value: Any = 1) -> tf.Tensor:
    return _add(x, _div(a, b), value)


BITWISE = {
    "and": (tf.logical_and, tf.bitwise.bitwise_and),
    "or": (tf.logical_or, tf.bitwise.bitwise_or),
    "xor": (tf.math.logical_xor, tf.bitwise.bitwise_xor),
}


def _bitwise(pair: tuple[Function, Function], a: Any, b: Any) -> tf.Tensor:
    a, b = promoted(a, b)
    return pair[0](a, b) if a.dtype.is_bool else pair[1](a, b)


def _logical(function: Function, a: Any, b: Any) -> tf.Tensor:
    return function(tf.cast(a, tf.bool), tf.cast(b, tf.bool))


for _name, _pair in BITWISE.items():
    aten(f"bitwise_{_name}", f"__{_name}__")(functools.partial(_bitwise, _pair))
    aten(f"logical_{_name}")(functools.partial(_logical, _pair[0]))


@aten("bitwise_not")
def _bitwise_not(x: tf.Tensor) -> tf.Tensor:
    return tf.logical_not(x) if x.dtype.is_bool else tf.bitwise.invert(x)


@aten("bitwise_left_shift", "__lshift__")
def _left_shift(a: Any, b: Any) -> tf.Tensor:
    return tf.bitwise.left_shift(*promoted(a, b))


@aten("bitwise_right_shift", "__rshift__")
def _right_shift(a: Any, b: Any) -> tf.Tensor:
    return tf.bitwise.right_shift(*promoted(a, b))


@aten("logical_not")
def _logical_not(x: tf.Tensor) -> tf.Tensor:
    return tf.logical_not(tf.cast(x, tf.bool))


@aten("isnan")
def _isnan(x: tf.Tensor) -> tf.Tensor:
    return tf.math.is_nan(floating(x))


@aten("isinf")
def _isinf(x: tf.Tensor) -> tf.Tensor:
    return tf.math.is_inf(floating(x))


@aten("isfinite")
def _isfinite(x: tf.Tensor) -> tf.Tensor:
    return tf.math.is_finite(floating(x))


@aten("nan_to_num")
def _nan_to_num(
    x: tf.Tensor, nan: float | None = None, posinf: float | None = None, neginf: Any = None
) -> tf.Tensor:
    if not x.dtype.is_floating:
        return x
    high, low = (x.dtype.max if posinf is None else posinf), (neginf or x.dtype.min)
    x = tf.where(tf.math.is_nan(x), as_dtype(nan or 0.0, x.dtype), x)
    x = tf.where(tf.math.is_inf(x) & (x > 0), as_dtype(high, x.dtype), x)
    return tf.where(tf.math.is_inf(x) & (x < 0), as_dtype(low, x.dtype), x)


@aten("round")
def _round(x: tf.Tensor, decimals: int = 0) -> tf.Tensor:
    scale = 10.0**decimals
    return tf.round(x) if not decimals else tf.round(x * scale) / scale


@aten("where")
def _where(condition: tf.Tensor, a: Any, b: Any) -> tf.Tensor:
    return tf.where(tf.cast(condition, tf.bool), *promoted(a, b))


@aten("clamp", "clip", "hardtanh")
def _clamp(x: tf.Tensor, min: Any = None, max: Any = None) -> tf.Tensor:
    bounds = [bound for bound in (min, max) if bound is not None]
    dtype = result_type(x, *bounds)
    x = tf.cast(x, dtype)
    x = x if min is None else tf.maximum(x, as_dtype(min, dtype))
    return x if max is None else tf.minimum(x, as_dtype(max, dtype))


@aten("clamp_min")
def _clamp_min(x: tf.Tensor, bound: Any) -> tf.Tensor:
    return _clamp(x, bound)


@aten("clamp_max")
def _clamp_max(x: tf.Tensor, bound: Any) -> tf.Tensor:
    return _clamp(x, None, bound)


@aten("masked_fill")
def _masked_fill(x: tf.Tensor, mask: tf.Tensor, value: Any) -> tf.Tensor:
    return tf.where(mask, as_dtype(value, x.dtype), x)


@aten("gelu")
def _gelu(x: tf.Tensor, approximate: str = "none") -> tf.Tensor:
    if approximate == "tanh":
        return tf.nn.gelu(x, approximate=True)
    return 0.5 * x * (1.0 + tf.math.erf(x * 0.5**0.5))


@aten("elu")
def _elu(x: tf.Tensor, alpha: float = 1.0, scale: float = 1.0, inner: float = 1.0) -> tf.Tensor:
    if (alpha, scale, inner) == (1, 1, 1):
        return tf.nn.elu(x)
    return scale * tf.where(x > 0, x, alpha * tf.math.expm1(x * inner))


@aten("celu")
def _celu(x: tf.Tensor, alpha: float = 1.0) -> tf.Tensor:
    return tf.where(x > 0, x, alpha * tf.math.expm1(x / alpha))


@aten("leaky_relu")
def _leaky_relu(x: tf.Tensor, slope: float = 0.01) -> tf.Tensor:
    return tf.nn.leaky_relu(x, slope)


@aten("rrelu")
def _rrelu(x: tf.Tensor, lower: float = 1 / 8, upper: float = 1 / 3, *_: Any) -> tf.Tensor:
    return tf.nn.leaky_relu(x, (lower + upper) / 2)


@aten("softplus")
def _softplus(x: tf.Tensor, beta: float = 1.0, threshold: float = 20.0) -> tf.Tensor:
    return tf.nn.softplus(x) if beta == 1 else tf.nn.softplus(x * beta) / beta


@aten("prelu")
def _prelu(x: tf.Tensor, slope: tf.Tensor) -> tf.Tensor:
    ones = [1] * (x.shape.rank - 2)
    slope = tf.reshape(slope, [-1, *ones]) if x.shape.rank > 1 else slope
    return tf.maximum(x, 0.0) + slope * tf.minimum(x, 0.0)


@aten("threshold")
def _threshold(x: tf.Tensor, threshold: float, value: float) -> tf.Tensor:
    return tf.where(x > as_dtype(threshold, x.dtype), x, as_dtype(value, x.dtype))


@aten("hardshrink")
def _hardshrink(x: tf.Tensor, lambd: float = 0.5) -> tf.Tensor:
    return tf.where(tf.abs(x) > lambd, x, tf.zeros_like(x))


@aten("softshrink")
def _softshrink(x: tf.Tensor, lambd: float = 0.5) -> tf.Tensor:
    return tf.sign(x) * tf.nn.relu(tf.abs(x) - lambd)


@aten("glu")
def _glu(x: tf.Tensor, dim: int = -1) -> tf.Tensor:
    value, gate = tf.split(x, 2, axis_of(x, dim))
    return value * tf.sigmoid(gate)


@aten("logit")
def _logit(x: tf.Tensor, eps: float | None = None) -> tf.Tensor:
    x = x if eps is None else tf.clip_by_value(x, eps, 1 - eps)
    return tf.math.log(x / (1 - x))


@aten("to", "_to_copy", "type_as")
def _to(x: tf.Tensor, *where: Any, dtype: Any = None, **ignored: Any) -> tf.Tensor:
    for each in where:
        dtype = each if isinstance(each, tf.DType) else each.dtype if is_tensor(each) else dtype
    return tf.identity(x) if dtype is None else tf.cast(x, dtype)


PYTHON = "add sub mul floordiv mod neg truediv pow lt le gt ge eq ne"
OF_SIZES: dict[str, Callable[..., Any]] = {
    **{name: getattr(operator, name) for name in PYTHON.split()},
    **{name: getattr(operator, f"{name}_") for name in ("and", "or")},
    "getitem": lambda values, place: values[place],
    "sym_max": lambda a, b: tf.maximum(a, b) if is_tensor(a) or is_tensor(b) else max(a, b),
    "sym_min": lambda a, b: tf.minimum(a, b) if is_tensor(a) or is_tensor(b) else min(a, b),
    "sym_float": lambda x: tf.cast(x, tf.float64) if is_tensor(x) else float(x),
    "sym_int": lambda x: tf.cast(x, tf.int32) if is_tensor(x) else int(x),
    "trunc": lambda x: tf.cast(x, tf.int32) if is_tensor(x) else int(x),
    "ceil": lambda x: tf.cast(tf.math.ceil(x), tf.int32) if is_tensor(x) else -int(-x // 1),
    "floor": lambda x: tf.cast(tf.floor(x), tf.int32) if is_tensor(x) else int(x // 1),
    "sym_not": lambda x: tf.logical_not(x) if is_tensor(x) else not x,
    "_sym_sqrt": lambda x: tf.sqrt(tf.cast(x, tf.float64)) if is_tensor(x) else x**0.5,
}
for _name, _function in OF_SIZES.items():
    aten(f"py.{_name}")(_function)
