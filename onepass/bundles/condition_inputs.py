"""The signature inputs that are conditions of a user's model, their rules and values.

The input for a model's only condition is called `condition`; with several conditions, the inputs
are called `condition_NAME`. If the only condition has one row per element of a sequence, its input
is `frames`, counted by `num_frames`. `conditions` in model.json maps each condition's name to its
input. A condition whose input has a time axis (of any size) has one row per element; any other
condition is the same at every time step.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from onepass.bundles.errors import InvalidInput

CONDITION, FRAMES = "condition", "frames"
CONDITIONS = "conditions"  # key in model.json
COUNT, ELEMENTS = "num_samples", "elements"


def input_of(name: str, count: int) -> str:
    """Return the name of the input for condition `name` of a model with `count` conditions."""
    return CONDITION if count == 1 else f"{CONDITION}_{name}"


def is_condition(name: str) -> bool:
    """Return whether an input is a condition other than `frames`."""
    return name == CONDITION or name.startswith(f"{CONDITION}_")


def is_timed(info: Any) -> bool:
    """Return whether an input has a time axis, with one time step per element."""
    return len(info.shape) > 1 and info.shape[1] is None


def names_of(spec: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, str]:
    """Return the name of each condition's input, by the condition's name."""
    stored = spec.get(CONDITIONS)
    if isinstance(stored, Mapping):
        return {str(name): str(each) for name, each in stored.items()}
    return {CONDITION: FRAMES} if FRAMES in known else {}


def has_named(spec: Mapping[str, Any]) -> bool:
    """Return whether a model has conditions other than `frames`."""
    return bool(set(names_of(spec, {}).values()) - {FRAMES})


def conditions_given(
    given: Any,
    names: Mapping[str, str],
    known: Mapping[str, Any],
    rows: int,
    length: int | None = None,
    for_all: bool = False,
) -> dict[str, np.ndarray]:
    """Return conditions as inputs with `rows` batch rows.

    Args:
      given: None; an array for the only condition; or arrays by name.
      length: number of time steps of a row; None: any number is accepted.
      for_all: whether one row may be given for all batch rows even in a condition with a time axis.
    """
    if given is None:
        return {}  # the check of the signature reports missing inputs
    if not names:
        raise ValueError("`condition` must be None: the model reads none.")
    listed = ", ".join(names)
    if not isinstance(given, Mapping):
        if len(names) > 1:
            raise ValueError(f"`condition` must be a dict with {listed}.")
        given = {next(iter(names)): given}
    if given.keys() != names.keys():
        got = ", ".join(map(str, given)) or "none"
        raise ValueError(f"`condition` must be a dict with {listed}, got {got}.")
    found = {}
    for name, place in names.items():
        label = CONDITION if len(names) == 1 else f'condition["{name}"]'
        if place not in known:
            raise ValueError(f"`{label}` is not an input of the model.")
        info, timed = known[place], place == FRAMES or is_timed(known[place])
        array = _numbers(given[name], info, label)
        array = _with_rows(array, len(info.shape), rows, for_all or not timed)
        if array.ndim == 0 or len(array) != rows:
            got = str(len(array)) if array.ndim else "one number"
            raise ValueError(f"`{label}` must have {rows} rows, got {got}.")
        if place != FRAMES and timed and length is not None and array.shape[1:2] != (length,):
            raise ValueError(
                f"`{label}` must have {length} times, as the elements, got shape"
                f" {list(array.shape)}."
            )
        found[place] = array
    return found


def _numbers(value: Any, info: Any, label: str) -> np.ndarray:
    try:
        array = np.asarray(value)
    except ValueError:  # ragged
        array = np.asarray(None)
    if array.dtype.kind not in "biuf" and array.dtype.name != "bfloat16":
        raise ValueError(f"`{label}` must be {info.dtype.name}, an array of numbers.")
    if info.dtype.kind not in "iu" or array.dtype.kind == "b":
        with np.errstate(over="ignore"):  # infinity is refused by the signature
            return array.astype(info.dtype)
    limits = np.iinfo(info.dtype)
    if array.dtype.kind not in "iu" and not (array == np.round(array)).all():
        raise ValueError(f"`{label}` must be whole numbers, {info.dtype.name}.")
    if array.size and not (limits.min <= array.min() and array.max() <= limits.max):
        got = f"{array.min()} to {array.max()}"
        raise ValueError(f"`{label}` must be {info.dtype.name}, got {got}.")
    return array.astype(info.dtype)


def _with_rows(array: np.ndarray, axes: int, rows: int, once: bool) -> np.ndarray:
    if array.ndim == axes + 1 and array.shape[-1] == 1:  # one channel, as others have several
        array = array[..., 0]
    if once and array.ndim == axes - 1:
        array = array[np.newaxis]
    return np.repeat(array, rows, 0) if once and array.shape[:1] == (1,) else array


def shared_conditions(known: Mapping[str, Any], given: dict[str, np.ndarray]) -> None:
    """Repeat in place, for every row, each condition given once that has no time axis."""
    rows = max(map(len, given.values()), default=1)
    for name, array in given.items():
        if is_condition(name) and len(array) == 1 and not is_timed(known[name]):
            # A view without copies, since a short request may ask for any number of rows.
            given[name] = np.broadcast_to(array, [rows, *array.shape[1:]])


def check_conditions(known: Mapping[str, Any], arrays: dict[str, np.ndarray]) -> None:
    """Raise InvalidInput for a condition with too few time steps; truncate longer ones in place.

    In a request for log probabilities, conditions must be exactly as long as the elements.
    """
    timed = [name for name in known if is_condition(name) and is_timed(known[name])]
    if ELEMENTS in known:  # a request for log probabilities
        shape = arrays[ELEMENTS].shape
        for name in (name for name in known if name in timed or name == FRAMES):
            free = [axis for axis, size in enumerate(known[name].shape) if axis and size is None]
            got = arrays[name].shape
            if any(axis < len(shape) and got[axis] != shape[axis] for axis in free):
                raise InvalidInput(
                    f"`{name}` must be as long as `{ELEMENTS}`, {list(shape)}, got {list(got)}."
                )
    elif COUNT in arrays:
        longest = int(arrays[COUNT].max())
        for name in timed:
            if longest > arrays[name].shape[1]:
                raise InvalidInput(
                    f"`{COUNT}` must be at most the {arrays[name].shape[1]} of `{name}`, got"
                    f" {longest}."
                )
            arrays[name] = arrays[name][:, :longest]
