"""The models over gRPC: stock stubs are answered, and nothing else gets through."""

import re
from pathlib import Path

import grpc
import numpy as np
import pytest
import tensorflow as tf
from fake_bundle import FakeSound
from google.protobuf import descriptor_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from grpc_running import Running, frames, refused
from http_running import store
from hypothesis import given
from hypothesis import settings as examples
from relay import Relay
from serve_load import (
    GRPC_INFER,
    GRPC_PREDICT,
    INPUTS,
    infer,
    infer_request,
    method,
    predict,
    predict_request,
    speak,
    tensor,
    until,
)
from tensorflow.core.framework import tensor_pb2
from tensorflow_serving.apis import (
    classification_pb2,
    get_model_metadata_pb2,
    get_model_status_pb2,
    inference_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
    regression_pb2,
)
from test_fuzz import messages

import onepass
from onepass.bundles.errors import InvalidInput, ServingError, TooLarge
from serving.grpc import tensors
from serving.grpc.server import client_address, client_of
from serving.grpc.tensors import DTYPES, decode, decode_all, encode, message, pool

TOKEN = "a token of sixteen characters"
SERVING, NOT_SERVING = "SERVING", "NOT_SERVING"


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    models = store(tmp_path_factory.mktemp("models"))
    models.add("late", load_fails=True)
    with Running(models) as running:
        yield running


@pytest.fixture(scope="module")
def channel(running):
    with running.channel() as channel:
        yield channel


def status_of(answer):
    return health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)


def health(channel, service=""):
    stub = health_pb2_grpc.HealthStub(channel)
    return status_of(stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=10))


def test_tensorflows_stub_gets_what_the_bundle_gives_and_a_filter_chooses(channel):
    inputs = {"frames": frames(3), "num_frames": np.array([5, 2, 4], np.int32)}
    request = predict_pb2.PredictRequest()
    request.model_spec.name, request.model_spec.signature_name = "voice", "compiled"
    for name, value in inputs.items():
        request.inputs[name].CopyFrom(tf.make_tensor_proto(value))
    ask = prediction_service_pb2_grpc.PredictionServiceStub(channel).Predict
    drawn = {"row": np.zeros(3), "seed": np.zeros(3), "temperature": np.ones(3)}
    expected = FakeSound().call("compiled", inputs | drawn)["sound"]
    answer = ask(request, timeout=10)
    assert set(answer.outputs) == {"sound", "num_samples"}
    np.testing.assert_array_equal(tf.make_ndarray(answer.outputs["sound"]), expected)
    request.output_filter.extend(["sound", "sound"])
    assert list(ask(request, timeout=10).outputs) == ["sound"]
    request.output_filter.append("nothing")
    with refused("INVALID_ARGUMENT", "`nothing` is not an output; there are sound, num_samples"):
        ask(request, timeout=10)


@pytest.mark.parametrize(
    ("spoil", "status", "words"),
    [
        (lambda r: setattr(r.model_spec, "name", ""), "INVALID_ARGUMENT", "`model_spec.name`"),
        (lambda r: setattr(r.model_spec.version, "value", -1), "NOT_FOUND", "version -1"),
        (lambda r: setattr(r.model_spec, "version_label", "x"), "INVALID_ARGUMENT", "_label"),
        (
            lambda r: r.inputs["frames"].tensor_shape.dim.add(size=400_000_000),
            *("RESOURCE_EXHAUSTED", "`frames` of shape [1, 8, 3, 400000000]"),
        ),
        (
            lambda r: setattr(r.inputs["frames"], "dtype", tf.string.as_datatype_enum),
            *("INVALID_ARGUMENT", "of numbers or of bool, got DT_STRING"),
        ),
    ],
)
def test_a_wrong_request_is_refused_with_the_field_and_the_rule(channel, spoil, status, words):
    request = predict_request()
    spoil(request)
    with refused(status, words):
        predict(channel, request)


@pytest.mark.parametrize("name", ["..", "../hidden.txt", "voice/1", "voice\0", "a" * 3000])
def test_only_names_of_models_lead_anywhere(channel, name):
    infer = message("inference.ModelInferRequest")(model_name=name)
    for asked in (
        lambda: predict(channel, predict_request(name)),
        *(lambda: method(channel, GRPC_INFER)(infer, timeout=10), lambda: health(channel, name)),
    ):
        with refused("NOT_FOUND"):
            asked()


