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
from onepass.networks.condition_values import Rule, check_values

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


def condition_arrays(
    given: Any,
    names: Mapping[str, str],
    known: Mapping[str, Any],
    rows: int,
    length: int | None = None,
    for_all: bool = False,
) -> dict[str, np.ndarray]:
    """Return conditions as inputs with `rows` batch rows, checked as for a live model.

    Args:
      given: None; an array for the only condition; or arrays by name.
      length: number of time steps of a row; None: any number is accepted.
      for_all: whether one row may be given for all batch rows even in a condition with a time axis.
    """
    rules = {name: _rule_of(place, known, rows, length) for name, place in names.items()}
    return {names[name]: array for name, array in check_values(given, rules, for_all).items()}


def _rule_of(place: str, known: Mapping[str, Any], rows: int, length: int | None) -> Rule:
    if place not in known:
        raise ValueError(f"`{place}` is not an input of the model.")
    info, timed = known[place], is_timed(known[place])
    sizes = ["any" if size is None else str(size) for size in info.shape[1:]]
    sizes[:1] = ["time"] if timed else sizes[:1]
    described = f"{info.dtype.name} [{', '.join(['num', *sizes])}]"
    shape = (rows, *info.shape[1:])
    if timed and place != FRAMES:
        shape = (rows, length, *info.shape[2:])
    return Rule(described, shape, info.dtype, timed, info.low, info.high)


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
