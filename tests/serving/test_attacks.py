"""What must not get through, sent to a running `onepass serve` over real sockets.

What uvicorn, h11 and gRPC repel is in test_lockout.py and test_server.py (connections, calls,
heads), what the proxy in front repels in test_machine_files.py (TLS, rates, slow clients).
"""

import base64
import io
import json
import pickle

import grpc
import numpy as np
import pytest
import soundfile
from fake_bundle import CHANNELS, FakeImages, FakeModelStore
from grpc_health.v1 import health_pb2, health_pb2_grpc
from PIL import Image
from serve_command import METRICS, Command, is_discreet
from serve_load import (
    FRAMES,
    GRPC_PREDICT,
    GRPC_SPEAK,
    INFER,
    method,
    predict,
    predict_request,
    speak,
    until,
)

from serving.grpc.messages import message

PREDICT = "/v1/models/voice:predict"
DRAW = "/v1/models/shapes:draw"
SPEAK = "/v1/models/voice:speak"
INFER_PATH = "/v2/models/voice/infer"
TOKEN = "a token of enough letters"
GROWTH_MIB = 48  # that attacks may cost: a few bodies of the largest size


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """`voice`, `shapes` and one that fails; next to their folder lies a secret."""
    models = FakeModelStore(tmp_path_factory.mktemp("attacks") / "models")
    models.add("voice")
    models.add("shapes", kind=FakeImages)
    models.add("failing", fails_on=13)
    (models.root.parent / "hidden.txt").write_text("secret of the disk")
    with Command(models) as command:
        yield command


@pytest.fixture(scope="module")
def channel(server):
    with server.channel() as channel:
        yield channel


def refused(channel, path, request, timeout=10):
    """(name of the status, words) that a call ends in; the words tell nothing of the insides."""
    with pytest.raises(grpc.RpcError) as caught:
        answer = method(channel, path)(request, timeout=timeout)
        raise AssertionError(answer)
    return caught.value.code().name, discreet(caught.value.details())


def discreet(words):
    assert words and is_discreet(words), words
    return words


def splat(dtype=1, sides=(400_000_000,), **values):
    """A message of a few bytes that stands for gigabytes."""
    made = message("tensorflow.TensorProto")(dtype=dtype)
    for side in sides:
        made.tensor_shape.dim.add(size=side)
    made.float_val.extend(values.get("float_val", [1.0]))
    assert len(made.SerializeToString()) < 300
    return made


def flat_infer(sides):
    request = message("inference.ModelInferRequest")(model_name="voice")
    added = request.inputs.add(name="frames", datatype="FP32", shape=sides)
    added.contents.fp32_contents.append(1.0)
    return request


def speak_request(frames):
    request = message("onepass.SpeakRequest")(frames=frames)
    request.model_spec.name = "voice"
    return request


GRPC_INFER = "/inference.GRPCInferenceService/ModelInfer"
HUGE = [
    (GRPC_PREDICT, predict_request(frames=splat())),
    (GRPC_PREDICT, predict_request(frames=splat(sides=(1, 12_000, 40_000)))),
    (GRPC_PREDICT, predict_request(frames=splat(sides=(2**62, 2**62)))),
    (GRPC_PREDICT, predict_request(frames=splat(sides=(0, 2**62)))),
    (GRPC_PREDICT, predict_request(frames=splat(sides=(2,) * 60))),
    (GRPC_INFER, flat_infer([400_000_000, 1, 1])),
    (GRPC_INFER, flat_infer([2**40, 2**40, 2**40])),
    (GRPC_SPEAK, speak_request(splat(sides=(130_000_000, 3)))),
]


def test_messages_of_a_few_bytes_cost_no_memory_over_grpc(server, channel):
    before = server.memory_mib()
    for path, request in HUGE * 3:
        kind = "unary_stream" if path == GRPC_SPEAK else "unary_unary"
        with pytest.raises(grpc.RpcError) as caught:
            list(method(channel, path, kind)(request, timeout=10))
        assert caught.value.code().name in ("INVALID_ARGUMENT", "RESOURCE_EXHAUSTED")
        discreet(caught.value.details())
    assert server.memory_mib("VmHWM") - before < GROWTH_MIB


LYING_SIZE = {"binary_data_size": 4_800_000_000}


def infer_body(shape, **tensor):
    given = {"name": "frames", "datatype": "FP32", "shape": shape, **tensor}
    return json.dumps({"inputs": [given]}).encode()


