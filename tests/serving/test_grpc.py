"""The models over gRPC: stock stubs are answered, and nothing else gets through."""

import json
import threading

import grpc
import numpy as np
import pytest
import tensorflow as tf
from fake_bundle import HOP, RATE, FakeSound
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from grpc_running import Running, frames, refused, store
from relay import Relay
from serve_load import until
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

import onepass
from serving.grpc.server import client_of
from serving.grpc.tensors import encode, message

TOKEN = "a token of sixteen characters"
PREDICT = "/tensorflow.serving.PredictionService/Predict"
SERVING, NOT_SERVING = "SERVING", "NOT_SERVING"


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    with Running(store(tmp_path_factory.mktemp("models"))) as running:
        yield running


@pytest.fixture(scope="module")
def channel(running):
    with running.channel() as channel:
        yield channel


@pytest.fixture
def fresh(tmp_path):
    return store(tmp_path)


def predict_request(name="voice", signature="", **inputs):
    request = predict_pb2.PredictRequest()
    request.model_spec.name, request.model_spec.signature_name = name, signature
    if name == "voice" and not inputs:
        inputs = {"frames": frames(), "num_frames": np.array([5], np.int32)}
    for key, value in inputs.items():
        request.inputs[key].CopyFrom(tf.make_tensor_proto(value))
    return request


def predict(channel, request=None, **options):
    stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
    return stub.Predict(request or predict_request(), timeout=10, **options)


def health(channel, service=""):
    stub = health_pb2_grpc.HealthStub(channel)
    answer = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=10)
    return health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)


def test_tensorflows_stub_gets_what_the_bundle_gives(channel):
    inputs = {
        "frames": frames(3),
        "num_frames": np.array([5, 2, 4], np.int32),
        "seed": np.array([1, 2, 3], np.int64),
        "row": np.array([0, 0, 9], np.int32),
        "temperature": np.array([1.0, 0.5, 0.0], np.float32),
        "speaker": np.zeros(3, np.int32),
    }
    answer = predict(channel, predict_request("voice", "compiled", **inputs))
    expected = FakeSound().call("compiled", inputs)
    sound = tf.make_ndarray(answer.outputs["sound"])
    assert np.array_equal(sound, expected["sound"][:, : sound.shape[1]]) and sound.shape[1] >= 20
    assert tf.make_ndarray(answer.outputs["num_samples"]).tolist() == [20, 8, 16]
    spec = answer.model_spec
    assert (spec.name, spec.version.value, spec.signature_name) == ("voice", 1, "compiled")


def test_a_filter_chooses_outputs(channel):
    request = predict_request("digits", label=np.array([3], np.int32))
    request.output_filter.extend(["picture_8", "picture_8"])
    answer = predict(channel, request)
    assert list(answer.outputs) == ["picture_8"]
    assert (tf.make_ndarray(answer.outputs["picture_8"]) == 60).all()
    request.output_filter.append("nothing")
    with refused("INVALID_ARGUMENT", "`nothing` is not an output; there are picture_8"):
        predict(channel, request)


def wrong_label(request):
    request.model_spec.version_label = "stable"


def wrong_version(request):
    request.model_spec.version.value = 7


def negative_version(request):
    request.model_spec.version.value = -1


def splat(request):
    request.inputs["frames"].CopyFrom(tf.make_tensor_proto(1.0))
    request.inputs["frames"].tensor_shape.dim.add(size=400_000_000)


