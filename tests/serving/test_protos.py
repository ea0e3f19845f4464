"""The committed descriptors are those of the .proto files next to them."""

import re
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2

import serving.grpc.messages as messages

FOLDER = Path(messages.__file__).parent / "protos"
FILES = ("tensorflow.proto", "tensorflow/serving.proto", "inference.proto", "onepass.proto")
NUMBERED = re.compile(r"^\s*(?!package|syntax|import)(?:[\w.<>, ]+ )?(\w+) = (\d+);", re.MULTILINE)
METHOD = re.compile(r"^\s*rpc (\w+)", re.MULTILINE)


def described(name):
    file = descriptor_pb2.FileDescriptorProto()
    messages.pool().FindFileByName(name).CopyToProto(file)
    return file


def numbered(file):
    """`(name, number)` of every field and every value of an enumeration, maps' entries aside."""
    found = [(value.name, value.number) for enum in file.enum_type for value in enum.value]
    inside = [m for m in getattr(file, "message_type", ()) or file.nested_type]
    for message in inside:
        if not message.options.map_entry:
            found += [(field.name, field.number) for field in message.field] + numbered(message)
    return found


@pytest.mark.parametrize("name", FILES)
def test_every_field_and_method_has_its_name_and_number(name):
    text, file = (FOLDER / name).read_text(encoding="utf-8"), described(name)
    assert sorted(numbered(file)) == sorted((n, int(k)) for n, k in NUMBERED.findall(text))
    methods = [method.name for service in file.service for method in service.method]
    assert sorted(methods) == sorted(METHOD.findall(text))


def test_the_descriptors_are_what_the_compiler_makes(tmp_path):
    protoc = pytest.importorskip("grpc_tools.protoc", reason="grpcio-tools is not installed")
    include = Path(protoc.__file__).parent / "_proto"
    made = tmp_path / "made.binpb"
    words = [f"-I{FOLDER}", f"-I{include}", "--include_imports", f"--descriptor_set_out={made}"]
    assert protoc.main(["protoc", *words, *FILES]) == 0
    compiled = descriptor_pb2.FileDescriptorSet.FromString(made.read_bytes())
    stored = descriptor_pb2.FileDescriptorSet.FromString((FOLDER / "services.binpb").read_bytes())
    assert {f.name: f for f in compiled.file if f.name in FILES} == {
        f.name: f for f in stored.file if f.name in FILES
    }