def flac(seconds):
    """A file of silence: a few bytes a second."""
    made = io.BytesIO()
    soundfile.write(made, np.zeros(16_000 * seconds, np.int16), 16_000, format="FLAC")
    return made.getvalue()


def image(side):
    """A PNG file without content."""
    made = io.BytesIO()
    Image.new("1", (side, side)).save(made, "PNG", optimize=True)
    return made.getvalue()


def test_bodies_of_a_few_bytes_cost_no_memory_over_http(server):
    bomb = flac(3600)
    assert len(bomb) < 500_000  # which would be 230 MB of samples
    attacks = [
        (INFER_PATH, infer_body([400_000_000, 1, 3], data=[1.0]), {}),
        (INFER_PATH, infer_body([2**31 - 1, 2**31 - 1, 3], data=[]), {}),
        (
            INFER_PATH,
            infer_body([400_000_000, 1, 3], parameters={"binary_data_size": 4_800_000_000}),
            {},
        ),
        (PREDICT, b'{"inputs": {"frames": ' + b"[" * 2_000_000, {}),
        (PREDICT, b'{"instances": [' + b"[]," * 900_000 + b"[]]}", {}),
        (PREDICT, b'{"instances": [{"num_frames": ' + b"9" * 1_000_000 + b"}]}", {}),
        (SPEAK, bomb, {"Content-Type": "audio/flac"}),
        (SPEAK, json.dumps({"recording": base64.b64encode(bomb).decode()}), {}),
        (DRAW, json.dumps({"class": 1, "num": 2**31}), {}),
        ("/v1/images/generations", json.dumps({"prompt": "1", "n": 10**9}), {}),
    ]
    png = image(10_000)
    assert len(png) < 100_000  # which would be 300 MB of pixels
    attacks += [
        (SPEAK, png, {"Content-Type": "audio/wav"}),
        (SPEAK, json.dumps({"recording": base64.b64encode(png).decode()}), {}),
        (DRAW, json.dumps({"map": base64.b64encode(png).decode()}), {}),
        (PREDICT, json.dumps({"inputs": {"frames": {"b64": base64.b64encode(png).decode()}}}), {}),
    ]
    server.asked("POST", SPEAK, flac(1), **{"Content-Type": "audio/flac"})  # imports what reads it
    before = server.memory_mib()
    for path, body, headers in attacks:
        status = server.asked("POST", path, body, **headers)[0]
        assert status in (400, 413), (path, body[:80])
    assert server.memory_mib("VmHWM") - before < 2 * GROWTH_MIB


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd"])
def test_compressed_bodies_are_refused(server, encoding):
    status, headers, _ = server.asked("POST", PREDICT, b"\x1f\x8b", Content_Encoding=encoding)
    assert (status, headers["Content-Encoding"]) == (415, None)


@pytest.mark.parametrize("algorithm", [grpc.Compression.Gzip, grpc.Compression.Deflate])
def test_compressed_messages_are_refused(server, channel, algorithm):
    request = predict_request(frames=np.zeros([1, FRAMES, CHANNELS], np.float32))
    with pytest.raises(grpc.RpcError) as caught:
        predict(channel, request, compression=algorithm)
    assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED
    discreet(caught.value.details())


