"""Tensors as JSON has them: nested or flat lists, base64, rows and columns."""

import base64
import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from onepass.bundles.errors import InvalidInput
from onepass.bundles.signature import SEED, Signature, TensorInfo, input_info
from serving.engine.fields import invalid_field

# By the kind of a dtype: the JSON types of an element, and their plural in messages.
INTEGERS: tuple[set[type], str] = {int}, "integers"
ELEMENTS = dict.fromkeys("iu", INTEGERS)
ELEMENTS |= {"f": ({int, float}, "numbers"), "b": ({bool}, "booleans")}


def json_tensor(name: str, value: object, info: TensorInfo) -> np.ndarray:
    """Convert nested lists to an array with the dtype and the number of axes of an input.

    A tensor of type uint8 may also be `{"b64": text}`, or a list of one such object per row.
    """
    if info.dtype == np.uint8 and _is_base64(value):
        return _from_base64(name, value, info.shape)
    if info.dtype == np.uint8 and isinstance(value, list) and value and _is_base64(value[0]):
        return np.concatenate([_from_base64(name, row, (1, *info.shape[1:])) for row in value])
    return _array(name, value, len(info.shape), info.dtype)


def _array(name: str, value: Any, rank: int, dtype: np.dtype) -> np.ndarray:
    kinds, words = ELEMENTS[dtype.kind]
    is_seed = name == SEED and dtype.kind in "iu"  # whose range the signature's check knows
    elements = [value]
    for _ in range(rank):
        if any(type(each) is not list for each in elements):
            raise InvalidInput(f"`{name}` must hold {words} in lists {rank} deep.")
        elements = list(itertools.chain.from_iterable(elements))
    if not elements:
        raise InvalidInput(f"`{name}` must not be empty.")
    if not (is_seed or {*map(type, elements)} <= kinds):
        raise InvalidInput(f"`{name}` must hold {words} in lists {rank} deep.")
    try:
        with np.errstate(over="ignore"):
            return np.array(value, object if is_seed else dtype)
    except OverflowError as error:
        raise InvalidInput(f"`{name}` must fit {dtype}, got a number outside it.") from error
    except ValueError as error:
        raise InvalidInput(f"`{name}` must not be ragged.") from error


def flat_tensor(name: str, value: object, shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
    """Convert a flat list or nested lists to an array; raise InvalidInput unless they fit."""
    nested = isinstance(value, list) and bool(value) and type(value[0]) is list
    array = _array(name, value, len(shape) if nested else 1, dtype)
    if (nested and array.shape != tuple(shape)) or array.size != math.prod(shape):
        declared, found = list(shape), list(array.shape)
        raise InvalidInput(f"`{name}` must have its declared shape {declared}, got {found}.")
    return array.reshape(shape)


def _is_base64(value: object) -> bool:
    return isinstance(value, dict) and value.keys() == {"b64"}


def _from_base64(name: str, value: Any, shape: Sequence[int | None]) -> np.ndarray:
    data = base64_bytes(name, value["b64"] if _is_base64(value) else None)
    sizes = [-1 if side is None else side for side in shape]
    try:
        if data:
            return np.frombuffer(data, np.uint8).reshape(sizes)
    except ValueError:  # a wrong number of bytes, or several unknown sizes
        pass
    raise InvalidInput(f"`{name}` must have the shape {sizes}, got {len(data):,} bytes.")


def base64_bytes(name: str, value: object) -> bytes:
    """Decode a base64 string; raise InvalidInput, naming the field, for anything else."""
    try:
        return base64.b64decode(value, validate=True)  # type: ignore[arg-type] # so a TypeError
    except (TypeError, ValueError) as error:
        raise invalid_field(name, "base64", value) from error


def from_rows(instances: list, signature: Signature) -> dict[str, np.ndarray]:
    """Return the inputs of rows that are objects, or just values of the only required input."""
    if all(isinstance(row, dict) and not _is_base64(row) for row in instances):
        names = instances[0].keys()
        if any(row.keys() != names for row in instances):
            raise InvalidInput("`instances` must name the same inputs in every row.")
        return from_columns({name: [row[name] for row in instances] for name in names}, signature)
    return from_columns(instances, signature)


def from_columns(inputs: object, signature: Signature) -> dict[str, np.ndarray]:
    """Return the inputs in `inputs`: an object of tensors by name, or the only required tensor."""
    if not isinstance(inputs, dict) or _is_base64(inputs):
        needed = [name for name, info in signature.inputs.items() if info.default is None]
        if len(needed) != 1:
            names = ", ".join(signature.inputs)
            raise InvalidInput(f"Inputs must be named; the model has {names}.")
        inputs = {needed[0]: inputs}
    return {
        name: json_tensor(name, value, input_info(signature.inputs, name))
        for name, value in inputs.items()
    }
