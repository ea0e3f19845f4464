"""Protobuf classes of the messages in protos/, in a separate descriptor pool.

They read and write the same bytes as the classes of TensorFlow and tensorflow-serving-api without
importing them, so a client starts quickly. Generated modules would register the same names in
the default pool, which would then reject TensorFlow's classes. `make protos` compiles the .proto
files to `protos/services.binpb`, in the same folder.
"""

import functools
import importlib.resources
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

DESCRIPTORS = "protos/services.binpb"


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