@pytest.mark.parametrize(
    ("spoil", "status", "words"),
    [
        (lambda r: setattr(r.model_spec, "name", ""), "INVALID_ARGUMENT", "`model_spec.name`"),
        (lambda r: setattr(r.model_spec, "name", "../voice"), "NOT_FOUND", ""),
        (wrong_version, "NOT_FOUND", "version 7"),
        (negative_version, "NOT_FOUND", "version -1"),
        (wrong_label, "INVALID_ARGUMENT", "version_label"),
        (
            lambda r: setattr(r.model_spec, "signature_name", "other"),
            "INVALID_ARGUMENT",
            "no signature `other`; there are serving_default, compiled",
        ),
        (splat, "RESOURCE_EXHAUSTED", "`frames` of shape [400000000]"),
        (lambda r: r.inputs["more"].CopyFrom(tf.make_tensor_proto(1)), "INVALID_ARGUMENT", "more"),
        (
            lambda r: r.inputs["frames"].CopyFrom(tf.make_tensor_proto(frames() * np.nan)),
            "INVALID_ARGUMENT",
            "`frames` must be finite",
        ),
        (
            lambda r: r.inputs["frames"].CopyFrom(tf.make_tensor_proto(b"text")),
            "INVALID_ARGUMENT",
            "`frames` must be of numbers or of bool, got DT_STRING",
        ),
        (lambda r: r.inputs.clear(), "INVALID_ARGUMENT", "`frames` must be given"),
    ],
)
def test_a_wrong_request_is_refused_with_the_field_and_the_rule(channel, spoil, status, words):
    request = predict_request()
    spoil(request)
    with refused(status, words):
        predict(channel, request)


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
    request.model_spec.version.value = 5
    with refused("NOT_FOUND", "no version 5"):
        stub.GetModelStatus(request, timeout=10)
    request.model_spec.name = "nobody"
    with refused("NOT_FOUND", "nobody"):
        stub.GetModelStatus(request, timeout=10)


def test_what_is_for_examples_is_not_implemented_in_words(channel):
    stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
    for method, request in (
        (stub.Classify, classification_pb2.ClassificationRequest()),
        (stub.Regress, regression_pb2.RegressionRequest()),
        (stub.MultiInference, inference_pb2.MultiInferenceRequest()),
    ):
        with refused("UNIMPLEMENTED", "use Predict"):
            method(request, timeout=10)


def test_health_is_that_of_the_server_its_services_and_its_models(channel):
    for service in ("", "tensorflow.serving.PredictionService", "voice", "digits"):
        assert health(channel, service) == SERVING
    with refused("NOT_FOUND"):
        health(channel, "nobody")


def test_health_follows_readiness_while_it_is_watched(fresh):
    with Running(fresh) as running, running.channel() as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(
            health_pb2.HealthCheckRequest(service="voice"), timeout=10
        )
        statuses = (
            health_pb2.HealthCheckResponse.ServingStatus.Name(said.status) for said in watch
        )
        assert next(statuses) == SERVING
        running.registry.drain()
        assert next(statuses) == NOT_SERVING
        assert health(channel) == health(channel, "voice") == NOT_SERVING
        assert list(statuses) == []  # a watch does not keep a server that leaves


def test_a_model_that_loads_is_not_served_yet(tmp_path):
    models = store(tmp_path)
    models.add("late", load_fails=True)
    with Running(models) as running, running.channel() as channel:
        assert health(channel, "late") == NOT_SERVING
        with refused("UNAVAILABLE", "`late`") as caught:
            predict(channel, predict_request("late"))
        assert int(dict(caught[0].trailing_metadata())["retry-after"]) >= 1


def reflected(channel, **question):
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    asked = iter([reflection_pb2.ServerReflectionRequest(**question)])
    (answer,) = stub.ServerReflectionInfo(asked, timeout=10)
    return answer


def test_reflection_lists_the_services_and_describes_them(channel):
    listed = {s.name for s in reflected(channel, list_services="").list_services_response.service}
    assert listed == {
        "grpc.health.v1.Health",
        "grpc.reflection.v1alpha.ServerReflection",
        "inference.GRPCInferenceService",
        "onepass.Models",
        "tensorflow.serving.ModelService",
        "tensorflow.serving.PredictionService",
    }
    for service in listed:
        found = reflected(channel, file_containing_symbol=service)
        assert found.file_descriptor_response.file_descriptor_proto, service
    wrong = reflected(channel, file_containing_symbol="no.such.Service")
    assert wrong.error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]


