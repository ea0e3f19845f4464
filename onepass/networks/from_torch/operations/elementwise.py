"""Rules for operations on single elements: arithmetic, comparisons, activations, casts."""

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from onepass.networks.from_torch.table import (
    as_dtype,
    aten,
    axis_of,
    floating,
    is_tensor,
    promote_dtypes,
    result_type,
)

Function = Callable[..., Any]
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
    "isnan": tf.math.is_nan,
    "isinf": tf.math.is_inf,
    "isfinite": tf.math.is_finite,
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
SAME = """
clone detach alias contiguous lift_fresh lift_fresh_copy dropout feature_dropout alpha_dropout
positive native_dropout resolve_conj resolve_neg
"""
# Functions of two tensors of one dtype, and those of booleans in their place.
OF_TWO: dict[str, tuple[Function, Function | None]] = {
    "mul multiply": (tf.multiply, tf.logical_and),
    "maximum max.other fmax": (tf.maximum, tf.logical_or),
    "minimum min.other fmin": (tf.minimum, tf.logical_and),
    "bitwise_and __and__": (tf.bitwise.bitwise_and, tf.logical_and),
    "bitwise_or __or__": (tf.bitwise.bitwise_or, tf.logical_or),
    "bitwise_xor __xor__": (tf.bitwise.bitwise_xor, tf.math.logical_xor),
    "bitwise_left_shift __lshift__": (tf.bitwise.left_shift, None),
    "bitwise_right_shift __rshift__": (tf.bitwise.right_shift, None),
    "remainder": (tf.math.floormod, None),
    "fmod": (tf.truncatemod, None),
    "eq": (tf.equal, None),
    "ne not_equal": (tf.not_equal, None),
    "lt less": (tf.less, lambda a, b: tf.logical_and(~a, b)),
    "le less_equal": (tf.less_equal, lambda a, b: tf.logical_or(~a, b)),
    "gt greater": (tf.greater, lambda a, b: tf.logical_and(a, ~b)),
    "ge greater_equal": (tf.greater_equal, lambda a, b: tf.logical_or(a, ~b)),
    "logaddexp": (lambda a, b: tf.maximum(a, b) + tf.math.log1p(tf.exp(-tf.abs(a - b))), None),
    "hypot": (lambda a, b: tf.sqrt(a * a + b * b), None),
}
OF_TWO_FLOATS: dict[str, Function] = {"atan2 arctan2": tf.atan2, "xlogy": tf.math.xlogy}
OF_BOOLEANS: dict[str, Function] = {
    "logical_and": tf.logical_and,
    "logical_or": tf.logical_or,
    "logical_xor": tf.math.logical_xor,
    "logical_not": tf.logical_not,
}
# Functions of the operation's own arguments.
OTHERS: dict[str, Function] = {
    "neg": tf.negative,
    "abs": tf.abs,
    "sign": tf.sign,
    "square": tf.square,
    "relu": lambda x: tf.nn.relu(x) if x.dtype.is_floating else tf.maximum(x, 0),
    "relu6": lambda x: tf.clip_by_value(x, tf.cast(0, x.dtype), tf.cast(6, x.dtype)),
    "bitwise_not": lambda x: tf.logical_not(x) if x.dtype.is_bool else tf.bitwise.invert(x),
    SAME: lambda x, *ignored, **options: tf.convert_to_tensor(x),
    "rsub": lambda a, b, alpha=1: _sub(b, a, alpha),
    "floor_divide": lambda a, b: _div(a, b, "floor"),
    "float_power": lambda a, b: _apply_promoted(tf.pow, a, b, tf.float64),
    "lerp": lambda a, b, weight: a + as_dtype(weight, a.dtype) * (b - a),
    "addcmul": lambda x, a, b, value=1: _add(x, _apply_promoted(tf.multiply, a, b), value),
    "addcdiv": lambda x, a, b, value=1: _add(x, _div(a, b), value),
    "where": lambda chosen, a, b: _apply_promoted(
        lambda x, y: tf.where(tf.cast(chosen, tf.bool), x, y), a, b
    ),
    "masked_fill": lambda x, mask, value: tf.where(mask, as_dtype(value, x.dtype), x),
    "clamp_min": lambda x, bound: _clamp(x, bound),
    "clamp_max": lambda x, bound: _clamp(x, None, bound),
    "celu": lambda x, alpha=1.0: tf.where(x > 0, x, alpha * tf.math.expm1(x / alpha)),
    "leaky_relu": lambda x, slope=0.01: tf.nn.leaky_relu(x, slope),
    "rrelu": lambda x, low=1 / 8, high=1 / 3, *_: tf.nn.leaky_relu(x, (low + high) / 2),
    "softplus": lambda x, beta=1.0, threshold=20.0: (
        tf.nn.softplus(x) if beta == 1 else tf.nn.softplus(x * beta) / beta
    ),
    "threshold": lambda x, bound, value: tf.where(
        x > as_dtype(bound, x.dtype), x, as_dtype(value, x.dtype)
    ),
    "hardshrink": lambda x, width=0.5: tf.where(tf.abs(x) > width, x, tf.zeros_like(x)),
    "softshrink": lambda x, width=0.5: tf.sign(x) * tf.nn.relu(tf.abs(x) - width),
}


