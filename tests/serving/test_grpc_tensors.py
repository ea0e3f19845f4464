"""TensorProto: what goes round comes back, and what lies is refused before it costs anything."""

import re
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from google.protobuf import descriptor_pb2
from hypothesis import given
from hypothesis import settings as examples
from tensorflow.core.framework import tensor_pb2
from tensorflow_serving.apis import get_model_metadata_pb2, get_model_status_pb2, predict_pb2
from test_fuzz import messages

from onepass.bundles.errors import InvalidInput, ServingError, TooLarge
from serving.grpc import tensors
from serving.grpc.tensors import DTYPES, decode, decode_all, encode, message, method_types, pool

MIB = 2**20
NAMES = sorted(dtype.name for dtype in DTYPES.values())
TensorProto = message("tensorflow.TensorProto")
THEIRS = {
    "tensorflow.TensorProto": tensor_pb2.TensorProto,
    "tensorflow.serving.PredictRequest": predict_pb2.PredictRequest,
    "tensorflow.serving.PredictResponse": predict_pb2.PredictResponse,
    "tensorflow.serving.GetModelMetadataRequest": get_model_metadata_pb2.GetModelMetadataRequest,
    "tensorflow.serving.GetModelMetadataResponse": get_model_metadata_pb2.GetModelMetadataResponse,
    "tensorflow.serving.SignatureDefMap": get_model_metadata_pb2.SignatureDefMap,
    "tensorflow.serving.GetModelStatusRequest": get_model_status_pb2.GetModelStatusRequest,
    "tensorflow.serving.GetModelStatusResponse": get_model_status_pb2.GetModelStatusResponse,
}
FOLDER = Path(tensors.__file__).parent / "protos"
FILES = ("tensorflow.proto", "tensorflow/serving.proto", "inference.proto", "onepass.proto")
NUMBERED = re.compile(r"^\s*(?!package|syntax|import)(?:[\w.<>, ]+ )?(\w+) = (\d+);", re.MULTILINE)
METHOD = re.compile(r"^\s*rpc (\w+)", re.MULTILINE)


def proto(dtype="DT_FLOAT", shape=(), unknown_rank=False, **fields):
    made = TensorProto(dtype=dtype, **fields)
    made.tensor_shape.unknown_rank = unknown_rank
    for side in shape:
        made.tensor_shape.dim.add(size=side)
    return made


def values(name, shape=(2, 3, 4)):
    numbers = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    return (numbers % 2 if name == "bool" else numbers).astype(name)


def theirs(ours):
    return tensor_pb2.TensorProto.FromString(ours.SerializeToString())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", [(), (1,), (2, 3, 4), (0, 3)])
def test_tensorflow_reads_what_is_written_and_is_read(name, shape):
    array, made = values(name, shape), TensorProto()
    encode(array, made)
    assert np.array_equal(tf.make_ndarray(theirs(made)), array)
    came = TensorProto.FromString(tf.make_tensor_proto(array).SerializeToString())
    assert np.array_equal(decode(came, "x", MIB), array)


def test_a_sliced_and_a_big_endian_array_are_written_in_order():
    made = TensorProto()
    encode(np.arange(12.0, dtype=">f8").reshape(3, 4).T, made)
    assert np.array_equal(decode(made, "x", MIB), np.arange(12.0).reshape(3, 4).T)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("given", [0, 1, 3, 5])
def test_values_one_by_one_mean_what_they_mean_to_tensorflow(name, given):
    field = {
        "float32": "float_val",
        "float64": "double_val",
        "float16": "half_val",
        "int64": "int64_val",
        "uint32": "uint32_val",
        "uint64": "uint64_val",
        "bool": "bool_val",
    }.get(name, "int_val")
    numbers = values(name, (5,))[:given]
    written = numbers.view(np.uint16).tolist() if name == "float16" else numbers.tolist()
    made = proto(tf.as_dtype(name).as_datatype_enum, (5,), **{field: written})
    expected = tf.make_ndarray(theirs(made)) if given else np.zeros(5, name)
    assert np.array_equal(decode(made, "x", MIB), expected)