def test_the_server_gives_the_version_of_the_package(channel):
    made = message("inference.ServerMetadataResponse")
    ask = channel.unary_unary(
        "/inference.GRPCInferenceService/ServerMetadata",
        lambda asked: asked.SerializeToString(),
        made.FromString,
    )
    answer = ask(message("inference.ServerMetadataRequest")(), timeout=10)
    assert answer == made(name="onepass", version=onepass.__version__)


def infer_request(**changes):
    request = message("inference.ModelInferRequest")(model_name="voice", id="mine")
    for name, datatype, value in (
        ("frames", "FP32", frames()),
        ("num_frames", "INT32", np.array([5], np.int32)),
    ):
        request.inputs.add(name=name, datatype=datatype, shape=value.shape)
        request.raw_input_contents.append(value.tobytes())
    for name, value in changes.items():
        setattr(request, name, value)
    return request


def infer(channel, request):
    method = channel.unary_unary(
        "/inference.GRPCInferenceService/ModelInfer",
        request.__class__.SerializeToString,
        message("inference.ModelInferResponse").FromString,
    )
    return method(request, timeout=10)


def test_version_two_of_inference_gives_the_same_sound(channel):
    answer = infer(channel, infer_request())
    assert (answer.model_name, answer.model_version, answer.id) == ("voice", "1", "mine")
    raw = dict(zip([o.name for o in answer.outputs], answer.raw_output_contents, strict=True))
    assert raw["sound"] == predict(channel).outputs["sound"].tensor_content
    typed = infer_request()
    del typed.raw_input_contents[:]
    typed.inputs[0].contents.fp32_contents.extend(frames().ravel())
    typed.inputs[1].contents.int_contents.append(5)
    typed.outputs.add(name="sound")
    assert infer(channel, typed).raw_output_contents == [raw["sound"]]


def spoilt(spoil):
    request = infer_request()
    spoil(request)
    return request


@pytest.mark.parametrize(
    ("request_", "status", "words"),
    [
        (infer_request(model_version="one"), "INVALID_ARGUMENT", "not begun by 0, got `one`"),
        (infer_request(model_version="9" * 21), "INVALID_ARGUMENT", "not begun by 0, got `999"),
        (infer_request(model_version="7"), "NOT_FOUND", "7"),
        (spoilt(lambda r: r.raw_input_contents.pop()), "INVALID_ARGUMENT", "one entry for each"),
        (
            spoilt(lambda r: setattr(r.inputs[0], "datatype", "BYTES")),
            "INVALID_ARGUMENT",
            "got `BYTES`",
        ),
        (
            spoilt(lambda r: r.inputs[0].shape.insert(0, 2**40)),
            "RESOURCE_EXHAUSTED",
            "would bring the request over",
        ),
        (
            spoilt(lambda r: r.inputs[0].shape.insert(0, 2)),
            "INVALID_ARGUMENT",
            "must have 120 bytes, got 60",
        ),
        (
            spoilt(lambda r: setattr(r.inputs[1], "name", "frames")),
            "INVALID_ARGUMENT",
            "`frames` must be given once",
        ),
        (spoilt(lambda r: r.outputs.add(name="x")), "INVALID_ARGUMENT", "`x` is not an output"),
    ],
)
def test_a_wrong_inference_is_refused_with_the_field_and_the_rule(channel, request_, status, words):
    with refused(status, words):
        infer(channel, request_)


def tensor(array):
    made = message("tensorflow.TensorProto")()
    encode(array, made)
    return made


def speak(channel, timeout=10, **fields):
    request = message("onepass.SpeakRequest")(**fields)
    request.model_spec.name = request.model_spec.name or "voice"
    if not request.HasField("frames"):
        request.frames.CopyFrom(tensor(frames(1, 40)[0]))
    method = channel.unary_stream(
        "/onepass.Models/Speak",
        request.__class__.SerializeToString,
        message("onepass.SpeakResponse").FromString,
    )
    return method(request, timeout=timeout)


