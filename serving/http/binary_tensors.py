"""Tensors of the v2 inference protocol, in JSON or as bytes after it.

With the header `Inference-Header-Content-Length: N` the first N bytes of a body are its JSON. The
tensors follow in the order in which it lists them, little-endian, without gaps (the protocol's
binary tensor extension).
"""

import math
import re
from typing import Annotated, Any

import numpy as np
import orjson
from msgspec import UNSET, Meta, Struct, UnsetType

from serving.bundles.dtypes import V2_NAMES
from serving.bundles.signature import Signature, TensorInfo, input_info
from serving.errors import InvalidInput
from serving.http.fields import Name, as_model, invalid_field, json_object
from serving.http.json_tensors import flat_tensor

MAX_SIDE = 2**31 - 1
LENGTH = re.compile(r"[0-9]{1,10}")
HEADER = "inference-header-content-length"


class InferParameters(Struct):
    """Parameters of a request; `timeout` is in microseconds, 0 for the server's own."""

    signature_name: Name | None = None
    binary_data_output: bool = False
    timeout: Annotated[float, Meta(ge=0)] = 0.0


class InputParameters(Struct):
    """Parameters of an input; shared memory is not supported."""

    binary_data_size: Annotated[int, Meta(ge=0)] | None = None
    shared_memory_region: None = None


class InputTensor(Struct):
    """An input, with its elements or with the number of its bytes after the JSON."""

    name: str
    shape: list[Annotated[int, Meta(ge=1, le=MAX_SIDE)]]
    datatype: str
    data: list | UnsetType = UNSET
    parameters: InputParameters | None = None


class OutputParameters(Struct):
    """Parameters of an output; classification and shared memory are not supported."""

    binary_data: bool | None = None
    classification: Annotated[int, Meta(le=0)] | None = None
    shared_memory_region: None = None


class OutputTensor(Struct):
    """A requested output."""

    name: str
    parameters: OutputParameters | None = None


class InferRequest(Struct):
    """The JSON of an inference request."""

    inputs: Annotated[list[InputTensor], Meta(min_length=1)]
    outputs: Annotated[list[OutputTensor], Meta(min_length=1)] | None = None
    id: Name | None = None
    parameters: InferParameters | None = None


def split(body: bytes, header_length: str | None) -> tuple[InferRequest, memoryview]:
    """Return the JSON of a request and the bytes after it.

    Args:
      body: the request's body.
      header_length: the header's value; None: all of the body is JSON.
    """
    view = memoryview(body)
    if header_length is None:
        return as_model(json_object(body), InferRequest), view[len(body) :]
    if not LENGTH.fullmatch(header_length) or int(header_length) > len(body):
        raise InvalidInput(
            f"`Inference-Header-Content-Length` must be from 0 to {len(body)}, the body's length."
        )
    length = int(header_length)
    return as_model(json_object(view[:length]), InferRequest), view[length:]


def read_inputs(
    tensors: list[InputTensor], tail: memoryview, signature: Signature
) -> dict[str, np.ndarray]:
    """Return the inputs of a request; arrays of binary tensors are views of its body.

    Raises:
      InvalidInput: shapes, datatypes and sizes do not agree.
    """
    inputs: dict[str, np.ndarray] = {}
    start = 0
    for tensor in tensors:
        name = tensor.name
        if name in inputs:
            raise InvalidInput(f"`{name}` must be given once.")
        info = input_info(signature.inputs, name)
        shape = _shape(tensor, info)
        size = tensor.parameters.binary_data_size if tensor.parameters else None
        if size is None:
            inputs[name] = flat_tensor(name, tensor.data, shape, info.dtype)
        else:
            _check_size(tensor, size, shape, info.dtype, len(tail) - start)
            inputs[name] = _view(name, tail[start : start + size], info.dtype).reshape(shape)
            start += size
    if start != len(tail):
        raise InvalidInput(f"The body must end with its tensors, got {len(tail) - start} more.")
    return inputs


def _shape(tensor: InputTensor, info: TensorInfo) -> tuple[int, ...]:
    wanted = V2_NAMES[info.dtype]
    if tensor.datatype != wanted:
        raise invalid_field(f"{tensor.name}.datatype", wanted, tensor.datatype)
    rank = len(info.shape)
    if len(tensor.shape) != rank:
        raise InvalidInput(f"`{tensor.name}.shape` must be a list of {rank} sizes.")
    for side, want in zip(tensor.shape, info.shape, strict=True):
        if want not in (None, side):
            raise InvalidInput(f"`{tensor.name}.shape` must be {info.sizes}, got {side} in it.")
    return tuple(tensor.shape)


def _check_size(
    tensor: InputTensor, size: int, shape: tuple[int, ...], dtype: np.dtype, left: int
) -> None:
    name, needed = tensor.name, math.prod(shape) * dtype.itemsize
    if size != needed:
        rule = f"{needed}, from the shape and the datatype"
        raise invalid_field(f"{name}.binary_data_size", rule, size)
    if size > left:
        raise InvalidInput(f"`{name}` must have {size} bytes, got {left} after the JSON.")
    if tensor.data is not UNSET:
        raise InvalidInput(f"`{name}` must have `data` or `binary_data_size`, got both.")


def _view(name: str, data: memoryview, dtype: np.dtype) -> np.ndarray:
    if dtype.kind == "b" and np.frombuffer(data, np.uint8).max() > 1:
        raise InvalidInput(f"`{name}` must hold booleans, got bytes other than 0 and 1.")
    return np.frombuffer(data, dtype)


def written(
    header: dict[str, Any], outputs: dict[str, np.ndarray], binary: dict[str, bool]
) -> tuple[bytes, int | None]:
    """Return a response and the length of its JSON; None where all of it is JSON.

    Args:
      header: all fields but the outputs.
      outputs: arrays by name.
      binary: whether to write an output after the JSON, by name.
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