def test_small_splats_together_stay_within_the_limit():
    splats = {name: proto("DT_DOUBLE", (MIB // 16,), double_val=[1.0]) for name in "abc"}
    assert len(decode_all({"a": splats["a"], "b": splats["b"]}, splats, MIB)) == 2
    with pytest.raises(TooLarge, match="over"):
        decode_all(splats, splats, MIB)


@pytest.mark.parametrize(
    ("lie", "error", "words"),
    [
        (proto(shape=(-1,)), InvalidInput, "no negative side, got [-1]"),
        (proto(shape=(-2, -2), float_val=[1] * 4), InvalidInput, "no negative side"),
        (proto(shape=(2**62, 2**62)), TooLarge, "would bring the request over"),
        (proto(shape=(4 * 10**8,), float_val=[1.0]), TooLarge, "`x` of shape [400000000]"),
        (proto(shape=(0, 2**62)), TooLarge, "would bring the request over"),
        (proto(shape=(1,) * 9), InvalidInput, "at most 8 dimensions, got 9"),
        (proto(shape=(1,) * 5000), InvalidInput, "at most 8 dimensions, got 5000"),
        (proto(shape=(2,), tensor_content=b"1234"), InvalidInput, "must have 8 bytes, got 4"),
        (proto(shape=(), tensor_content=b"12345678"), InvalidInput, "must have 4 bytes, got 8"),
        (proto(shape=(1,), float_val=[1, 2]), InvalidInput, "at most 1 of `float_val`, got 2"),
        (proto(shape=(0,), float_val=[1]), InvalidInput, "at most 0 of `float_val`, got 1"),
        (proto(shape=(1,), tensor_content=b"1234", float_val=[1]), InvalidInput, "got both"),
        (proto(unknown_rank=True), InvalidInput, "unknown rank"),
        *(
            (proto(name), InvalidInput, f"got {name}")
            for name in ("DT_STRING", "DT_RESOURCE", "DT_VARIANT", "DT_COMPLEX64", "DT_INVALID")
        ),
        *((proto(101), InvalidInput, "got 101"), (proto(-7), InvalidInput, "got -7")),
        (proto("DT_UINT8", (1,), int_val=[256]), InvalidInput, "between 0 and 255"),
        (proto("DT_INT8", (1,), int_val=[-129]), InvalidInput, "between -128 and 127"),
        (proto("DT_HALF", (1,), half_val=[65536]), InvalidInput, "between 0 and 65535"),
        (proto("DT_BOOL", (1,), tensor_content=b"\2"), InvalidInput, "0 or 1, got 2"),
    ],
)
def test_what_cannot_be_is_refused_with_the_field_and_the_rule(lie, error, words):
    with pytest.raises(error) as raised:
        decode(lie, "x", MIB)
    assert words in str(raised.value) and str(raised.value).startswith("`x` ")


def test_a_large_tensor_is_read_where_it_lies():
    made = TensorProto()
    encode(np.ones([8, 400, 80], np.float32), made)
    array = decode(made, "x", 16 * MIB)
    assert array.sum() == 8 * 400 * 80
    assert not (array.flags.owndata or array.flags.writeable)


def fields(descriptor, seen):
    """Yields `(message.field, number, wire type, label)` of a message and all within it."""
    if descriptor.full_name in seen:
        return
    seen.add(descriptor.full_name)
    for field in descriptor.fields:
        kind = "integer" if field.type in (field.TYPE_ENUM, field.TYPE_INT32) else field.type
        group = field.containing_oneof.name if field.containing_oneof else ""
        yield field.full_name, field.number, kind, field.is_repeated, group
        if field.message_type is not None:
            yield from fields(field.message_type, seen)


@pytest.mark.parametrize("name", THEIRS)
def test_every_field_has_the_number_and_type_of_tensorflows(name):
    ours = set(fields(message(name).DESCRIPTOR, set()))
    assert ours and ours <= set(fields(THEIRS[name].DESCRIPTOR, set()))


def test_every_service_has_the_methods_of_tensorflows():
    from tensorflow_serving.apis import model_service_pb2, prediction_service_pb2

    for module, service in (
        (prediction_service_pb2, "PredictionService"),
        (model_service_pb2, "ModelService"),
    ):
        methods = module.DESCRIPTOR.services_by_name[service].methods_by_name
        for name in pool().FindServiceByName(f"tensorflow.serving.{service}").methods_by_name:
            request, response, _ = method_types(f"tensorflow.serving.{service}", name)
            assert request.DESCRIPTOR.full_name == methods[name].input_type.full_name
            assert response.DESCRIPTOR.full_name == methods[name].output_type.full_name


@given(made=messages(TensorProto.DESCRIPTOR))
@examples(max_examples=400, deadline=None, derandomize=True, database=None)
def test_any_tensor_is_an_array_within_the_limit_or_an_error_in_words(made):
    try:
        array = decode(made, "x", MIB)
    except ServingError as error:
        assert str(error).startswith("`x` ")
    else:
        assert array.nbytes <= MIB
        assert list(array.shape) == [dim.size for dim in made.tensor_shape.dim]


def described(name):
    file = descriptor_pb2.FileDescriptorProto()
    pool().FindFileByName(name).CopyToProto(file)
    return file


def numbered(file):
    """`(name, number)` of every field and every value of an enumeration, maps' entries aside."""
    found = [(value.name, value.number) for enum in file.enum_type for value in enum.value]
    inside = [m for m in getattr(file, "message_type", ()) or file.nested_type]
    for kind in inside:
        if not kind.options.map_entry:
            found += [(field.name, field.number) for field in kind.field] + numbered(kind)
    return found


@pytest.mark.parametrize("name", FILES)
def test_every_field_and_method_has_its_name_and_number(name):
    text, file = (FOLDER / name).read_text(encoding="utf-8"), described(name)
    assert sorted(numbered(file)) == sorted((n, int(k)) for n, k in NUMBERED.findall(text))
    methods = [method.name for service in file.service for method in service.method]
    assert sorted(methods) == sorted(METHOD.findall(text))