def test_sound_streams_as_it_is_made(channel):
    chunks = list(speak(channel, seed=3, speaker="ben"))
    assert len(chunks) == 40 * HOP // 16 and {c.sample_rate_hz for c in chunks} == {RATE}
    streamed = np.concatenate([np.frombuffer(chunk.samples, "<f4") for chunk in chunks])
    whole = FakeSound().sample(condition=frames(1, 40)[0], seed=3)[0]
    assert np.array_equal(streamed, whole)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"num_samples": -1}, "`num_samples` must be at least 0"),
        ({"speaker": "nobody"}, "`speaker` must be one of anna, ben"),
        ({"temperature": float("nan")}, "`temperature`"),
        ({"row": -1}, "`row`"),
        ({"model_spec": {"name": "digits"}}, "draws images"),
        ({"frames": tensor(frames())}, "`frames` must have the shape"),
        ({"frames": tensor(frames()[0] * np.nan)}, "`frames` must be finite"),
        ({"frames": tensor(frames()[0, :, :2])}, "`frames` must have the shape"),
    ],
)
def test_a_wrong_request_for_sound_is_refused_with_the_field(channel, fields, words):
    with refused("INVALID_ARGUMENT", words):
        list(speak(channel, **fields))


def test_models_are_listed_with_what_they_are(channel):
    method = channel.unary_unary(
        "/onepass.Models/List", None, message("onepass.ListResponse").FromString
    )
    listed = {model.name: model for model in method(b"", timeout=10).models}
    assert {name: model.kind for name, model in listed.items()} == {
        "voice": "sound",
        "digits": "picture",
    }
    assert json.loads(listed["voice"].spec_json)["sample_rate_hz"] == RATE


def test_a_client_that_leaves_takes_its_waiting_rows_with_it(fresh):
    with Running(fresh) as running, running.channel() as channel:
        control = fresh.controls["voice", 1]
        control.open.clear()
        stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
        first = stub.Predict.future(predict_request(), timeout=10)
        assert control.entered.wait(5)
        second = stub.Predict.future(predict_request(), timeout=10)
        until(lambda: running.registry.get("voice")._active == 2)
        second.cancel()
        until(lambda: running.counted("cancelled") == 1)
        control.open.set()
        first.result(10)
        assert control.rows == [1]


def test_a_client_that_has_vanished_without_a_word_is_missed(fresh, monkeypatch):
    monkeypatch.setattr("serving.grpc.server.ALIVE_SECONDS", 0.3)
    with (
        Running(fresh) as running,
        Relay(running.port) as relay,
        grpc.insecure_channel(relay.address) as channel,
    ):
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        next(watch)
        relay.silent.set()
        until(lambda: running.counted("cancelled") == 1)


def test_the_clients_deadline_ends_a_call(fresh):
    with Running(fresh) as running, running.channel() as channel:
        control = fresh.controls["voice", 1]
        control.open.clear()
        stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
        with refused("DEADLINE_EXCEEDED"):
            stub.Predict(predict_request(), timeout=0.2)
        until(lambda: running.counted("cancelled") + running.counted("deadline_exceeded"))
        control.open.set()


def test_the_servers_deadline_ends_a_call_without_one(fresh):
    with Running(fresh, timeout_seconds=0.2) as running, running.channel() as channel:
        fresh.controls["voice", 1].seconds = 1.0
        stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
        with refused("DEADLINE_EXCEEDED"):
            stub.Predict(predict_request())


def test_a_message_that_never_comes_meets_the_deadline(fresh):
    with Running(fresh, timeout_seconds=0.2) as running, running.channel() as channel:
        silent = threading.Event()

        def nothing():
            silent.wait(10)
            yield from ()

        with refused("DEADLINE_EXCEEDED"):
            channel.stream_unary(PREDICT)(nothing())
        silent.set()


