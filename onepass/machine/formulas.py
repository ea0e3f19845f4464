"""Element-wise functions: their codes, and implementations in NumPy, Numba and LLVM.

Each function has one entry here. Its vector formula, if it has one, has a relative error of about
1e-7; functions without one are computed in doubles, one number at a time, by what Numba makes of
the implementation in NumPy.
"""

import dataclasses
import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.compiler import Flags
from numba.extending import intrinsic

from onepass.machine.compiler import compiled
from onepass.machine.kernels import (
    FLOAT,
    INT,
    LANES,
    VECTOR,
    VECTOR_BYTES,
    WORDS,
    clip,
    emit_for_numba,
    expm1,
    integer,
    load_vector,
    multiply_add,
    number,
    pointer_at,
    power_and_rest,
    spread,
    store_vector,
    whole,
)

Formula = Callable[..., Any]


@dataclasses.dataclass(frozen=True)
class Function:
    """A function of one to three numbers."""

    code: int
    arity: int
    numpy: Callable[..., Any]
    vector: Formula | None  # of an LLVM builder and vectors; None: doubles are used
    truth: bool
    double: Callable[..., Any]  # of single numbers, for Numba


FUNCTIONS: dict[str, Function] = {}


def _define(
    name: str,
    arity: int,
    in_numpy: Callable,
    vector: Formula | None = None,
    truth: bool = False,
    double: Callable | None = None,  # None: Numba compiles `in_numpy` for single numbers
) -> None:
    double = double or in_numpy
    if not inspect.isfunction(double):  # Numba compiles functions of Python, which call others
        double = _CALLS[arity](double)
    FUNCTIONS[name] = Function(len(FUNCTIONS), arity, in_numpy, vector, truth, double)


_CALLS: dict[int, Callable[[Callable], Callable]] = {
    1: lambda function: lambda a: function(a),
    2: lambda function: lambda a, b: function(a, b),
}


def _call(name: str) -> Formula:
    def formula(builder: ir.IRBuilder, *arguments: ir.Value) -> ir.Value:
        kind = ir.FunctionType(VECTOR, [VECTOR] * len(arguments))
        function = cgutils.get_or_insert_function(builder.module, kind, f"llvm.{name}.v{LANES}f32")
        return builder.call(function, list(arguments))

    return formula


def _polynomial(builder: ir.IRBuilder, x: ir.Value, coefficients: Sequence[float]) -> ir.Value:
    total = number(coefficients[0])
    for coefficient in coefficients[1:]:
        total = multiply_add(builder, total, x, number(coefficient))
    return total


