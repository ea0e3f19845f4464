"""Scalar functions of doubles, for integers, random draws and rarely used functions."""

import math

import numpy as np

from onepass.machine.formulas import CODES
from onepass.machine.kernels import compiled

(
    _COPY, _ADD, _SUB, _MUL, _DIV, _MAX, _MIN, _SQUARED, _GREATER, _AT_LEAST, _LESS,
    _AT_MOST, _EQUAL, _NOT_EQUAL, _AND, _OR, _NOT, _SELECT, _NEG, _ABS, _SIGN, _SQUARE,
    _SQRT, _RSQRT, _RECIPROCAL, _FLOOR, _CEIL, _TRUNC, _RINT, _RELU, _RELU6, _EXP, _EXPM1, _LOG,
    _LOG1P, _TANH, _SIGMOID, _SOFTPLUS, _SOFTSIGN, _ELU, _ERF, _GATE, _ERFC, _LGAMMA, _SIN, _COS,
    _TAN, _ASIN, _ACOS, _ATAN, _SINH, _COSH, _ASINH, _ACOSH, _ATANH, _POW, _ATAN2, _MOD, _FLOOR_DIV,
    _TRUNCATE_DIV, _IS_NAN, _IS_INF, _IS_FINITE,
) = CODES.values()  # fmt: skip


@compiled
def _sigmoid(x: float) -> float:
    return 1.0 / (1.0 + math.exp(-x)) if x > -700.0 else 0.0


@compiled
def _exp(x: float) -> float:
    return np.inf if x > 709.7 else math.exp(x)


@compiled
def _log(x: float) -> float:
    if x > 0.0:
        return math.log(x)
    return -np.inf if x == 0.0 else np.nan


@compiled
def _arithmetic(code: int, a: float, b: float, c: float) -> float:
    if code == _COPY:
        return a
    if code == _ADD:
        return a + b
    if code == _SUB:
        return a - b
    if code == _MUL:
        return a * b
    if code == _DIV:
        return a / b
    if code == _MAX:
        return a if not a <= b else b
    if code == _MIN:
        return a if not a >= b else b
    if code == _MOD:
        return a - b * math.floor(a / b)
    if code == _FLOOR_DIV:
        return math.floor(a / b)
    if code == _TRUNCATE_DIV:
        return np.trunc(a / b)
    if code == _SQUARED:
        return (a - b) * (a - b)
    return b if a != 0.0 else c  # _SELECT


@compiled
def _test(code: int, a: float, b: float) -> bool:
    if code == _GREATER:
        return a > b
    if code == _AT_LEAST:
        return a >= b
    if code == _LESS:
        return a < b
    if code == _AT_MOST:
        return a <= b
    if code == _EQUAL:
        return a == b
    if code == _NOT_EQUAL:
        return a != b
    if code == _AND:
        return a != 0.0 and b != 0.0
    if code == _OR:
        return a != 0.0 or b != 0.0
    if code == _NOT:
        return a == 0.0
    if code == _IS_NAN:
        return a != a
    if code == _IS_INF:
        return abs(a) == np.inf
    return abs(a) < np.inf


@compiled
def _apply_exact(code: int, x: float) -> float:
    if code == _NEG:
        return -x
    if code == _ABS:
        return abs(x)
    if code == _SIGN:
        return 1.0 if x > 0.0 else (-1.0 if x < 0.0 else x)
    if code == _SQUARE:
        return x * x
    if code == _SQRT:
        return np.sqrt(x)
    if code == _RSQRT:
        return 1.0 / np.sqrt(x)
    if code == _RECIPROCAL:
        return 1.0 / x
    if code == _FLOOR:
        return np.floor(x)
    if code == _CEIL:
        return np.ceil(x)
    if code == _TRUNC:
        return np.trunc(x)
    if code == _RINT:
        return np.rint(x)
    if code == _RELU:
        return x if not x <= 0.0 else 0.0
    return min(max(x, 0.0), 6.0)  # _RELU6


@compiled
def _transcendental(code: int, x: float) -> float:
    if code == _EXP:
        return _exp(x)
    if code == _EXPM1:
        return math.expm1(min(x, 709.7))
    if code == _LOG:
        return _log(x)
    if code == _LOG1P:
        return math.log1p(x) if x > -1.0 else _log(x + 1.0)
    if code == _TANH:
        return math.tanh(x)
    if code == _SIGMOID:
        return _sigmoid(x)
    if code == _SOFTPLUS:
        return max(x, 0.0) + math.log1p(math.exp(-abs(x)))
    if code == _SOFTSIGN:
        return x / (1.0 + abs(x))
    if code == _ELU:
        return x if x > 0.0 else math.expm1(x)
    if code == _ERF:
        return math.erf(x)
    if code == _ERFC:
        return math.erfc(x)
    if code == _LGAMMA:
        return math.lgamma(x)
    if code == _SINH:
        return np.sinh(x)
    if code == _COSH:
        return np.cosh(x)
    if code == _ASINH:
        return np.arcsinh(x)
    return _angle(code, x)


@compiled
def _angle(code: int, x: float) -> float:
    if code == _SIN:
        return np.sin(x)
    if code == _COS:
        return np.cos(x)
    if code == _TAN:
        return np.tan(x)
    if code == _ASIN:
        return np.arcsin(x)
    if code == _ACOS:
        return np.arccos(x)
    if code == _ATAN:
        return np.arctan(x)
    if code == _ACOSH:
        return np.arccosh(x)
    return np.arctanh(x)


@compiled
def function_of(code: int, a: float, b: float, c: float) -> float:
    """Return the value of function number `code` at one to three doubles; booleans are 0 and 1."""
    if code <= _SQUARED or code == _SELECT or _MOD <= code <= _TRUNCATE_DIV:
        return _arithmetic(code, a, b, c)
    if code <= _NOT or code >= _IS_NAN:
        return 1.0 if _test(code, a, b) else 0.0
    if code <= _RELU6:
        return _apply_exact(code, a)
    if code == _GATE:
        return math.tanh(a) * _sigmoid(b)
    if code == _POW:
        return a**b
    if code == _ATAN2:
        return math.atan2(a, b)
    return _transcendental(code, a)