def _to_floats(values: Sequence[Any]) -> list[tf.Tensor]:
    return [floating(x) for x in (promote_dtypes(*values) if len(values) > 1 else values)]


def _to_booleans(values: Sequence[Any]) -> list[tf.Tensor]:
    return [tf.cast(x, tf.bool) for x in values]


def _register(functions: Mapping[str, Function], prepare: Function) -> None:
    for names, function in functions.items():
        aten(*names.split())(lambda *values, f=function: f(*prepare(values)))


def _apply_promoted(function: Function, a: Any, b: Any, dtype: tf.DType | None = None) -> tf.Tensor:
    a, b = promote_dtypes(a, b, dtype=dtype)
    return function(a, b)


def _register_of_two(names: str, function: Function, of_booleans: Function | None) -> None:
    @aten(*names.split())
    def rule(a: Any, b: Any) -> tf.Tensor:
        a, b = promote_dtypes(a, b)
        return (of_booleans if of_booleans and a.dtype.is_bool else function)(a, b)


_register(OF_FLOATS | OF_TWO_FLOATS, _to_floats)
_register(OF_BOOLEANS, _to_booleans)
for _names, (_function, _of_booleans) in OF_TWO.items():
    _register_of_two(_names, _function, _of_booleans)
for _names, _function in UNCHANGED_IF_INTEGER.items():
    aten(_names)(lambda x, f=_function: f(x) if x.dtype.is_floating else x)
for _names, _function in OTHERS.items():
    aten(*_names.split())(_function)


@aten("add")
def _add(a: Any, b: Any, alpha: Any = 1) -> tf.Tensor:
    a, b = promote_dtypes(a, b)
    if a.dtype.is_bool:
        return tf.logical_or(a, b)
    return a + b if alpha == 1 else a + b * as_dtype(alpha, b.dtype)


@aten("sub", "subtract")
def _sub(a: Any, b: Any, alpha: Any = 1) -> tf.Tensor:
    a, b = promote_dtypes(a, b)
    return a - b if alpha == 1 else a - b * as_dtype(alpha, b.dtype)


@aten("div", "divide", "true_divide")
def _div(a: Any, b: Any, rounding_mode: str | None = None) -> tf.Tensor:
    a, b = promote_dtypes(a, b)
    if rounding_mode is None:
        return floating(a) / floating(b)
    if rounding_mode == "floor":
        return tf.math.floordiv(a, b)
    if a.dtype.is_integer:
        return tf.truncatediv(a, b)
    return tf.sign(a / b) * tf.floor(tf.abs(a / b))


@aten("pow")
def _pow(a: Any, b: Any) -> tf.Tensor:
    if not is_tensor(b) and b == 2:
        return tf.square(promote_dtypes(a, b)[0])
    return _apply_promoted(tf.pow, a, b)


@aten("nan_to_num")
def _nan_to_num(x: tf.Tensor, nan: Any = None, posinf: Any = None, neginf: Any = None) -> tf.Tensor:
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


@aten("clamp", "clip", "hardtanh")
def _clamp(x: tf.Tensor, min: Any = None, max: Any = None) -> tf.Tensor:
    dtype = result_type(x, *(bound for bound in (min, max) if bound is not None))
    x = tf.cast(x, dtype)
    x = x if min is None else tf.maximum(x, as_dtype(min, dtype))
    return x if max is None else tf.minimum(x, as_dtype(max, dtype))


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


@aten("prelu")
def _prelu(x: tf.Tensor, slope: tf.Tensor) -> tf.Tensor:
    ones = [1] * (x.shape.rank - 2)
    slope = tf.reshape(slope, [-1, *ones]) if x.shape.rank > 1 else slope
    return tf.maximum(x, 0.0) + slope * tf.minimum(x, 0.0)


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
    return x if dtype is None else tf.cast(x, dtype)


PYTHON = "add sub mul floordiv mod neg truediv pow lt le gt ge eq ne and_ or_ getitem"
# Python's operators on sizes, of integers, and of tensors in their place.
OF_SIZES: dict[str, tuple[Function, Function]] = {
    "sym_max": (max, tf.maximum),
    "sym_min": (min, tf.minimum),
    "sym_float": (float, lambda x: tf.cast(x, tf.float64)),
    "sym_int": (int, lambda x: tf.cast(x, tf.int32)),
    "trunc": (int, lambda x: tf.cast(x, tf.int32)),
    "ceil": (lambda x: -int(-x // 1), lambda x: tf.cast(tf.math.ceil(x), tf.int32)),
    "floor": (lambda x: int(x // 1), lambda x: tf.cast(tf.floor(x), tf.int32)),
    "sym_not": (operator.not_, tf.logical_not),
    "_sym_sqrt": (lambda x: x**0.5, lambda x: tf.sqrt(tf.cast(x, tf.float64))),
}


def _register_of_sizes(name: str, of_numbers: Function, of_tensors: Function) -> None:
    @aten(f"py.{name}")
    def rule(*sizes: Any) -> Any:
        return (of_tensors if any(map(is_tensor, sizes)) else of_numbers)(*sizes)


for _names, (_of_numbers, _of_tensors) in OF_SIZES.items():
    _register_of_sizes(_names, _of_numbers, _of_tensors)
for _names in PYTHON.split():
    aten(f"py.{_names.rstrip('_')}")(getattr(operator, _names))