def test_metadata_describes_the_signatures(channel):
    stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
    request = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
    request.model_spec.name = "voice"
    answer = stub.GetModelMetadata(request, timeout=10)
    signatures = get_model_metadata_pb2.SignatureDefMap()
    assert answer.metadata["signature_def"].Unpack(signatures)
    default = signatures.signature_def["serving_default"]
    assert default.inputs["frames"].dtype == tf.float32.as_datatype_enum
    assert [dim.size for dim in default.inputs["frames"].tensor_shape.dim] == [-1, -1, 3]
    assert set(default.outputs) == {"sound", "num_samples"}
    assert answer.model_spec.version.value == 1
    request.metadata_field.append("else")
    with refused("INVALID_ARGUMENT", "`metadata_field` must be `signature_def`"):
        stub.GetModelMetadata(request, timeout=10)


def test_status_names_the_versions_and_their_state(channel):
    stub = model_service_pb2_grpc.ModelServiceStub(channel)
    request = get_model_status_pb2.GetModelStatusRequest()
    request.model_spec.name = "voice"
    (status,) = stub.GetModelStatus(request, timeout=10).model_version_status
    available = get_model_status_pb2.ModelVersionStatus.State.AVAILABLE
    assert (status.version, status.state) == (1, available)
    for name, version in (("voice", 5), ("nobody", 1)):
        request.model_spec.name, request.model_spec.version.value = name, version
        with refused("NOT_FOUND", "no version 5" if name == "voice" else "nobody"):
            stub.GetModelStatus(request, timeout=10)


def test_what_is_for_examples_is_not_implemented_in_words(channel):
    stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
    for function, request in (
        (stub.Classify, classification_pb2.ClassificationRequest()),
        (stub.Regress, regression_pb2.RegressionRequest()),
        (stub.MultiInference, inference_pb2.MultiInferenceRequest()),
    ):
        with refused("UNIMPLEMENTED", "use Predict"):
            function(request, timeout=10)


def test_the_server_gives_the_version_of_the_package(channel):
    path, kind = (
        "/inference.GRPCInferenceService/ServerMetadata",
        "inference.ServerMetadataResponse",
    )
    answer = method(channel, path, answer=kind)(message("inference.ServerMetadataRequest")())
    assert answer == message(kind)(name="onepass", version=onepass.__version__)


def test_health_is_that_of_the_server_its_services_and_its_models(channel):
    for service in ("", "tensorflow.serving.PredictionService", "voice", "shapes"):
        assert health(channel, service) == SERVING
    assert health(channel, "late") == NOT_SERVING


def test_health_follows_readiness_while_it_is_watched(models):
    with Running(models) as running, running.channel() as channel:
        request = health_pb2.HealthCheckRequest(service="voice")
        watch = map(status_of, health_pb2_grpc.HealthStub(channel).Watch(request, timeout=10))
        assert next(watch) == SERVING
        running.registry.draining = True
        assert next(watch) == NOT_SERVING
        assert health(channel) == health(channel, "voice") == NOT_SERVING
        assert list(watch) == []  # a watch does not keep a server that leaves


def reflected(channel, **question):
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    asked = iter([reflection_pb2.ServerReflectionRequest(**question)])
    (answer,) = stub.ServerReflectionInfo(asked, timeout=10)
    return answer


def test_reflection_lists_the_services_and_describes_them(channel):
    listed = {s.name for s in reflected(channel, list_services="").list_services_response.service}
    assert listed == {
        *("grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection", "onepass.Models"),
        *("inference.GRPCInferenceService", "tensorflow.serving.ModelService"),
        "tensorflow.serving.PredictionService",
    }
    for service in listed:
        found = reflected(channel, file_containing_symbol=service)
        assert found.file_descriptor_response.file_descriptor_proto, service
    wrong = reflected(channel, file_containing_symbol="no.such.Service")
    assert wrong.error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]


def test_values_one_by_one_are_those_of_the_bytes(channel):
    plain, typed = infer_request(), infer_request()
    plain.outputs.add(name="sound")
    del typed.raw_input_contents[:]
    typed.inputs[0].contents.fp32_contents.extend(INPUTS["frames"].ravel())
    typed.inputs[1].contents.int_contents.append(*INPUTS["num_frames"])
    typed.outputs.add(name="sound")
    assert infer(channel, typed).raw_output_contents == infer(channel, plain).raw_output_contents


