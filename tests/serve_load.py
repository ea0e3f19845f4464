"""Clients of a `Command` that ask until they are stopped, and note how each request ended."""

import collections
import contextlib
import json
import threading
import time

import grpc
import numpy as np
from fake_bundle import CHANNELS, HOP

from serving.grpc.tensors import encode, message

FRAMES = 8
INFER = json.dumps(
    {
        "inputs": [
            {
                "name": "frames",
                "shape": [1, FRAMES, CHANNELS],
                "datatype": "FP32",
                "data": [0.5] * FRAMES * CHANNELS,
            },
            {"name": "num_frames", "shape": [1], "datatype": "INT32", "data": [FRAMES]},
        ]
    }
)
SOUND_FRAMES = 400
SPEAK = json.dumps({"frames": [[0.5] * CHANNELS] * SOUND_FRAMES, "format": "l16"})
GRPC_PREDICT = "/tensorflow.serving.PredictionService/Predict"
GRPC_SPEAK = "/onepass.Models/Speak"
BACK_SECONDS = 0.05  # sooner than a full server asks for, so that it stays full
ANSWERED, REFUSED, LEFT = "answered", "refused", "left"


class Client(threading.Thread):
    """Asks with `once` until stopped; a request that ends in no allowed way is a failure."""

    def __init__(self, command):
        super().__init__(daemon=True)
        self.command, self.stopped = command, threading.Event()
        self.ended, self.versions, self.failures = collections.Counter(), set(), []

    def run(self):
        while not self.stopped.is_set():
            try:
                way = self.once()
            except Exception as error:
                self.failures.append(repr(error)[:500])
                way = "failed"
            self.ended[way] += 1
            if way != ANSWERED:
                self.stopped.wait(BACK_SECONDS)
        self.close()

    def close(self):
        """Lets go of what it has open."""


class HttpClient(Client):
    """Predicts over HTTP; keeps its connection if `keep` is set."""

    def __init__(self, command, keeps=True, token=""):
        super().__init__(command)
        self._keeps, self._connection = keeps, command.connection()
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    def once(self):
        try:
            self._connection.request("POST", "/v2/models/voice/infer", INFER, self._headers)
            answer = self._connection.getresponse()
            content = json.loads(answer.read())
        except BaseException:
            self._connection.close()
            raise
        if not self._keeps:
            self._connection.close()
        if answer.status == 503:
            return refused_until(answer.headers["Retry-After"])
        assert answer.status == 200, content
        sizes = {output["name"]: output["shape"] for output in content["outputs"]}
        assert sizes["sound"] == [1, FRAMES * HOP]
        self.versions.add(int(content["model_version"]))
        return ANSWERED

    def close(self):
        self._connection.close()


class HttpListener(Client):
    """Hears sounds over HTTP, to the end or, if it is `hasty`, the beginning only."""

    def __init__(self, command, hasty=False):
        super().__init__(command)
        self._hasty = hasty

    def once(self):
        with contextlib.closing(self.command.connection()) as connection:
            connection.request("POST", "/v1/models/voice:speak", SPEAK)
            answer = connection.getresponse()
            if answer.status == 503:
                return refused_until(answer.headers["Retry-After"])
            assert answer.status == 200, answer.read()
            if self._hasty:
                assert answer.read(2)
                return LEFT
            assert len(answer.read()) == 2 * SOUND_FRAMES * HOP
            return ANSWERED


class GrpcClient(Client):
    """Predicts over gRPC, on a connection of its own."""

    def __init__(self, command, token=""):
        super().__init__(command)
        self._channel = command.channel()
        self._metadata = [("authorization", f"Bearer {token}")] if token else None

    def once(self):
        try:
            answer = predict(self._channel, predict_request(), metadata=self._metadata)
        except grpc.RpcError as error:
            return refused_until(back_seconds(error))
        assert answer.outputs["sound"].tensor_shape.dim[1].size == FRAMES * HOP
        self.versions.add(answer.model_spec.version.value)
        return ANSWERED

    def close(self):
        self._channel.close()


class GrpcListener(Client):
    """Hears sounds over gRPC, to the end or, if it is `hasty`, the beginning only."""

    def __init__(self, command, hasty=False):
        super().__init__(command)
        self._channel, self._hasty = command.channel(), hasty

    def once(self):
        call, count = speak(self._channel), 0
        try:
            for chunk in call:
                count += len(chunk.samples) // 4
                if self._hasty:
                    call.cancel()
                    return LEFT
        except grpc.RpcError as error:
            return refused_until(back_seconds(error))
        assert count == SOUND_FRAMES * HOP
        return ANSWERED

    def close(self):
        self._channel.close()


def tensor(array):
    made = message("tensorflow.TensorProto")()
    encode(np.asarray(array), made)
    return made


def predict_request(name="voice", **inputs):
    request = message("tensorflow.serving.PredictRequest")()
    request.model_spec.name = name
    inputs = inputs or {"frames": np.full([1, FRAMES, CHANNELS], 0.5, np.float32)}
    inputs.setdefault("num_frames", np.array([FRAMES], np.int32))
    for key, value in inputs.items():
        made = tensor(value) if isinstance(value, np.ndarray) else value
        request.inputs[key].CopyFrom(made)
    return request


def method(channel, path, kind="unary_unary", answer=None):
    read = message(answer).FromString if answer else None
    return getattr(channel, kind)(path, lambda made: made.SerializeToString(), read)


def predict(channel, request, timeout=20, **options):
    asked = method(channel, GRPC_PREDICT, answer="tensorflow.serving.PredictResponse")
    return asked(request, timeout=timeout, **options)


def speak(channel, count=SOUND_FRAMES, timeout=20, name="voice", **options):
    """The call whose chunks are the sound of so many frames."""
    request = message("onepass.SpeakRequest")(**options)
    request.model_spec.name = name
    if not request.HasField("frames"):
        request.frames.CopyFrom(tensor(np.full([count, CHANNELS], 0.5, np.float32)))
    asked = method(channel, GRPC_SPEAK, "unary_stream", "onepass.SpeakResponse")
    return asked(request, timeout=timeout)


def back_seconds(error):
    """Return the seconds after which a refused call may be tried again; raise other errors."""
    if error.code() != grpc.StatusCode.UNAVAILABLE:
        raise error
    trailers = dict(error.trailing_metadata() or ())
    assert "retry-after" in trailers, error
    return trailers["retry-after"]


def refused_until(seconds):
    """Notes a refusal that says when to come again."""
    assert int(seconds) >= 1
    return REFUSED


@contextlib.contextmanager
def at_work(clients):
    """The clients ask meanwhile; afterwards none of them has failed or hangs."""
    for client in clients:
        client.start()
    try:
        yield clients
    finally:
        for client in clients:
            client.stopped.set()
        for client in clients:
            client.join(30)
    assert [failure for client in clients for failure in client.failures] == []
    assert not any(client.is_alive() for client in clients)


def totals(clients):
    return sum((client.ended for client in clients), collections.Counter())


def until(condition, seconds=10):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came to be"
        time.sleep(0.01)
