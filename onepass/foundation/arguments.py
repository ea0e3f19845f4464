"""Check the arguments of a model, bundle or client, such as seeds; without TensorFlow."""

import contextlib
import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from onepass.foundation.errors import UserError, must_be, require

MOST = 2**31 - 1  # the largest size of a tensor's axis, and the largest step


def integer(value: Any) -> int | None:
    """Return an integer of any library as a Python integer; None for anything else.

    An integer is what Python uses as an index (`operator.index`), such as an array of integers
    without axes, but no boolean.
    """
    if isinstance(value, bool | np.bool_):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def whole_number(value: Any, name: str, least: int = 1, most: int | None = MOST) -> int:
    """Check an argument by the rule of `integer`, and return it as a Python integer."""
    number = integer(value)
    if number is None or number < least:
        raise UserError(must_be(name, f"an integer of at least {least}", repr(value)))
    if most is not None and number > most:
        raise UserError(must_be(name, f"an integer from {least} to {most}", repr(value)))
    return number


def check_seed(seed: Any) -> int:
    """Check a seed, an integer in [0, 2^64), and return it as a Python integer."""
    number = integer(seed)
    if number is None or not 0 <= number < 2**64:
        raise UserError(must_be("seed", "an integer in [0, 2^64)", repr(seed)))
    return number


def real_number(
    value: Any, name: str, low: float = -math.inf, high: float = math.inf, is_above: bool = False
) -> float:
    """Return a finite number in [low, high], or above `low` if `is_above`, as a Python float."""
    try:
        is_other = isinstance(value, str | bool) or np.ndim(value) > 0
        number = math.nan if is_other else float(value)
    except (TypeError, ValueError):
        number = math.nan
    is_low = number <= low if is_above else number < low
    if is_low or number > high or not math.isfinite(number):
        raise UserError(must_be(name, _range(low, high, is_above), repr(value)))
    return number


def _range(low: float, high: float, is_above: bool) -> str:
    if math.isfinite(high):
        return f"a number in {'(' if is_above else '['}{low:g}, {high:g}]"
    if math.isinf(low):
        return "a finite number"
    return f"a finite number{f' above {low:g}' if is_above else f' of at least {low:g}'}"


def check_temperature(temperature: Any, tempers: bool = True) -> float:
    """Return a temperature, at least 0, or 1 unless the distribution `tempers`, as a float."""
    number = real_number(temperature, "temperature", 0.0)
    require(number == 1.0 or tempers, "temperature", "1 without a quantile", temperature)
    return number


def number_of(word: str) -> int | float | None:
    """Convert a word to an integer or, if that is not possible, to a float; None: it is neither."""
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(word)
    return None


def number_in(word: str, option: str, others: str = "") -> int | float:
    """Convert a word of a command's option to a number; the error says `others` as well."""
    number = number_of(word)
    if number is None:
        raise UserError(f"{option} must be numbers{others}, got {word}.")
    return number


def check_flag(value: Any, name: str) -> bool:
    """Check a switch, True or False, and return it as a Python boolean."""
    require(isinstance(value, bool | np.bool_), name, "True or False", repr(value))
    return bool(value)


def check_unmasked(values: Any, name: str) -> None:
    """Raise UserError for a masked array with a mask, or a list of them: no mask is read."""
    parts = values if isinstance(values, list | tuple) else (values,)
    if any(np.ma.is_masked(part) for part in parts):
        raise UserError(
            f"`{name}` must have no masked values, which would be read as if they were data; pass"
            " rows of different lengths as a list, or `lengths`, or fill the values."
        )


def check_draw_length(length: Any, order: str) -> tuple[int, ...]:
    """Check a length, an integer in time, three in raster order, and return it as a tuple."""
    axes = 1 if order == "time" else 3
    given = [length]
    is_shape = isinstance(length, Sequence | np.ndarray) and not isinstance(length, str | bytes)
    if is_shape and axes > 1:
        given = list(length) if np.ndim(length) == 1 else []
    sizes = [integer(size) for size in given]
    found = tuple(size for size in sizes if size is not None and 1 <= size <= MOST)
    if len(sizes) != axes or len(found) != axes:
        meaning = "a number of elements, an integer" if axes == 1 else "(height, width, channels)"
        is_large = any(size is not None and size > MOST for size in sizes)
        rule = f"from 1 to {MOST}" if is_large else "of at least 1"
        raise UserError(must_be("length", f"{meaning} {rule}", repr(length)))
    return found


def check_prefix(prefix: Any, num: int, length: int, event: Sequence[int] = ()) -> list[np.ndarray]:
    """Check a prefix and return it as a list with an array [n, *event], n <= length, for each row.

    It is [num, n, *event], [n, *event] for all rows, or `num` arrays [n, *event].
    """
    rows = _prefix_rows(prefix, num, event)
    if len(rows) != num:
        raise UserError(f"`prefix` must have {num} rows, one per sequence, got {len(rows)}.")
    longest = max(map(len, rows))
    if longest > length:
        raise UserError(
            f"`prefix` must be at most as long as `length`, {length}, which counts the whole, got"
            f" {longest}."
        )
    return rows


def _prefix_rows(prefix: Any, num: int, event: Sequence[int]) -> list[np.ndarray]:
    check_unmasked(prefix, "prefix")
    given, axes = prefix.to_list() if hasattr(prefix, "to_list") else prefix, 1 + len(event)
    try:
        is_list = isinstance(given, Sequence) and len(given) > 0 and np.ndim(given[0]) == axes
        rows = [np.asarray(row) for row in (given if is_list else [given])]
    except ValueError:  # ragged within a row
        is_list, rows = False, [np.asarray(None)]
    if any(row.dtype == object for row in rows):
        raise UserError("`prefix` must be an array of numbers, or a list of rows of numbers.")
    shapes = [list(row.shape) for row in rows]
    wrong = [x for x in shapes if len(x) not in ((axes,) if is_list else (axes, axes + 1))]
    if wrong:
        more = "".join(f", {size}" for size in event)
        raise UserError(f"`prefix` must be [num, n{more}] or [n{more}], got {wrong[0]}.")
    if is_list:
        return rows
    return rows * num if rows[0].ndim == axes else list(rows[0])


def check_element_values(value: Any, name: str, most: int | None = None) -> np.ndarray:
    """Check one number, or up to `most`; return the different ones as an array [n], in order."""
    check_unmasked(value, name)
    try:
        elements = np.asarray(list(value) if isinstance(value, set | frozenset) else value)
    except ValueError:  # ragged
        elements = np.asarray(None)
    rule = "one element, a number" if most == 1 else "a number or a list of numbers"
    if elements.dtype.kind not in "iuf" and elements.size:
        raise UserError(must_be(name, rule, repr(value)))
    if elements.ndim > (0 if most == 1 else 1) or not elements.size:
        got = f"shape {list(elements.shape)}"
        raise UserError(must_be(name, rule.partition(",")[0], got))
    return np.unique(elements)
