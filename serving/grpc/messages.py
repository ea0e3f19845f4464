"""Protobuf classes of the messages in grpc_schema.py, in a pool of their own.

They read and write the same bytes as the classes that TensorFlow and tensorflow-serving-api bring,
and need neither, so that a client starts in a moment; in a pool of their own they stand beside
those in one process.
"""

import functools
from typing import Any

from google.protobuf import any_pb2, descriptor_pb2, descriptor_pool, message_factory, wrappers_pb2

from serving.grpc.schema import ENUMS, PACKAGES, SERVICES

BORROWED = (any_pb2, wrappers_pb2)
_Field = descriptor_pb2.FieldDescriptorProto


@functools.cache
def pool() -> descriptor_pool.DescriptorPool:
    """The pool with every message and service of the schema."""
    filled = descriptor_pool.DescriptorPool()
    for module in BORROWED:
        filled.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
    for package, text in PACKAGES.items():
        filled.Add(_file(package, text))
    return filled


@functools.cache
def message(name: str) -> Any:
    """The class of a message by its full name, such as `tensorflow.TensorProto`."""
    return message_factory.GetMessageClass(pool().FindMessageTypeByName(name))


def method_types(service: str, method: str) -> tuple[Any, Any, bool]:
    """Classes of a method's request and response, and whether it answers with a stream."""
    package, (request, response) = service.rpartition(".")[0], SERVICES[service][method]
    streams = isinstance(response, list)
    answer = response[0] if isinstance(response, list) else response
    return message(f"{package}.{request}"), message(f"{package}.{answer}"), streams


def _file(package: str, text: str) -> descriptor_pb2.FileDescriptorProto:
    """The description of one package: its messages, enumerations and services."""
    described = descriptor_pb2.FileDescriptorProto(
        name=_file_name(package), package=package, syntax="proto3"
    )
    described.dependency.extend(module.DESCRIPTOR.name for module in BORROWED)
    before = list(PACKAGES)[: list(PACKAGES).index(package)]
    described.dependency.extend(_file_name(other) for other in before)
    messages: dict[str, descriptor_pb2.DescriptorProto] = {}
    for name, fields in _messages(text).items():
        messages[name] = descriptor_pb2.DescriptorProto(name=name.rpartition(".")[2])
        for field in fields:
            _add_field(messages[name], f"{package}.{name}", field)
    for full_name, values in ENUMS.items():
        owner, _, name = full_name.rpartition(".")
        if owner == package:
            _add_enum(described.enum_type, name, values)
        elif owner.startswith(f"{package}.") and owner[len(package) + 1 :] in messages:
            _add_enum(messages[owner[len(package) + 1 :]].enum_type, name, values)
    for name, described_message in messages.items():
        outer = name.rpartition(".")[0]
        if outer:
            messages[outer].nested_type.append(described_message)
    described.message_type.extend(m for name, m in messages.items() if "." not in name)
    _add_services(described, package)
    return described


def _file_name(package: str) -> str:
    return f"{package.replace('.', '/')}.proto"


def _messages(text: str) -> dict[str, list[str]]:
    """The lines of fields of each message."""
    messages: dict[str, list[str]] = {}
    for line in text.strip().splitlines():
        if line.startswith(" "):
            messages[next(reversed(messages))].append(line.strip())
        else:
            messages[line] = []
    return messages


def _add_field(owner: descriptor_pb2.DescriptorProto, full_name: str, line: str) -> None:
    number, name, kind = line.split(" ", 2)
    field = owner.field.add(name=name, number=int(number), label=_Field.LABEL_OPTIONAL)
    if kind.startswith("oneof "):
        _, group, kind = kind.split(" ", 2)
        groups = [one.name for one in owner.oneof_decl]
        if group not in groups:
            owner.oneof_decl.add(name=group)
            groups.append(group)
        field.oneof_index = groups.index(group)
    elif kind.startswith("map "):
        entry = "".join(word.capitalize() for word in name.split("_")) + "Entry"
        _add_entry(owner, entry, full_name, kind.removeprefix("map "))
        field.label, kind = _Field.LABEL_REPEATED, f".{full_name}.{entry}"
    elif kind.startswith("repeated "):
        field.label, kind = _Field.LABEL_REPEATED, kind.removeprefix("repeated ")
    _set_type(field, kind)


def _add_entry(owner: descriptor_pb2.DescriptorProto, name: str, full_name: str, kind: str) -> None:
    """Adds the pair of key and value that a map is a list of."""
    entry = owner.nested_type.add(name=name)
    entry.options.map_entry = True
    _add_field(entry, f"{full_name}.{name}", "1 key string")
    _add_field(entry, f"{full_name}.{name}", f"2 value {kind}")


def _set_type(field, kind: str) -> None:
    if not kind.startswith("."):
        field.type = getattr(_Field, f"TYPE_{kind.upper()}")
        return
    field.type = _Field.TYPE_ENUM if kind[1:] in ENUMS else _Field.TYPE_MESSAGE
    field.type_name = kind


def _add_enum(place, name: str, values: dict[str, int]) -> None:
    enum = place.add(name=name)
    for word, number in values.items():
        enum.value.add(name=word, number=number)


def _add_services(described: descriptor_pb2.FileDescriptorProto, package: str) -> None:
    for full_name, methods in SERVICES.items():
        owner, _, name = full_name.rpartition(".")
        if owner != package:
            continue
        service = described.service.add(name=name)
        for method, (request, response) in methods.items():
            streams = isinstance(response, list)
            answer = response[0] if isinstance(response, list) else response
            service.method.add(
                name=method,
                input_type=f".{package}.{request}",
                output_type=f".{package}.{answer}",
                server_streaming=streams,
            )