@pytest.mark.parametrize(
    ("spoil", "status", "words"),
    [
        (lambda r: setattr(r, "model_version", "one"), "INVALID_ARGUMENT", "begun by 0, got `one`"),
        (lambda r: setattr(r, "model_version", "9" * 21), "INVALID_ARGUMENT", "0, got `999"),
        (lambda r: r.raw_input_contents.pop(), "INVALID_ARGUMENT", "one entry for each"),
        (lambda r: setattr(r.inputs[0], "datatype", "BYTES"), "INVALID_ARGUMENT", "got `BYTES`"),
        (lambda r: r.inputs[0].shape.insert(0, 2**40), "RESOURCE_EXHAUSTED", "bring the request"),
        (lambda r: r.inputs[0].shape.insert(0, 2), "INVALID_ARGUMENT", "have 192 bytes, got 96"),
        (lambda r: setattr(r.inputs[1], "name", "frames"), "INVALID_ARGUMENT", "be given once"),
        (lambda r: r.outputs.add(name="x"), "INVALID_ARGUMENT", "`x` is not an output"),
    ],
)
def test_a_wrong_inference_is_refused_with_the_field_and_the_rule(channel, spoil, status, words):
    request = infer_request()
    spoil(request)
    with refused(status, words):
        infer(channel, request)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"num_samples": -1}, "`num_samples` must be at least 0"),
        ({"speaker": "nobody"}, "`speaker` must be one of anna, ben"),
        ({"temperature": float("nan")}, "`temperature`"),
        *(({"row": -1}, "`row`"), ({"name": "shapes"}, "draws images")),
        ({"frames": tensor(frames())}, "`frames` must have the shape"),
        ({"frames": tensor(frames()[0] * np.nan)}, "`frames` must be finite"),
        ({"frames": tensor(frames()[0, :, :2])}, "`frames` must have the shape"),
    ],
)
def test_a_wrong_request_for_sound_is_refused_with_the_field(channel, fields, words):
    with refused("INVALID_ARGUMENT", words):
        list(speak(channel, **fields))


def test_a_client_that_has_vanished_without_a_word_is_missed(models, monkeypatch):
    monkeypatch.setattr("serving.grpc.server.ALIVE_SECONDS", 0.3)
    with (
        Running(models) as running,
        Relay(running.port) as relay,
        grpc.insecure_channel(relay.address) as channel,
    ):
        next(health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest()))
        relay.silent.set()
        until(lambda: running.counted("cancelled") == 1)


def test_a_failure_of_a_stream_tells_nothing_and_an_answer_has_the_id_of_its_request(models):
    with Running(models) as running, running.channel() as channel:
        models.controls["voice", 1].fails_on = 13
        with refused("INTERNAL", "see the server's log"):
            list(speak(channel, seed=13))
        with refused("NOT_FOUND") as caught:
            predict(channel, predict_request("x"), metadata=(("x-request-id", "my-own-id"),))
        assert dict(caught[0].trailing_metadata())["x-request-id"] == "my-own-id"


def test_only_the_token_opens_all_but_health(models, monkeypatch):
    monkeypatch.setenv("ONEPASS_TOKEN", TOKEN)
    with Running(models) as running, running.channel() as channel:
        for given in ("", "Bearer wrong", f"Bearer {TOKEN}x", TOKEN):
            with refused("UNAUTHENTICATED"):
                predict(channel, predict_request(), metadata=(("authorization", given),))
        with refused("UNAUTHENTICATED"):
            reflected(channel, list_services="")
        assert health(channel) == SERVING
        right = (("authorization", f"Bearer {TOKEN}"),)
        assert predict(channel, predict_request(), metadata=right).model_spec.name == "voice"
        assert running.counted("unauthorized") == 5


def test_messages_are_capped_both_ways(models):
    with Running(models, max_body_mib=0.1) as running, running.channel() as channel:
        with refused("RESOURCE_EXHAUSTED", "larger than max"):
            channel.unary_unary(GRPC_PREDICT)(b"\0" * 200_000, timeout=10)
        counts = np.full(8, 1000, np.int32)
        request = predict_request(frames=frames(8, 1000), num_frames=counts)
        assert request.ByteSize() < 104_857
        with refused("RESOURCE_EXHAUSTED", "The answer has 128"):
            predict(channel, request)


