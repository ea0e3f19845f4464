"""The gated unit tanh(a) sigmoid(b) in LLVM code, with powers of 2 and one division."""

import math

import numpy as np
from llvmlite import ir

from distill.cpu import bfloat16
from onepass.machine.llvm import VECTOR, WORDS, clip, multiply_add, number, whole

# Factors of `pack_gates` for filters and gates: 2^x is easier to compute than e^x.
FILTER_UNIT, GATE_UNIT = 2 / math.log(2), -1 / math.log(2)
_FILTER_LIMIT = 10 * FILTER_UNIT  # tanh(10) rounds to 1
_GATE_LIMIT = 86.0  # 2^-86 + 1 rounds to 1, and 2^86 does not overflow


def _series(degree: int) -> list[float]:
    """Return coefficients of (2^r - 1) / r, highest first; |r| <= 1/2.

    The largest error is 8e-9 with degree 5 and 1.1e-5 with degree 3.
    """
    fit = np.polynomial.Chebyshev.interpolate(
        lambda r: np.expm1(r * math.log(2)) / r, degree, domain=[-0.5, 0.5]
    )
    return fit.convert(kind=np.polynomial.Polynomial).coef[::-1].tolist()


def _power_and_rest(builder: ir.IRBuilder, x: ir.Value, degree: int) -> tuple[ir.Value, ir.Value]:
    """Return 2^n and 2^r - 1 for x = n + r, |r| <= 1/2, |x| < 126."""
    to_whole = number(1.5 * 2.0**23)  # adding it leaves no bits for a fraction
    shifted = builder.fadd(x, to_whole)
    r = builder.fsub(x, builder.fsub(shifted, to_whole))
    highest, *others = _series(degree)
    series = number(highest)
    for coefficient in others:
        series = multiply_add(builder, series, r, number(coefficient))
    # n is in the lowest bits; the exponent of 1.0 is added to it.
    exponent = builder.shl(builder.bitcast(shifted, WORDS), whole(23))
    power = builder.bitcast(builder.add(exponent, whole(0x3F800000)), VECTOR)
    return power, builder.fmul(series, r)


def unit(builder: ir.IRBuilder, a: ir.Value, b: ir.Value, narrow: bool) -> ir.Value:
    """Return tanh(a') sigmoid(b') for a = FILTER_UNIT a' and b = GATE_UNIT b'.

    It is e / ((e + 2) f), with e = exp(2 a') - 1 = 2^a - 1 and f = 1 + exp(-b') = 1 + 2^b. If
    `narrow`, it is less exact, but its error is below the rounding of bfloat16.
    """
    degree = 3 if narrow else 5
    power, rest = _power_and_rest(builder, clip(builder, a, _FILTER_LIMIT), degree)
    e = multiply_add(builder, power, rest, builder.fsub(power, number(1.0)))
    power, rest = _power_and_rest(builder, clip(builder, b, _GATE_LIMIT), degree)
    f = multiply_add(builder, power, rest, builder.fadd(power, number(1.0)))
    under = builder.fmul(builder.fadd(e, number(2.0)), f)
    if narrow:
        return builder.fmul(e, bfloat16.reciprocal(builder, under))
    return builder.fdiv(e, under)
