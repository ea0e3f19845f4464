"""Clients that others wrote, at a running `onepass serve`: the browser has test_page.py."""

import base64
import io
import json
import shutil
import subprocess

import grpc
import numpy as np
import pytest
import soundfile
from fake_bundle import CHANNELS, HOP, RATE, FakeImages, FakeModelStore, FakeSound
from grpc_health.v1 import health_pb2, health_pb2_grpc
from PIL import Image
from serve_command import Command

TOKEN = "a token of enough letters"
BEARER = f"Bearer {TOKEN}"
METADATA = [("authorization", BEARER)]
FRAMES = np.random.default_rng(0).normal(size=[1, 6, CHANNELS]).astype(np.float32)
COUNT = np.int32([6])


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """`voice` and `shapes`, behind a token."""
    models = FakeModelStore(tmp_path_factory.mktemp("stock") / "models")
    models.add("voice")
    models.add("shapes", kind=FakeImages)
    with Command(models, environment={"ONEPASS_TOKEN": TOKEN}) as command:
        yield command


@pytest.fixture(scope="module")
def channel(server):
    with server.channel() as channel:
        yield channel


def sound(seed):
    return FakeSound().generate(FRAMES[0], seed=seed)


def test_tensorflow_servings_stubs(channel):
    tf = pytest.importorskip("tensorflow")
    pytest.importorskip("tensorflow_serving.apis")
    from tensorflow_serving.apis import (
        get_model_status_pb2,
        model_service_pb2_grpc,
        predict_pb2,
        prediction_service_pb2_grpc,
    )

    request = predict_pb2.PredictRequest()
    request.model_spec.name = "voice"
    for name, value in {"frames": FRAMES, "num_frames": COUNT, "seed": np.int64([3])}.items():
        request.inputs[name].CopyFrom(tf.make_tensor_proto(value))
    stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
    answer = stub.Predict(request, timeout=20, metadata=METADATA)
    assert np.array_equal(tf.make_ndarray(answer.outputs["sound"]), sound(3))
    asked = get_model_status_pb2.GetModelStatusRequest()
    asked.model_spec.name = "voice"
    status = model_service_pb2_grpc.ModelServiceStub(channel).GetModelStatus(
        asked, timeout=20, metadata=METADATA
    )
    assert [(said.version, said.state) for said in status.model_version_status] == [(1, 30)]


def curl(server, path, *words):
    if shutil.which("curl") is None:
        pytest.skip("needs curl")
    address = f"http://127.0.0.1:{server.port}{path}"
    command = ["curl", "-sSf", "-m", "20", "-H", f"Authorization: {BEARER}", *words, address]
    return subprocess.run(command, capture_output=True, timeout=30, check=True).stdout


def test_curl_predicts(server):
    body = json.dumps({"instances": [{"label": 2}, {"label": 3}]})
    predictions = json.loads(curl(server, "/v1/models/shapes:predict", "-d", body))["predictions"]
    assert [np.unique(row["picture"]).tolist() for row in predictions] == [[40], [60]]


def test_curl_hears_a_stream(server):
    body = json.dumps({"frames": FRAMES[0].tolist(), "seed": 3})
    heard = curl(server, "/v1/models/voice:speak", "-N", "-d", body)
    samples, rate_hz = soundfile.read(io.BytesIO(heard))
    assert rate_hz == RATE and len(samples) == 6 * HOP
    assert np.abs(samples - sound(3)[0]).max() < 2 / 32768  # which reads a step as s / 32768


def test_tritons_client(server):
    http = pytest.importorskip("tritonclient.http")
    client = http.InferenceServerClient(f"127.0.0.1:{server.port}")
    headers = {"Authorization": BEARER}
    assert client.is_server_ready(headers=headers)
    assert client.is_model_ready("voice", headers=headers)
    inputs = []
    for name, kind, value in (("frames", "FP32", FRAMES), ("num_frames", "INT32", COUNT)):
        inputs.append(http.InferInput(name, list(value.shape), kind))
        inputs[-1].set_data_from_numpy(value, binary_data=True)
    wanted = [http.InferRequestedOutput("sound", binary_data=True)]
    answer = client.infer("voice", inputs, outputs=wanted, headers=headers)
    assert np.array_equal(answer.as_numpy("sound"), sound(0))
    client.close()


def test_openais_package(server):
    openai = pytest.importorskip("openai")
    address = f"http://127.0.0.1:{server.port}/v1"
    with openai.OpenAI(base_url=address, api_key=TOKEN, max_retries=0) as client:
        assert {model.id for model in client.models.list()} == {"voice", "shapes"}
        drawn = client.images.generate(model="shapes", prompt="class 3", extra_body={"seed": 0})
        image = Image.open(io.BytesIO(base64.b64decode(drawn.data[0].b64_json)))
        assert np.unique(np.asarray(image)).tolist() == [60]


def test_a_health_probe_without_a_token(channel):
    stub = health_pb2_grpc.HealthStub(channel)
    for service in ("", "tensorflow.serving.PredictionService", "voice"):
        answer = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=20)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
    with pytest.raises(grpc.RpcError) as caught:
        stub.Check(health_pb2.HealthCheckRequest(service="nobody"), timeout=20)
    assert caught.value.code() == grpc.StatusCode.NOT_FOUND
