"""The check of a condition's values, by what a model says of its conditions.

What a caller passes as `condition` (None, an array, or arrays by name) becomes values by name here,
for networks, bundles and served models alike. Imports no TensorFlow, which a client has not.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from onepass.foundation.rules import check_unmasked

Shape = tuple[int | None, ...]


class Rule(NamedTuple):
    """The rule for the values of a condition in a call."""

    description: str  # type and axes, for messages, such as "int32 [num]"
    shape: Shape  # with the sizes of the call; None: any size
    dtype: np.dtype
    is_timed: bool  # whether it has the elements' axes; others may have one row for all
    low: float | None = None  # smallest integer; None: that of the type
    high: float | None = None  # largest integer; None: that of the type
    note: str = ""  # what else a message says of the shape
    needs_entries: bool = False  # whether no axis may be empty


def check_values(given: Any, rules: Mapping[str, Rule], for_all: bool = False) -> dict[str, Any]:
    """Return a call's conditions by name, arrays or tensors of their type; raise ValueError.

    They are given as None, an array for the only condition, or arrays by name; of tensors in a
    graph, the shape alone is checked. With `for_all`, one row of a condition with a time axis may
    stand for all rows, too, as one of other conditions may.
    """
    label = "condition" if len(rules) == 1 else 'condition["{}"]'
    return {
        name: _check_value(value, rules[name], label.format(name), for_all)
        for name, value in _by_name(given, rules).items()
    }


def _by_name(given: Any, rules: Mapping[str, Rule]) -> dict[str, Any]:
    if not rules:
        if given is not None and not (isinstance(given, Mapping) and not given):
            raise ValueError("`condition` must be None: the model reads none.")
        return {}
    listed = ", ".join(f"{name}: {rule.description}" for name, rule in rules.items())
    if not isinstance(given, Mapping):
        if len(rules) > 1:
            raise ValueError(f"`condition` must be a dict with {listed}.")
        given = {next(iter(rules)): given}
    if given.keys() != rules.keys():
        got = ", ".join(map(str, given)) or "none"
        raise ValueError(f"`condition` must be a dict with {listed}, got {got}.")
    return {name: given[name] for name in rules}


def _check_value(value: Any, rule: Rule, label: str, for_all: bool) -> Any:
    if value is not None and not _is_tensor(value):
        value = _as_array(value, rule, label)
    dtype = None if value is None else getattr(value.dtype, "as_numpy_dtype", value.dtype)
    if dtype is not None and np.dtype(dtype).kind not in "biuf" and value.dtype.name != "bfloat16":
        raise ValueError(f"`{label}` must be {rule.dtype.name}, got {value.dtype.name}.")
    if getattr(getattr(value, "shape", None), "rank", 0) is None:
        value.set_shape(rule.shape)  # of a graph that says nothing of it
    value = _in_rows(value, rule, for_all)
    found = None if value is None else tuple(value.shape)
    if found is None or not _fits(rule.shape, found):
        raise ValueError(f"`{label}` must be given, {rule.shape}{rule.note}, got {found}.")
    if rule.needs_entries and 0 in found[1:]:
        raise ValueError(f"`{label}` must have an entry, got shape {found}.")
    if rule.dtype.kind in "iu" and (not _is_tensor(value) or hasattr(value, "numpy")):
        _check_whole_numbers(np.asarray(value), rule, label)
    if _is_tensor(value):
        import tensorflow as tf

        return tf.cast(value, rule.dtype)
    with np.errstate(over="ignore"):  # a later check refuses infinity
        return value.astype(rule.dtype)


def _is_tensor(value: Any) -> bool:
    return hasattr(getattr(value, "dtype", None), "as_numpy_dtype")


def _as_array(value: Any, rule: Rule, label: str) -> np.ndarray:
    check_unmasked(value, label)
    try:
        array = np.asarray(value)
    except ValueError:  # ragged
        array = np.asarray(None)
    if array.dtype == object:
        raise ValueError(f"`{label}` must be {rule.dtype.name}, an array of numbers.")
    return array


def _in_rows(value: Any, rule: Rule, for_all: bool) -> Any:
    """Return values with an axis of rows, those of one row repeated for all that may share it."""
    if value is None:
        return None
    axes, rows = len(rule.shape), rule.shape[0]
    if rule.is_timed and len(value.shape) == axes + 1 and value.shape[-1] == 1:
        value = value[..., 0]  # of one channel, which others have several of
    if rule.is_timed and not for_all:
        return value
    if len(value.shape) == axes - 1 and _fits(rule.shape[1:], tuple(value.shape)):
        value = value[np.newaxis]
    if rows is None or len(value.shape) != axes or value.shape[0] != 1:
        return value
    if not _is_tensor(value):
        return np.broadcast_to(value, [rows, *value.shape[1:]])
    import tensorflow as tf

    return tf.repeat(value, rows, axis=0)


def _fits(shape: Shape, found: Shape) -> bool:
    if len(shape) != len(found):
        return False
    return all(a == b or a is None or b is None for a, b in zip(shape, found, strict=True))


def _check_whole_numbers(array: np.ndarray, rule: Rule, label: str) -> None:
    if not array.size:
        return
    if array.dtype.kind not in "biu":
        array = array.astype(np.float64)
        if not (array == np.round(array)).all():
            raise ValueError(f"`{label}` must be whole numbers, {rule.dtype.name}.")
    limits, least, greatest = np.iinfo(rule.dtype), int(array.min()), int(array.max())
    low, high = (
        int(limit if own is None else own)
        for own, limit in ((rule.low, limits.min), (rule.high, limits.max))
    )
    if least < low or greatest > high:
        known = f"{low} to {high}, the numbers that the network has entries for"
        known = rule.dtype.name if rule.high is None else known
        raise ValueError(f"`{label}` must be {known}, got {least if least < low else greatest}.")