@pytest.mark.parametrize("algorithm", [grpc.Compression.Gzip, grpc.Compression.Deflate])
def test_a_compressed_message_is_refused(channel, algorithm):
    with refused("UNIMPLEMENTED", "Compression algorithm"):
        channel.unary_unary(GRPC_PREDICT)(b"\0" * 3_000_000, compression=algorithm)


def test_bytes_that_are_no_message_are_the_clients_mistake(channel):
    for path in (GRPC_PREDICT, "/grpc.health.v1.Health/Check", GRPC_INFER):
        with refused("INVALID_ARGUMENT", "not a message of this method"):
            channel.unary_unary(path)(b"\xff\xff\xff", timeout=10)
    with refused("INVALID_ARGUMENT", "one message, got none"):
        channel.stream_unary(GRPC_PREDICT)(iter(()), timeout=10)


@pytest.mark.parametrize(
    "path",
    [
        *("/no.such.Service/Method", "/inference.GRPCInferenceService/RepositoryModelLoad"),
        "/inference.GRPCInferenceService/RepositoryModelUnload",
        "/tensorflow.serving.ModelService/HandleReloadConfigRequest",
    ],
)
def test_nobody_can_have_a_model_loaded_or_taken_away(channel, path):
    with refused("UNIMPLEMENTED"):
        channel.unary_unary(path)(b"", timeout=10)


# Whom a call comes from: the peer, or whom a proxy that is trusted names


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("ipv4:127.0.0.1:40000", "127.0.0.1"),
        ("ipv6:%5B2001:db8::1%5D:40000", "2001:db8::1"),
        ("unix:/tmp/socket", ""),
    ],
)
def test_a_client_is_its_address(peer, address):
    assert client_of(peer) == address


@pytest.mark.parametrize(
    ("trusted", "peer", "forwarded", "client"),
    [
        (None, "127.0.0.1", "192.0.2.7", "192.0.2.7"),
        (None, "127.0.0.1", None, "127.0.0.1"),
        (None, "127.0.0.1", b"192.0.2.7", "127.0.0.1"),
        (None, "198.51.100.2", "192.0.2.7", "198.51.100.2"),  # anybody may write that
        (None, "127.0.0.1", "10.9.9.9, 192.0.2.7", "192.0.2.7"),  # nor what is before it
        (None, "127.0.0.1", "192.0.2.7, 127.0.0.1", "192.0.2.7"),
        (None, "127.0.0.1", "127.0.0.1", "127.0.0.1"),
        ("10.0.0.0/8, 192.0.2.1", "10.1.2.3", "2001:db8::1, 192.0.2.1", "2001:db8::1"),
        ("10.0.0.0/8", "127.0.0.1", "192.0.2.7", "127.0.0.1"),
        ("*", "198.51.100.2", "192.0.2.7, 10.0.0.1", "192.0.2.7"),
        ("", "127.0.0.1", "192.0.2.7", "127.0.0.1"),
        ("proxy.example", "127.0.0.1", "192.0.2.7", "127.0.0.1"),
    ],
)
def test_only_a_trusted_proxy_names_a_client(monkeypatch, trusted, peer, forwarded, client):
    monkeypatch.delenv("FORWARDED_ALLOW_IPS", raising=False)
    if trusted is not None:
        monkeypatch.setenv("FORWARDED_ALLOW_IPS", trusted)
    metadata = {} if forwarded is None else {"x-forwarded-for": forwarded}
    assert client_address(peer, metadata) == client


def test_the_log_of_a_call_names_the_client_behind_the_proxy(channel, caplog):
    caplog.set_level("INFO", "serving")
    predict(channel, predict_request(), metadata=[("x-forwarded-for", "192.0.2.7")])
    until(lambda: [r for r in caplog.records if r.message == "answered"])
    (answered,) = (r for r in caplog.records if r.message == "answered")
    assert answered.fields["client"] == "192.0.2.7"


# TensorProto: what goes round comes back, and what lies is refused before it costs anything.
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
