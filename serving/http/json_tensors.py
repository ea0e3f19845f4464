"""Reads tensors from JSON, and checks nested lists before an array is created."""

import base64
import functools
import math
from collections.abc import Sequence
from types import GenericAlias
from typing import Any

import msgspec
import numpy as np

from onepass.bundles.errors import InvalidInput
from onepass.bundles.signature import SEED, Signature, TensorInfo, input_info
from serving.http.fields import invalid_field

# The JSON type for each kind of dtype, and its plural in messages.
ELEMENTS: dict[str, tuple[Any, str]] = {"f": (float, "numbers"), "b": (bool, "booleans")}
ELEMENTS |= dict.fromkeys("iu", (int, "integers"))


def json_tensor(name: str, value: object, info: TensorInfo) -> np.ndarray:
    """Convert nested lists to an array with the dtype and the number of axes of an input.

    A tensor of type uint8 may also be `{"b64": text}`, or a list of one such object per row.
    """
    if info.dtype == np.uint8 and _is_base64(value):
        return _from_base64(name, value, info.shape)
    if info.dtype == np.uint8 and isinstance(value, list) and value and _is_base64(value[0]):
        return np.concatenate([_from_base64(name, row, (1, *info.shape[1:])) for row in value])
    return _array(name, value, len(info.shape), info.dtype)


def _array(name: str, value: object, rank: int, dtype: np.dtype) -> np.ndarray:
    element, words = ELEMENTS[dtype.kind]
    if name == SEED and dtype.kind in "iu":  # whose range the signature's check knows
        element, dtype = Any, np.dtype(object)
    kind: Any = functools.reduce(lambda inner, _: GenericAlias(list, inner), range(rank), element)
    try:
        with np.errstate(over="ignore"):
            array = np.array(msgspec.convert(value, kind), dtype)
    except msgspec.ValidationError as error:
        rule = f"must hold {words} in lists {rank} deep"
        raise InvalidInput(f"`{name}` {rule}: {error}.") from error
    except OverflowError as error:
        raise InvalidInput(f"`{name}` must fit {dtype}, got a number outside it.") from error
    except ValueError as error:
        raise InvalidInput(f"`{name}` must not be ragged.") from error
    if not array.size:
        raise InvalidInput(f"`{name}` must not be empty.")
    return array


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
    if not isinstance(value, str):
        raise invalid_field(name, "base64", value)
    try:
        return base64.b64decode(value, validate=True)
    except ValueError as error:
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
        inputs = {only_input(signature): inputs}
    return {
        name: json_tensor(name, value, input_info(signature.inputs, name))
        for name, value in inputs.items()
    }


def only_input(signature: Signature) -> str:
    """Return the name of the only required input; raise InvalidInput if there is not just one."""
    needed = [name for name, info in signature.inputs.items() if info.default is None]
    if len(needed) != 1:
        raise InvalidInput(f"Inputs must be named; the model has {', '.join(signature.inputs)}.")
    return needed[0]