def test_a_full_queue_says_when_to_come_again(fresh):
    with Running(fresh, queue_rows=1) as running, running.channel() as channel:
        control = fresh.controls["voice", 1]
        control.open.clear()
        stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
        first = stub.Predict.future(predict_request(), timeout=10)
        assert control.entered.wait(5)
        second = stub.Predict.future(predict_request(), timeout=10)
        until(lambda: running.registry.get("voice")._active == 2)
        with refused("UNAVAILABLE") as caught:
            predict(channel)
        assert int(dict(caught[0].trailing_metadata())["retry-after"]) >= 1
        control.open.set()
        assert first.result(10) == second.result(10)


def test_a_failure_of_the_model_tells_nothing(fresh):
    with Running(fresh) as running, running.channel() as channel:
        fresh.controls["voice", 1].fails_on = 13
        inputs = {"frames": frames(), "num_frames": np.array([5], np.int32)}
        request = predict_request("voice", seed=np.array([13], np.int64), **inputs)
        with refused("INTERNAL", "see the server's log") as caught:
            predict(channel, request, metadata=(("x-request-id", "my-own-id"),))
        assert dict(caught[0].trailing_metadata())["x-request-id"] == "my-own-id"
        with refused("INTERNAL", "see the server's log"):
            list(speak(channel, seed=13))


def bearer(token):
    return (("authorization", f"Bearer {token}"),)


def test_only_the_token_opens_all_but_health(fresh, monkeypatch):
    monkeypatch.setenv("ONEPASS_TOKEN", TOKEN)
    with Running(fresh) as running, running.channel() as channel:
        for metadata in ((), bearer("wrong"), bearer(TOKEN + "x"), (("authorization", TOKEN),)):
            with refused("UNAUTHENTICATED"):
                predict(channel, metadata=metadata)
        with refused("UNAUTHENTICATED"):
            reflected(channel, list_services="")
        assert health(channel) == SERVING
        assert predict(channel, metadata=bearer(TOKEN)).model_spec.name == "voice"
        assert running.counted("unauthorized") == 5


def test_messages_are_capped_both_ways(fresh):
    with Running(fresh, max_body_mib=0.1) as running, running.channel() as channel:
        with refused("RESOURCE_EXHAUSTED", "larger than max"):
            channel.unary_unary(PREDICT)(b"\0" * 200_000, timeout=10)
        request = predict_request(
            "voice", frames=frames(8, 1000), num_frames=np.full(8, 1000, np.int32)
        )
        assert request.ByteSize() < 104_857
        with refused("RESOURCE_EXHAUSTED", "The answer has 128"):
            predict(channel, request)


@pytest.mark.parametrize("algorithm", [grpc.Compression.Gzip, grpc.Compression.Deflate])
def test_a_compressed_message_is_refused(channel, algorithm):
    with refused("UNIMPLEMENTED", "Compression algorithm"):
        channel.unary_unary(PREDICT)(b"\0" * 3_000_000, compression=algorithm)


def test_bytes_that_are_no_message_are_the_clients_mistake(channel):
    for path in (
        PREDICT,
        "/grpc.health.v1.Health/Check",
        "/inference.GRPCInferenceService/ModelInfer",
    ):
        with refused("INVALID_ARGUMENT", "not a message of this method"):
            channel.unary_unary(path)(b"\xff\xff\xff", timeout=10)
    with refused("INVALID_ARGUMENT", "one message, got none"):
        channel.stream_unary(PREDICT)(iter(()), timeout=10)
    with refused("UNIMPLEMENTED"):
        channel.unary_unary("/no.such.Service/Method")(b"", timeout=10)


def test_calls_that_are_under_way_end_before_the_server_does(fresh):
    with Running(fresh) as running, running.channel() as channel:
        fresh.controls["voice", 1].seconds = 0.5
        stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
        call = stub.Predict.future(predict_request(), timeout=10)
        assert fresh.controls["voice", 1].entered.wait(5)
        running.do(running.server.stop(5))
        assert call.result(10).model_spec.name == "voice"


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