def _compare(sign: str) -> Formula:
    def formula(builder: ir.IRBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
        compare = builder.fcmp_unordered if sign == "!=" else builder.fcmp_ordered
        return builder.select(compare(sign, a, b), number(1.0), number(0.0))

    return formula


def _where(builder: ir.IRBuilder, test: ir.Value, a: ir.Value, b: ir.Value) -> ir.Value:
    return builder.select(builder.fcmp_unordered("!=", test, number(0.0)), a, b)


def _larger(builder: ir.IRBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
    return builder.select(builder.fcmp_unordered(">", a, b), a, b)


def _smaller(builder: ir.IRBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
    return builder.select(builder.fcmp_unordered("<", a, b), a, b)


def _exp(builder: ir.IRBuilder, x: ir.Value) -> ir.Value:
    power, rest = power_and_rest(builder, clip(builder, x, 87.0))
    made = multiply_add(builder, power, rest, power)
    made = builder.select(builder.fcmp_ordered(">", x, number(88.72)), number(math.inf), made)
    made = builder.select(builder.fcmp_ordered("<", x, number(-87.0)), number(0.0), made)
    return builder.select(builder.fcmp_unordered("uno", x, x), x, made)


def _tanh(builder: ir.IRBuilder, x: ir.Value) -> ir.Value:
    e = expm1(builder, clip(builder, builder.fadd(x, x), 20.0))  # tanh(10) rounds to 1
    return builder.fdiv(e, builder.fadd(e, number(2.0)))


def _sigmoid(builder: ir.IRBuilder, x: ir.Value) -> ir.Value:
    f = expm1(builder, clip(builder, builder.fneg(x), 80.0))
    return builder.fdiv(number(1.0), builder.fadd(f, number(2.0)))


def _gate(builder: ir.IRBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
    """Return tanh(a) sigmoid(b) = e / ((e + 2) (f + 2)), e = exp(2 a) - 1, f = exp(-b) - 1."""
    e = expm1(builder, clip(builder, builder.fadd(a, a), 20.0))
    f = expm1(builder, clip(builder, builder.fneg(b), 60.0))
    two = number(2.0)
    return builder.fdiv(e, builder.fmul(builder.fadd(e, two), builder.fadd(f, two)))


# log(1 + m) = m - m^2 / 2 + m^3 p(m). Source: Moshier, Cephes, `logf`.
_LOG_POLYNOMIAL = (
    7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1,
    -1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1,
)  # fmt: skip


def _log_near_one(builder: ir.IRBuilder, m: ir.Value) -> ir.Value:
    """Return log(1 + m) for sqrt(1/2) - 1 < m < sqrt(2) - 1."""
    square = builder.fmul(m, m)
    rest = builder.fmul(builder.fmul(_polynomial(builder, m, _LOG_POLYNOMIAL), m), square)
    return builder.fadd(multiply_add(builder, square, number(-0.5), rest), m)


def _log(builder: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """Return log(x), the exponent times log 2 plus the log of the mantissa; x must be normal."""
    bits = builder.bitcast(x, WORDS)
    bits = builder.sub(bits, whole(0x3F3504F3))  # sqrt(1/2)
    exponent = builder.sitofp(builder.ashr(bits, whole(23)), VECTOR)
    mantissa = builder.add(builder.and_(bits, whole(0x7FFFFF)), whole(0x3F3504F3))
    m = builder.fsub(builder.bitcast(mantissa, VECTOR), number(1.0))
    low = builder.fmul(exponent, number(-2.12194440e-4))
    made = builder.fadd(_log_near_one(builder, m), low)
    made = multiply_add(builder, exponent, number(0.693359375), made)
    made = builder.select(builder.fcmp_ordered("<", x, number(0.0)), number(math.nan), made)
    made = builder.select(builder.fcmp_ordered("==", x, number(0.0)), number(-math.inf), made)
    infinite = builder.fcmp_unordered(">=", x, number(math.inf))  # or NaN
    return builder.select(infinite, x, made)


def _log1p(builder: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """Return log(1 + x) = log(u) + (x - (u - 1)) / u, where u is 1 + x rounded."""
    u = builder.fadd(x, number(1.0))
    lost = builder.fsub(x, builder.fsub(u, number(1.0)))
    made = builder.fadd(_log(builder, u), builder.fdiv(lost, u))
    plain = builder.fcmp_unordered(">", u, number(1e30))  # avoids infinity minus infinity
    plain = builder.or_(plain, builder.fcmp_ordered("<=", u, number(0.0)))
    return builder.select(plain, _log(builder, u), made)


def _softplus(builder: ir.IRBuilder, x: ir.Value) -> ir.Value:
    away = _exp(builder, builder.fneg(_call("fabs")(builder, x)))
    return builder.fadd(_larger(builder, x, number(0.0)), _log1p(builder, away))


# x p(x^2) / q(x^2) on [-3.832507, 3.832507]. Source: Eigen, `generic_fast_erf_float`.
_ERF_ABOVE = (
    -2.72614225801306e-10, 2.77068142495902e-08, -2.10102402082508e-06, -5.69250639462346e-05,
    -7.34990630326855e-04, -2.95459980854025e-03, -1.60960333262415e-02,
)  # fmt: skip
_ERF_BELOW = (
    -1.45660718464996e-05, -2.13374055278905e-04, -1.68282697438203e-03, -7.37332916720468e-03,
    -1.42647390514189e-02,
)  # fmt: skip


def _erf(builder: ir.IRBuilder, x: ir.Value) -> ir.Value:
    x = clip(builder, x, 3.832506856900711)
    square = builder.fmul(x, x)
    above = builder.fmul(x, _polynomial(builder, square, _ERF_ABOVE))
    return builder.fdiv(above, _polynomial(builder, square, _ERF_BELOW))


def _expm1_of_any(builder: ir.IRBuilder, x: ir.Value) -> ir.Value:
    limited = expm1(builder, clip(builder, x, 80.0))
    far = builder.fcmp_ordered(">", x, number(80.0))
    return builder.select(far, _exp(builder, x), limited)


def _elu(builder: ir.IRBuilder, x: ir.Value) -> ir.Value:
    above = builder.fcmp_ordered(">", x, number(0.0))
    return builder.select(above, x, expm1(builder, clip(builder, x, 80.0)))


def _sign(builder: ir.IRBuilder, x: ir.Value) -> ir.Value:
    up = builder.select(builder.fcmp_ordered(">", x, number(0.0)), number(1.0), x)
    return builder.select(builder.fcmp_ordered("<", x, number(0.0)), number(-1.0), up)


def _both(builder: ir.IRBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
    return builder.fmul(a, b)


def _of_each(function: Callable[[float], float]) -> Callable[..., np.ndarray]:
    return np.vectorize(function, otypes=[np.float64])


_define("Copy", 1, np.positive, lambda builder, x: x)
_define("Add", 2, np.add, lambda builder, a, b: builder.fadd(a, b))
_define("Sub", 2, np.subtract, lambda builder, a, b: builder.fsub(a, b))
_define("Mul", 2, np.multiply, lambda builder, a, b: builder.fmul(a, b))
_define("RealDiv", 2, np.true_divide, lambda builder, a, b: builder.fdiv(a, b))
_define("Maximum", 2, np.maximum, _larger)
_define("Minimum", 2, np.minimum, _smaller)
_define("SquaredDifference", 2, lambda a, b: np.square(a - b),
        lambda builder, a, b: builder.fmul(builder.fsub(a, b), builder.fsub(a, b)))  # fmt: skip
_define("Greater", 2, np.greater, _compare(">"), True)
_define("GreaterEqual", 2, np.greater_equal, _compare(">="), True)
_define("Less", 2, np.less, _compare("<"), True)
_define("LessEqual", 2, np.less_equal, _compare("<="), True)
_define("Equal", 2, np.equal, _compare("=="), True)
_define("NotEqual", 2, np.not_equal, _compare("!="), True)
_define("LogicalAnd", 2, np.logical_and, _both, True)
_define("LogicalOr", 2, np.logical_or, _larger, True)
_define("LogicalNot", 1, np.logical_not, lambda builder, x: builder.fsub(number(1.0), x), True)
_define("Select", 3, np.where, _where, double=lambda test, a, b: a if test != 0.0 else b)
_define("Neg", 1, np.negative, lambda builder, x: builder.fneg(x))
_define("Abs", 1, np.abs, _call("fabs"))
_define("Sign", 1, np.sign, _sign)
_define("Square", 1, np.square, lambda builder, x: builder.fmul(x, x))
_define("Sqrt", 1, np.sqrt, _call("sqrt"))
_define("Rsqrt", 1, lambda x: 1 / np.sqrt(x),
        lambda builder, x: builder.fdiv(number(1.0), _call("sqrt")(builder, x)))  # fmt: skip
_define("Reciprocal", 1, np.reciprocal, lambda builder, x: builder.fdiv(number(1.0), x))
_define("Floor", 1, np.floor, _call("floor"))
_define("Ceil", 1, np.ceil, _call("ceil"))
_define("Trunc", 1, np.trunc, _call("trunc"))
_define("Rint", 1, np.rint, _call("rint"))
_define("Relu", 1, lambda x: np.maximum(x, 0), lambda b, x: _larger(b, x, number(0.0)))
_define("Relu6", 1, lambda x: np.minimum(np.maximum(x, 0), 6),
        lambda b, x: _smaller(b, _larger(b, x, number(0.0)), number(6.0)))  # fmt: skip
_define("Exp", 1, np.exp, _exp)
_define("Expm1", 1, np.expm1, _expm1_of_any)
_define("Log", 1, np.log, _log)
_define("Log1p", 1, np.log1p, _log1p)
_define("Tanh", 1, np.tanh, _tanh)
_define("Sigmoid", 1, lambda x: 1 / (1 + np.exp(-x)), _sigmoid)
_define("Softplus", 1, lambda x: np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))), _softplus)
_define("Softsign", 1, lambda x: x / (1 + np.abs(x)), lambda b, x: b.fdiv(
    x, b.fadd(number(1.0), _call("fabs")(b, x))))  # fmt: skip
_define("Elu", 1, lambda x: np.maximum(x, 0) + np.expm1(np.minimum(x, 0)), _elu)
_define("Erf", 1, _of_each(math.erf), _erf, double=math.erf)
_define("Gate", 2, lambda a, b: np.tanh(a) / (1 + np.exp(-b)), _gate)
# The functions below are computed only in doubles.
_define("Erfc", 1, _of_each(math.erfc), double=math.erfc)
_define("Lgamma", 1, _of_each(math.lgamma), double=math.lgamma)
_define("Sin", 1, np.sin)
_define("Cos", 1, np.cos)
_define("Tan", 1, np.tan)
_define("Asin", 1, np.arcsin)
_define("Acos", 1, np.arccos)
_define("Atan", 1, np.arctan)
_define("Sinh", 1, np.sinh)
_define("Cosh", 1, np.cosh)
_define("Asinh", 1, np.arcsinh)
_define("Acosh", 1, np.arccosh)
_define("Atanh", 1, np.arctanh)
_define("Pow", 2, np.power)
_define("Atan2", 2, np.arctan2)
# Numba's own are exact and slow.
_define("FloorMod", 2, np.mod, double=lambda a, b: a - b * np.floor(a / b))
_define("FloorDiv", 2, np.floor_divide, double=lambda a, b: np.floor(a / b))
_define("TruncateDiv", 2, lambda a, b: np.trunc(a / b))
_define("IsNan", 1, np.isnan, None, True)
_define("IsInf", 1, np.isinf, None, True)
_define("IsFinite", 1, np.isfinite, None, True)

CODES = {name: function.code for name, function in FUNCTIONS.items()}
VECTORISED = max(f.code for f in FUNCTIONS.values() if f.vector is not None) + 1


def fold_constants(name: str, arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Return the value of a named function for constants."""
    with np.errstate(all="ignore"):
        return np.asarray(FUNCTIONS[name].numpy(*arrays))


@emit_for_numba(types.void, [types.int64] * 14)
def map_vectors(
    builder: ir.IRBuilder,
    code: ir.Value,
    o: ir.Value,
    a: ir.Value,
    b: ir.Value,
    c: ir.Value,
    o_pitch: ir.Value,
    a_pitch: ir.Value,
    b_pitch: ir.Value,
    c_pitch: ir.Value,
    a_step: ir.Value,
    b_step: ir.Value,
    c_step: ir.Value,
    rows: ir.Value,
    vectors: ir.Value,
) -> None:
    """Set rows of vectors at o to function `code` of those at a, b and c.

    Pitches are numbers of bytes between rows, and steps those between the vectors of a row; step 0
    repeats a number.
    """
    operands = (a, a_pitch, a_step), (b, b_pitch, b_step), (c, c_pitch, c_step)
    slots = [cgutils.alloca_once(builder, VECTOR) for _ in operands]
    end = builder.append_basic_block("mapped")
    switch = builder.switch(code, end)
    for function in FUNCTIONS.values():
        if function.vector is None:
            continue
        block = builder.append_basic_block("function")
        switch.add_case(integer(function.code), block)
        builder.position_at_end(block)
        with cgutils.for_range(builder, rows) as row:
            starts = [
                _spread_once(builder, builder.add(at, builder.mul(row.index, pitch)), step, slot)
                for slot, (at, pitch, step) in zip(slots, operands[: function.arity], strict=False)
            ]
            target = builder.add(o, builder.mul(row.index, o_pitch))
            with cgutils.for_range(builder, vectors) as vector:
                loaded = [
                    load_vector(builder, builder.add(at, builder.mul(vector.index, step)))
                    for at, (_, _, step) in zip(starts, operands, strict=False)
                ]
                made = function.vector(builder, *loaded)
                at = builder.add(target, builder.mul(vector.index, integer(VECTOR_BYTES)))
                store_vector(builder, made, at)
        builder.branch(end)
    builder.position_at_end(end)


def _spread_once(
    builder: ir.IRBuilder, address: ir.Value, step: ir.Value, slot: ir.Value
) -> ir.Value:
    """Return the address of vectors; of the one in `slot`, filled with a number, if step is 0."""
    slot.align = 4 * LANES
    alone = builder.icmp_signed("==", step, integer(0))
    with builder.if_then(alone):
        scalar = builder.load(pointer_at(builder, address, FLOAT))
        builder.store(spread(builder, scalar), slot)
    return builder.select(alone, builder.ptrtoint(slot, INT), address)


@intrinsic
def _apply(typing_context: Any, code: Any, a: Any, b: Any, c: Any) -> Any:
    def generate(context: Any, builder: ir.IRBuilder, signature: Any, values: Any) -> ir.Value:
        found = cgutils.alloca_once(builder, ir.DoubleType())
        end = builder.append_basic_block("computed")
        switch = builder.switch(values[0], end)
        for function in FUNCTIONS.values():
            block = builder.append_basic_block("function")
            switch.add_case(integer(function.code), block)
            builder.position_at_end(block)
            kind = types.float64(*[types.float64] * function.arity)
            operands = values[1 : 1 + function.arity]
            flags: Any = Flags()
            flags.error_model = "numpy"  # a division by zero raises nothing
            made = context.compile_subroutine(builder, function.double, kind, flags=flags)
            builder.store(context.call_internal(builder, made.fndesc, kind, operands), found)
            builder.branch(end)
        builder.position_at_end(end)
        return builder.load(found)

    return types.float64(types.int64, *[types.float64] * 3), generate


@compiled
def function_of(code: int, a: float, b: float, c: float) -> float:
    """Return the value of function number `code` at one to three doubles; booleans are 0 and 1."""
    return _apply(code, a, b, c)  # type: ignore[call-arg]