class Canary:
    """Leaves a file behind where it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def npy(array, allow_pickle=False):
    made = io.BytesIO()
    np.save(made, array, allow_pickle=allow_pickle)
    return made.getvalue()


def test_what_numpy_and_pickle_wrote_is_never_read(server, channel, tmp_path):
    hatched = tmp_path / "hatched"
    pickled = pickle.dumps(Canary(hatched))
    zipped = io.BytesIO()
    np.savez(zipped, frames=np.zeros(3))
    written = npy(np.array([Canary(hatched)], object), allow_pickle=True)
    for content in (pickled, written, npy(np.zeros([1, 8, 3], np.float32)), zipped.getvalue()):
        for path in (PREDICT, INFER_PATH, SPEAK, DRAW, "/v1/images/generations"):
            for kind in ("application/octet-stream", "application/json", "audio/wav"):
                status = server.asked("POST", path, content, **{"Content-Type": kind})[0]
                assert status == 400, (path, kind)
        behind = {"Inference-Header-Content-Length": "0"}
        assert server.asked("POST", INFER_PATH, content, **behind)[0] == 400
        words = base64.b64encode(content).decode()
        assert server.asked("POST", SPEAK, json.dumps({"recording": words}))[0] == 400
        for path in (GRPC_PREDICT, GRPC_INFER):
            with pytest.raises(grpc.RpcError) as caught:
                channel.unary_unary(path)(content, timeout=10)
            assert caught.value.code().name in ("INVALID_ARGUMENT", "NOT_FOUND")
    assert not hatched.exists()


@pytest.mark.parametrize(
    ("frames", "more", "words"),
    [
        ("[[NaN, 0, 0]]", "", "must be JSON"),
        ("[[Infinity, 0, 0]]", "", "must be JSON"),
        ("[[1e999, 0, 0]]", "", ""),
        ("[[0, 0, 0], [0, 0]]", "", "`frames`"),
        ("[[0, 0]]", "", "`frames`"),
        ("[]", "", "`frames`"),
        ("[[0, 0, null]]", "", "`frames`"),
        ('[["0", "0", "0"]]', "", "`frames`"),
        ("[[99999, 0, 0]]", "", "`frames` must be between"),
        ("[[0, 0, 0]]", ', "num_frames": -1', "`num_frames` must be"),
        ("[[0, 0, 0]]", ', "num_frames": 2', "at most the 1 of `frames`"),
        ("[[0, 0, 0]]", ', "num_frames": 1.5', "`num_frames`"),
        ("[[0, 0, 0]]", ', "num_frames": 4294967297', "`num_frames`"),
        ("[[0, 0, 0]]", ', "temperature": -1', "`temperature` must be"),
        ("[[0, 0, 0]]", ', "speaker": 2', "`speaker` must be"),
        ("[[0, 0, 0]]", ', "row": -1', "`row` must be"),
        ("[[0, 0, 0]]", ', "other": 1', "`other`"),
    ],
)
def test_wrong_numbers_are_refused_with_field_and_rule_over_http(server, frames, more, words):
    number = "" if "num_frames" in more else ', "num_frames": 1'
    body = f'{{"instances": [{{"frames": {frames}{number}{more}}}]}}'
    status, _, content = server.asked("POST", PREDICT, body)
    assert status == 400
    assert words in json.loads(content)["error"]


ONE = np.zeros([1, 1, CHANNELS], np.float32)
INT = np.int32([1])


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ({"frames": ONE * np.nan}, "`frames` must be finite"),
        ({"frames": ONE + np.inf}, "`frames` must be finite"),
        ({"frames": ONE[:, :, :2]}, "`frames` must have the shape"),
        ({"frames": ONE[:, :0]}, "`frames`"),
        ({"frames": np.zeros([2, 1, CHANNELS], np.float32)}, "rows"),
        ({"frames": ONE, "num_frames": -INT}, "`num_frames` must be"),
        ({"frames": ONE, "num_frames": 2 * INT}, "at most the 1 of `frames`"),
        ({"frames": ONE, "temperature": np.float32([-1])}, "`temperature` must be"),
        ({"frames": ONE, "row": -INT}, "`row` must be"),
        ({"frames": splat(sides=(-1, 1, 3))}, "no negative side"),
        ({"frames": splat(sides=(1, 1, 3), float_val=[0.0] * 4)}, "at most 3"),
        ({"frames": ONE, "other": INT}, "`other` is not an input"),
    ],
)
def test_wrong_numbers_are_refused_with_field_and_rule_over_grpc(server, channel, inputs, words):
    request = predict_request(**{"num_frames": INT, **inputs})
    status, said = refused(channel, GRPC_PREDICT, request)
    assert status == "INVALID_ARGUMENT"
    assert words in said


NAMES = (
    *("..", "../hidden.txt", "..%2fhidden.txt", "%2e%2e/hidden.txt", "voice/../../hidden.txt"),
    *("voice%00", "%ff", "voice%2f1%2fmodel.json", ".", "C:%5chidden.txt", "a" * 3000, "nobody"),
)


@pytest.mark.parametrize(
    "place", ["/v1/models/", "/v2/models/", "/page/", "/v1/models/voice/versions/"]
)
def test_only_names_of_the_table_lead_anywhere(server, place):
    for name in NAMES:
        for end in ("", "/metadata", "/ready", "/model.json"):
            status, _, content = server.asked("GET", f"{place}{name}{end}")
            assert status == 404, name
            assert b"secret" not in content


@pytest.mark.parametrize("name", ["..", "../hidden.txt", "voice/1", "voice\0", "", "a" * 3000])
def test_only_names_of_the_table_lead_anywhere_over_grpc(channel, name):
    asked = [
        (GRPC_PREDICT, predict_request(name)),
        (GRPC_INFER, message("inference.ModelInferRequest")(model_name=name)),
        ("/grpc.health.v1.Health/Check", health_pb2.HealthCheckRequest(service=name)),
    ]
    for path, request in asked[: 3 if name else 2]:
        assert refused(channel, path, request)[0] in ("NOT_FOUND", "INVALID_ARGUMENT")


def test_nobody_can_have_a_model_loaded_or_taken_away(server, channel):
    for verb in ("load", "unload"):
        path = f"/v2/repository/models/voice/{verb}"
        assert (
            server.asked("POST", path, b'{"parameters": {"config": "gs://evil/model"}}')[0] == 404
        )
    empty = message("onepass.ListRequest")() if False else health_pb2.HealthCheckRequest()
    for path in (
        "/inference.GRPCInferenceService/RepositoryModelLoad",
        "/inference.GRPCInferenceService/RepositoryModelUnload",
        "/tensorflow.serving.ModelService/HandleReloadConfigRequest",
    ):
        assert refused(channel, path, empty)[0] == "UNIMPLEMENTED"
    assert server.asked("POST", INFER_PATH, INFER)[0] == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8501", "voice.localhost", ""])
def test_a_foreign_host_is_not_answered(server, host):
    status, _, content = server.asked("GET", "/v1/models", Host=host)
    assert status == (421 if host else 400)
    assert b"voice" not in content


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://localhost:1"])
def test_a_page_of_another_site_may_neither_ask_first_nor_send(server, origin):
    asked = {"Origin": origin, "Access-Control-Request-Method": "POST"}
    status, headers, _ = server.asked("OPTIONS", PREDICT, **asked)
    assert status == 405
    for _, headers, _ in (
        server.asked("OPTIONS", PREDICT, **asked),
        server.asked("GET", "/v1/models", Origin=origin),
    ):
        assert not [name for name in headers if name.lower().startswith("access-control")]
    assert server.asked("POST", PREDICT, b"{}", Origin=origin)[0] == 403


def test_a_failure_tells_nothing_of_its_reason_but_to_the_log(server, channel):
    frames = {"frames": [[0.0] * CHANNELS], "seed": 13}
    for path, body in (
        ("/v1/models/failing:predict", {"instances": [{**frames, "num_frames": 1}]}),
        ("/v1/models/failing:speak", frames),
    ):
        assert server.asked("POST", path, json.dumps(body))[0] == 500
    request = predict_request("failing", frames=ONE, num_frames=INT, seed=np.int64([13]))
    assert refused(channel, GRPC_PREDICT, request)[0] == "INTERNAL"
    with pytest.raises(grpc.RpcError) as caught:
        list(speak(channel, 8, name="failing", seed=13))
    assert caught.value.code() == grpc.StatusCode.INTERNAL
    discreet(caught.value.details())
    until(lambda: server.process.output().count("secret detail of the seed 13") >= 4)


def test_metrics_and_all_of_models_need_the_token_and_health_does_not(tmp_path):
    models = FakeModelStore(tmp_path / "models")
    models.add()
    environment = {"ONEPASS_TOKEN": TOKEN}
    with Command(models, environment=environment) as command, command.channel() as channel:
        paths = (METRICS, "/v1/models", "/v2", "/v2/health/ready", "/openapi.json", "/readyz")
        for given in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": TOKEN}):
            assert [command.asked("GET", path, **given)[0] for path in paths] == [401] * 6
            assert command.asked("POST", PREDICT, b"{}", **given)[0] == 401
        right = {"Authorization": f"Bearer {TOKEN}"}
        assert b"onepass_requests_total" in command.asked("GET", METRICS, **right)[2]
        assert refused(channel, GRPC_PREDICT, predict_request())[0] == "UNAUTHENTICATED"
        assert predict(channel, predict_request(), metadata=[("authorization", f"Bearer {TOKEN}")])
        assert command.asked("GET", "/healthz")[0] == 200
        check = health_pb2_grpc.HealthStub(channel).Check
        assert check(health_pb2.HealthCheckRequest(), timeout=10).status == 1
