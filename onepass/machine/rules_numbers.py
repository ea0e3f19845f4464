"""Lowering rules for element-wise operations."""

import dataclasses

import numpy as np
import tensorflow as tf

from onepass.machine.formulas import FUNCTIONS
from onepass.machine.lowering import Lowering, rule
from onepass.machine.values import KNOWN, Any_Value, Constant, Unlowerable, is_wide

# Function names in `formulas` that differ from the names of the operations.
_OTHER_NAMES = {
    "AddV2": "Add", "BiasAdd": "Add", "Div": "RealDiv", "Mod": "FloorMod", "Inv": "Reciprocal",
    "Round": "Rint", "SelectV2": "Select",
}  # fmt: skip
_COMPOSED = ("Gate", "Copy")
_SAME = (
    "Identity", "StopGradient", "PreventGradient", "CheckNumerics", "EnsureShape", "Snapshot",
)  # fmt: skip


@rule("Pow")
def _power(lowering: Lowering, op: tf.Operation, inputs: list[Any_Value]) -> list[Any_Value]:
    base, exponent = inputs
    if isinstance(exponent, Constant) and exponent.size == 1:
        made = _known_power(lowering, base, float(exponent.array.reshape([])))
        # An exponent with more axes than its base would add axes.
        if made is not None and len(exponent.shape) <= len(base.shape):
            return [made]
    return [lowering.map("Pow", base, exponent)]


def _known_power(lowering: Lowering, base: Any_Value, exponent: float) -> Any_Value | None:
    by_name = {1.0: "Copy", 2.0: "Square", 0.5: "Sqrt", -0.5: "Rsqrt", -1.0: "Reciprocal"}
    if exponent == 3.0:
        return lowering.map("Mul", lowering.map("Square", base), base)
    return lowering.map(by_name[exponent], base) if exponent in by_name else None


@rule(*(name for name in FUNCTIONS if name not in (*_COMPOSED, "Pow")), *_OTHER_NAMES)
def _function(lowering: Lowering, op: tf.Operation, inputs: list[Any_Value]) -> list[Any_Value]:
    name = _OTHER_NAMES.get(op.type, op.type)
    if op.type == "BiasAdd" and op.get_attr("data_format") != b"NHWC":
        raise Unlowerable("channels are not last")
    if op.type == "Select" and inputs[0].shape != inputs[1].shape and inputs[0].shape:
        raise Unlowerable("a choice of whole rows")
    return [lowering.map(name, *inputs)]


@rule(*_SAME)
def _same(lowering: Lowering, op: tf.Operation, inputs: list[Any_Value]) -> list[Any_Value]:
    return inputs[:1]


@rule("IdentityN")
def _all_same(lowering: Lowering, op: tf.Operation, inputs: list[Any_Value]) -> list[Any_Value]:
    return inputs


@rule("NoOp", "Assert")
def _nothing(lowering: Lowering, op: tf.Operation, inputs: list[Any_Value]) -> list[Any_Value]:
    return []


@rule("Cast")
def _cast(lowering: Lowering, op: tf.Operation, inputs: list[Any_Value]) -> list[Any_Value]:
    dtype = np.dtype(op.outputs[0].dtype.as_numpy_dtype)
    (given,) = inputs
    if isinstance(given, Constant):
        return [Constant(given.array.astype(dtype))]
    if dtype not in KNOWN:
        raise Unlowerable(f"numbers of type {dtype.name}")
    return [cast(lowering, given, dtype)]


def cast(lowering: Lowering, given: Any_Value, dtype: np.dtype) -> Any_Value:
    """Return a value converted to a dtype."""
    if isinstance(given, Constant):
        return Constant(given.array.astype(dtype))
    whole = np.issubdtype(dtype, np.integer) and np.issubdtype(given.dtype, np.floating)
    if whole:
        given = lowering.value(lowering.map("Trunc", given))
    if dtype == np.dtype(bool):
        return lowering.map("NotEqual", given, Constant(np.zeros([], given.dtype)))
    made = lowering.doubles(given) if is_wide(dtype) else lowering.floats(given, dtype)
    return _with_dtype(made, dtype)


def _with_dtype(value: Any_Value, dtype: np.dtype) -> Any_Value:
    return value if isinstance(value, Constant) else dataclasses.replace(value, dtype=dtype)


@rule("AddN")
def _add_all(lowering: Lowering, op: tf.Operation, inputs: list[Any_Value]) -> list[Any_Value]:
    total = inputs[0]
    for each in inputs[1:]:
        total = lowering.map("Add", total, each)
    return [total]


@rule("LeakyRelu")
def _leaky(lowering: Lowering, op: tf.Operation, inputs: list[Any_Value]) -> list[Any_Value]:
    slope = Constant(np.float32(op.get_attr("alpha")))
    scaled = lowering.map("Mul", inputs[0], slope)
    zero = Constant(np.float32(0.0))
    test = lowering.map("Greater", inputs[0], zero)
    return [lowering.map("Select", test, inputs[0], scaled)]


@rule("Selu")
def _selu(lowering: Lowering, op: tf.Operation, inputs: list[Any_Value]) -> list[Any_Value]:
    scale, alpha = np.float32(1.0507009873554805), np.float32(1.7580993408473766)
    below = lowering.map("Mul", lowering.map("Expm1", inputs[0]), Constant(alpha))
    above = lowering.map("Mul", inputs[0], Constant(scale))
    test = lowering.map("Greater", inputs[0], Constant(np.float32(0.0)))
    return [lowering.map("Select", test, above, below)]


@rule("ClipByValue")
def _clip(lowering: Lowering, op: tf.Operation, inputs: list[Any_Value]) -> list[Any_Value]:
    given, low, high = inputs
    return [lowering.map("Maximum", lowering.map("Minimum", given, high), low)]


@rule("DivNoNan")
def _div_no_nan(lowering: Lowering, op: tf.Operation, inputs: list[Any_Value]) -> list[Any_Value]:
    return [_unless_zero(lowering, inputs[1], lowering.map("RealDiv", *inputs))]


@rule("MulNoNan")
def _mul_no_nan(lowering: Lowering, op: tf.Operation, inputs: list[Any_Value]) -> list[Any_Value]:
    return [_unless_zero(lowering, inputs[1], lowering.map("Mul", *inputs))]


@rule("Xlogy", "Xdivy")
def _x_times(lowering: Lowering, op: tf.Operation, inputs: list[Any_Value]) -> list[Any_Value]:
    first, second = inputs
    if op.type == "Xlogy":
        made = lowering.map("Mul", first, lowering.map("Log", second))
    else:
        made = lowering.map("RealDiv", first, second)
    return [_unless_zero(lowering, first, made)]


def _unless_zero(lowering: Lowering, test: Any_Value, made: Any_Value) -> Any_Value:
    zero = Constant(np.zeros([], test.dtype))
    return lowering.map("Select", lowering.map("Equal", test, zero), zero, made)
