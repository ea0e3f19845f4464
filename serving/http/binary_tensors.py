"""Tensors of the v2 inference protocol, as JSON and as the bytes behind it.

With the header `Inference-Header-Content-Length: N` the first N bytes of a body are its JSON, and
the tensors follow in the order in which it names them, little-endian, without gaps (the protocol's
binary tensor extension).
"""

import math
import re
from typing import Any

import numpy as np
import orjson

from serving.bundles.dtypes import V2_NAMES
from serving.bundles.signature import Signature, TensorInfo
from serving.errors import InvalidInput
from serving.http.fields import excerpt, invalid_field, json_object
from serving.http.json_tensors import flat_tensor, input_info

MAX_SIDE = 2**31
LENGTH = re.compile(r"[0-9]{1,10}")
HEADER = "inference-header-content-length"


def split(body: bytes, header_length: str | None) -> tuple[dict[str, Any], memoryview]:
    """The JSON of a request, and the bytes behind it.

    Args:
      header_length: the header's value; None: all of the body is JSON.
    """
    view = memoryview(body)
    if header_length is None:
        return json_object(body), view[len(body) :]
    if not LENGTH.fullmatch(header_length) or int(header_length) > len(body):
        raise InvalidInput(
            f"`Inference-Header-Content-Length` must be from 0 to {len(body)}, the body's length."
        )
    length = int(header_length)
    return json_object(view[:length]), view[length:]


def read_inputs(
    header: dict[str, Any], tail: memoryview, signature: Signature
) -> dict[str, np.ndarray]:
    """The inputs of a request; arrays of binary tensors are views of its body.

    Raises InvalidInput for shapes, datatypes and sizes that do not agree with each other.
    """
    given = header.get("inputs")
    if not isinstance(given, list) or not given:
        raise InvalidInput("`inputs` must be a list of one tensor or more.")
    inputs: dict[str, np.ndarray] = {}
    start = 0
    for tensor in given:
        name = _name(tensor)
        if name in inputs:
            raise InvalidInput(f"`{name}` must be given once.")
        info = input_info(signature, name)
        shape = _shape(name, tensor, info)
        size = parameters_of(tensor).get("binary_data_size")
        if size is None:
            inputs[name] = flat_tensor(name, tensor.get("data"), shape, info.dtype)
        else:
            _check_size(name, tensor, size, shape, info.dtype, len(tail) - start)
            inputs[name] = _view(name, tail[start : start + size], info.dtype).reshape(shape)
            start += size
    if start != len(tail):
        raise InvalidInput(f"The body must end with its tensors, got {len(tail) - start} more.")
    return inputs


def parameters_of(fields: dict[str, Any]) -> dict[str, Any]:
    """The `parameters` of a request, an input or an output."""
    parameters = fields.get("parameters")
    if parameters is None:
        return {}
    if not isinstance(parameters, dict):
        raise invalid_field("parameters", "an object", parameters)
    if "shared_memory_region" in parameters:
        raise InvalidInput("`shared_memory_region` is not served.")
    return parameters


def _name(tensor: object) -> str:
    name = tensor.get("name") if isinstance(tensor, dict) else None
    if not isinstance(name, str):
        raise InvalidInput("`inputs` must be objects with a `name`.")
    return name


def _shape(name: str, tensor: dict[str, Any], info: TensorInfo) -> tuple[int, ...]:
    wanted = V2_NAMES[info.dtype]
    if tensor.get("datatype") != wanted:
        raise invalid_field(f"{name}.datatype", wanted, tensor.get("datatype"))
    shape = tensor.get("shape")
    rank = len(info.shape)
    if not isinstance(shape, list) or len(shape) != rank:
        raise InvalidInput(f"`{name}.shape` must be a list of {rank} sizes.")
    for side, want in zip(shape, info.shape, strict=True):
        if type(side) is not int or not 1 <= side < MAX_SIDE or want not in (None, side):
            declared = [-1 if side is None else side for side in info.shape]
            raise InvalidInput(f"`{name}.shape` must be {declared}, got {excerpt(side)} in it.")
    return tuple(shape)


def _check_size(
    name: str, tensor: dict[str, Any], size: object, shape: tuple[int, ...], dtype, left: int
) -> None:
    needed = math.prod(shape) * dtype.itemsize
    if type(size) is not int or size != needed:
        rule = f"{needed}, as the shape and the datatype say"
        raise invalid_field(f"{name}.binary_data_size", rule, size)
    if size > left:
        raise InvalidInput(f"`{name}` must have {size} bytes, got {left} behind the JSON.")
    if "data" in tensor:
        raise InvalidInput(f"`{name}` must have `data` or `binary_data_size`, got both.")


def _view(name: str, data: memoryview, dtype: np.dtype) -> np.ndarray:
    if dtype.kind == "b" and np.frombuffer(data, np.uint8).max() > 1:
        raise InvalidInput(f"`{name}` must hold booleans, got bytes other than 0 and 1.")
    return np.frombuffer(data, dtype)


def written(
    header: dict[str, Any], outputs: dict[str, np.ndarray], binary: dict[str, bool]
) -> tuple[bytes, int | None]:
    """A response and the length of its JSON; None where all of it is JSON.

    Args:
      header: all but the outputs. binary: which outputs go behind the JSON, by name.
    """
    described, tail = [], []
    for name, value in outputs.items():
        value = np.ascontiguousarray(value)
        tensor: dict[str, Any] = {
            "name": name,
            "datatype": V2_NAMES[value.dtype],
            "shape": list(value.shape),
        }
        if binary[name]:
            tensor["parameters"] = {"binary_data_size": value.nbytes}
            tail.append(value.tobytes())
        else:
            tensor["data"] = value.reshape(-1)
        described.append(tensor)
    text = orjson.dumps({**header, "outputs": described}, option=orjson.OPT_SERIALIZE_NUMPY)
    if not tail:
        return text, None
    return b"".join([text, *tail]), len(text)
