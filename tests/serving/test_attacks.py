"""Attacks, sent to a running `onepass serve` over real sockets.

What uvicorn, h11 and gRPC repel is in test_connections.py, what the proxy in front repels
in test_deployment_files.py, what needs no process in test_http.py, test_fields.py, test_grpc.py.
"""

import base64
import io
import json
import pickle

import grpc
import numpy as np
import pytest
import soundfile
from fake_bundle import FakeImages, FakeModelStore
from PIL import Image
from serve_command import Command, is_discreet
from serve_load import (
    GRPC_INFER,
    GRPC_PREDICT,
    GRPC_SPEAK,
    method,
    predict_request,
    speak_request,
)

from serving.grpc.tensors import message

pytestmark = pytest.mark.integration

PREDICT = "/v1/models/voice:predict"
DRAW = "/v1/models/shapes:draw"
SPEAK = "/v1/models/voice:speak"
FAR_BEHIND = {"binary_data_size": 4_800_000_000}
INFER_PATH = "/v2/models/voice/infer"
GROWTH_MIB = 48  # that attacks may cost: a few bodies of the largest size


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """`voice` and `shapes`."""
    models = FakeModelStore(tmp_path_factory.mktemp("attacks") / "models")
    models.add("voice")
    models.add("shapes", kind=FakeImages)
    with Command(models) as command:
        yield command


@pytest.fixture(scope="module")
def channel(server):
    with server.channel() as channel:
        yield channel


def splat(*sides):
    """A message of a few bytes that stands for gigabytes."""
    made = message("tensorflow.TensorProto")(dtype=1, float_val=[1.0])
    for side in sides:
        made.tensor_shape.dim.add(size=side)
    assert len(made.SerializeToString()) < 300
    return made


def flat_infer(sides):
    request = message("inference.ModelInferRequest")(model_name="voice")
    added = request.inputs.add(name="frames", datatype="FP32", shape=sides)
    added.contents.fp32_contents.append(1.0)
    return request


SIDES = ([400_000_000], [1, 12_000, 40_000], [2**62, 2**62], [0, 2**62], [2] * 60)
HUGE = [
    *((GRPC_PREDICT, predict_request(frames=splat(*sides))) for sides in SIDES),
    (GRPC_INFER, flat_infer([400_000_000, 1, 1])),
    (GRPC_INFER, flat_infer([2**40, 2**40, 2**40])),
    (GRPC_SPEAK, speak_request(frames=splat(130_000_000, 3))),
]


def test_messages_of_a_few_bytes_cost_no_memory_over_grpc(server, channel):
    before = server.memory_mib()
    for path, request in HUGE * 3:
        kind = "unary_stream" if path == GRPC_SPEAK else "unary_unary"
        with pytest.raises(grpc.RpcError) as caught:
            list(method(channel, path, kind)(request, timeout=10))
        assert caught.value.code().name in ("INVALID_ARGUMENT", "RESOURCE_EXHAUSTED")
        assert is_discreet(caught.value.details())
    assert server.memory_mib("VmHWM") - before < GROWTH_MIB


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
        (INFER_PATH, infer_body([400_000_000, 1, 3], parameters=FAR_BEHIND), {}),
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
