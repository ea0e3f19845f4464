"""Helpers that emit LLVM code, and make it callable from functions that Numba compiles."""

import functools
from collections.abc import Callable
from typing import Any

import llvmlite.binding
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic


def _lanes() -> int:
    features = llvmlite.binding.get_host_cpu_features()
    if features.get("avx512f"):
        return 16
    return 8 if features.get("avx") else 4


LANES = _lanes()  # number of float32 values in a vector register
INT = ir.IntType(64)
FLOAT = ir.FloatType()
VECTOR = ir.VectorType(FLOAT, LANES)
WORDS = ir.VectorType(ir.IntType(32), LANES)
FLOAT_BYTES, VECTOR_BYTES = 4, 4 * LANES


def emit_for_numba(
    result: types.Type, *arguments: types.Type
) -> Callable[[Callable[..., Any]], Any]:
    """Return a decorator by which Numba can call a function of an LLVM builder and values."""

    def decorate(emit: Callable[..., Any]) -> Any:
        @functools.wraps(emit)  # Numba reads the argument names
        def infer_type(typing_context: Any, *given: types.Type) -> tuple[Any, Callable[..., Any]]:
            def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
                made = emit(builder, *values)
                return context.get_dummy_value() if made is None else made

            return result(*arguments), generate

        return intrinsic(infer_type)

    return decorate


def integer(value: int) -> ir.Value:
    """Return a 64-bit integer constant."""
    return ir.Constant(INT, value)


def number(value: float) -> ir.Value:
    """Return a vector of floats with this constant in every lane."""
    return ir.Constant(VECTOR, [value] * LANES)


def whole(value: int) -> ir.Value:
    """Return a vector of 32-bit integers with this constant in every lane."""
    return ir.Constant(WORDS, [value] * LANES)


def pointer_at(builder: ir.IRBuilder, address: ir.Value, kind: ir.Type = VECTOR) -> ir.Value:
    """Return a pointer to a value of type `kind` at an address."""
    return builder.inttoptr(address, kind.as_pointer())


def load_vector(builder: ir.IRBuilder, address: ir.Value) -> ir.Value:
    """Emit a load of the vector at an address."""
    return builder.load(pointer_at(builder, address, VECTOR), align=FLOAT_BYTES)


def store_vector(builder: ir.IRBuilder, value: ir.Value, address: ir.Value) -> None:
    """Emit a store of a vector to an address."""
    builder.store(value, pointer_at(builder, address, VECTOR), align=FLOAT_BYTES)


def spread(builder: ir.IRBuilder, scalar: ir.Value) -> ir.Value:
    """Return a vector with `scalar` in every lane."""
    undefined = ir.Constant(VECTOR, ir.Undefined)
    first = builder.insert_element(undefined, scalar, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(first, undefined, whole(0))


def multiply_add(builder: ir.IRBuilder, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
    """Return a b + c."""
    kind = ir.FunctionType(VECTOR, [VECTOR] * 3)
    function = cgutils.get_or_insert_function(builder.module, kind, f"llvm.fmuladd.v{LANES}f32")
    return builder.call(function, [a, b, c])


def clip(builder: ir.IRBuilder, x: ir.Value, limit: float) -> ir.Value:
    """Return x limited to [-limit, limit]."""
    low, high = number(-limit), number(limit)
    x = builder.select(builder.fcmp_unordered("<", x, high), x, high)
    return builder.select(builder.fcmp_unordered(">", x, low), x, low)


def power_and_rest(builder: ir.IRBuilder, x: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Return 2^n and exp(r) - 1, where x = n log 2 + r and |r| <= log(2) / 2, for |x| < 87."""
    to_whole = number(1.5 * 2.0**23)  # adding this rounds to an integer
    n = multiply_add(builder, x, number(1 / np.log(2)), to_whole)
    n = builder.fsub(n, to_whole)
    high = 355 / 512  # log 2 is split in two; n times this part is exact
    r = multiply_add(builder, n, number(-high), x)
    r = multiply_add(builder, n, number(high - np.log(2)), r)
    series = number(1 / 5040)  # Taylor; the next term is below 6e-9
    for factorial in (720, 120, 24, 6, 2, 1):
        series = multiply_add(builder, series, r, number(1 / factorial))
    exponent = builder.add(builder.fptosi(n, WORDS), whole(127))
    power = builder.bitcast(builder.shl(exponent, whole(23)), VECTOR)
    return power, builder.fmul(series, r)


def expm1(builder: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """Return exp(x) - 1, accurate to about 1 ulp for |x| < 87."""
    power, rest = power_and_rest(builder, x)
    return multiply_add(builder, power, rest, builder.fsub(power, number(1.0)))
