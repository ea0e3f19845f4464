"""Conversion between TensorProto and NumPy; sizes are checked before memory is allocated.

The messages have the same bytes as those of TensorFlow and tensorflow-serving-api, whose generated
modules are not imported: a client starts quickly, and no name is registered twice in the default
pool. `make protos` compiles the .proto files to `protos/services.binpb`.

A TensorProto of 34 bytes can request gigabytes: a shape, and a single value repeated to fill it.
The type is therefore checked first, and then product(dims) * itemsize, in Python integers, against
a limit.
"""

import functools
import importlib.resources
from collections.abc import Mapping
from typing import Any

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from onepass.bundles import signature
from onepass.bundles.errors import InvalidInput
from onepass.bundles.signature import Arrays

DESCRIPTORS = "protos/services.binpb"
# The field for the values of each type; "int_val" for all others.
FIELDS = {
    f"DT_{kind.upper()}": f"{kind}_val"
    for kind in ("float", "double", "half", "int64", "uint32", "uint64", "bool")
}


@functools.cache
def pool() -> descriptor_pool.DescriptorPool:
    """Return the descriptor pool with all messages and services."""
    data = importlib.resources.files(__package__).joinpath(DESCRIPTORS).read_bytes()
    filled = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(data).file:
        filled.Add(file)
    return filled


@functools.cache
def message(name: str) -> Any:
    """Return the class of a message, given its full name, such as `tensorflow.TensorProto`."""
    return message_factory.GetMessageClass(pool().FindMessageTypeByName(name))


@functools.cache
def enum_values(name: str) -> dict[str, int]:
    """Return the numbers by name of an enumeration such as `tensorflow.DataType`."""
    return {value.name: value.number for value in pool().FindEnumTypeByName(name).values}


def method_types(service: str, method: str) -> tuple[Any, Any, bool]:
    """Return the classes of a method's request and response, and whether it streams responses."""
    found = pool().FindServiceByName(service).FindMethodByName(method)
    request, response = found.input_type.full_name, found.output_type.full_name
    return message(request), message(response), found.server_streaming


DATA_TYPES = enum_values("tensorflow.DataType")
DTYPES = {DATA_TYPES[name]: dtype for name, dtype in signature.TENSORFLOW_DTYPES.items()}
ENUMS = {dtype: number for number, dtype in DTYPES.items()}
NAMES = {number: name for name, number in DATA_TYPES.items()}


def encode(array: np.ndarray, proto: Any) -> None:
    """Write an array into a TensorProto; raise InvalidInput if its dtype is not supported."""
    array = np.asarray(array)
    stored = array.dtype.newbyteorder("<")
    if stored not in ENUMS:
        raise InvalidInput(f"a tensor cannot be {array.dtype}.")
    proto.dtype = ENUMS[stored]
    for side in array.shape:
        proto.tensor_shape.dim.add(size=side)
    proto.tensor_content = array.astype(stored, copy=False).tobytes()


def decode_all(
    protos: Mapping[str, Any], known: Mapping[str, signature.TensorInfo], limit_bytes: int
) -> Arrays:
    """Return the arrays of a request; together they have at most `limit_bytes`."""
    for name in protos:
        signature.input_info(known, name)
    arrays, left = {}, limit_bytes
    for name, proto in protos.items():
        arrays[name] = decode(proto, name, left)
        left -= arrays[name].nbytes
    return arrays


def decode(proto: Any, name: str, limit_bytes: int) -> np.ndarray:
    """Return the array of a TensorProto, read-only if its bytes are used in place.

    As in TensorFlow, there may be fewer single values than the shape needs: the last value is
    repeated, and no values mean zeros.
    """
    dtype = DTYPES.get(proto.dtype)
    if dtype is None:
        got = NAMES.get(proto.dtype, str(proto.dtype))
        raise InvalidInput(f"`{name}` must be of numbers or of bool, got {got}.")
    if proto.tensor_shape.unknown_rank:
        raise InvalidInput(f"`{name}` must have a shape, got one of unknown rank.")
    # Checked before a list of dimensions is created.
    signature.check_dimensions(name, proto.tensor_shape.dim)
    shape = [dim.size for dim in proto.tensor_shape.dim]
    count = signature.checked_count(name, shape, dtype, limit_bytes)
    content = proto.tensor_content
    field = FIELDS.get(NAMES[proto.dtype], "int_val")
    values = getattr(proto, field)
    if content and len(values):
        raise InvalidInput(f"`{name}` must have `tensor_content` or `{field}`, got both.")
    if content:
        return signature.from_bytes(name, content, shape, dtype)
    return _fill_values(name, field, values, count, dtype).reshape(shape)


def _fill_values(name: str, field: str, values: Any, count: int, dtype: np.dtype) -> np.ndarray:
    if len(values) > count:
        raise InvalidInput(f"`{name}` must have at most {count} of `{field}`, got {len(values)}.")
    if not len(values):
        return np.zeros(count, dtype)
    if field in ("int_val", "half_val"):  # wider than the type
        wide = np.array(values, np.int64)
        stored = np.dtype("<u2") if field == "half_val" else dtype
        low, high = np.iinfo(stored).min, np.iinfo(stored).max
        if wide.min() < low or wide.max() > high:
            raise InvalidInput(f"`{name}` must have `{field}` between {low} and {high}.")
        given = wide.astype(stored).view(dtype)
    else:
        given = np.array(values, dtype)
    return np.pad(given, [0, count - len(given)], "edge")
