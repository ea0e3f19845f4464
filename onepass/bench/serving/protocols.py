"""Ways to ask a server for a call, each on a connection of its own, as light as Python has them.

A way makes a request of arrays, sends it, and makes arrays of the answer; the three are apart, so
that a generator of load need only send.
"""

import contextlib
import http.client
import json
import socket
from collections.abc import Iterator
from typing import Any, Protocol

import grpc
import numpy as np
import orjson

from serving.bundles.dtypes import V2_DTYPES, V2_NAMES
from serving.bundles.signature import COMPILED, Arrays
from serving.grpc.messages import message
from serving.grpc.tensors import decode, encode
from serving.http.binary_tensors import HEADER

GRPC, V2, V2_JSON, TF_JSON = "gRPC Predict", "v2 binary", "v2 JSON", "TF Serving JSON"
HTTP_SPEAK, HTTP_WAV, GRPC_SPEAK = "HTTP :speak", "HTTP, WAV in", "gRPC Speak"
HTTP_TEXT, TEXT = "HTTP, text in", "The quick brown fox jumps over the lazy dog."
LIMIT_SECONDS = 120.0
LARGEST_BYTES = 2**30
OPTIONS = (("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1))


class Way(Protocol):
    """A connection to a model by one protocol."""

    def request(self, inputs: Arrays) -> bytes:
        """What is sent to call the compiled signature."""

    def ask(self, request: bytes) -> Any:
        """The answer as it comes, once it is whole; RuntimeError if it is a refusal."""

    def outputs(self, answer: Any) -> Arrays:
        """The arrays of an answer."""

    def close(self) -> None:
        """Lets the connection go."""


class GrpcPredict:
    """TensorFlow Serving's Predict, tensors as bytes."""

    def __init__(self, address: str, model: str, token: str = ""):
        self._model = model
        self._channel = grpc.insecure_channel(address, OPTIONS)
        self._ask = self._channel.unary_unary("/tensorflow.serving.PredictionService/Predict")
        self._metadata = (("authorization", f"Bearer {token}"),) if token else ()

    def request(self, inputs: Arrays) -> bytes:
        """A PredictRequest."""
        made = message("tensorflow.serving.PredictRequest")()
        made.model_spec.name, made.model_spec.signature_name = self._model, COMPILED
        for name, value in inputs.items():
            encode(value, made.inputs[name])
        return made.SerializeToString()

    def ask(self, request: bytes) -> bytes:
        """The bytes of a PredictResponse."""
        try:
            return self._ask(request, timeout=LIMIT_SECONDS, metadata=self._metadata)
        except grpc.RpcError as error:
            raise RuntimeError(f"{error.code().name}: {error.details()}") from None

    def outputs(self, answer: bytes) -> Arrays:
        """Of a PredictResponse."""
        response = message("tensorflow.serving.PredictResponse").FromString(answer)
        return {
            name: decode(proto, name, LARGEST_BYTES) for name, proto in response.outputs.items()
        }

    def close(self) -> None:
        """Lets the connection go."""
        self._channel.close()


class _Http:
    """One connection of HTTP/1.1 that is kept; an answer is its header of v2 and its body."""

    def __init__(self, address: str, model: str, token: str = ""):
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host.strip("[]"), int(port)), LIMIT_SECONDS)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._file = self._socket.makefile("rb")
        self._host, self._model = address, model
        self._authorization = f"Authorization: Bearer {token}\r\n" if token else ""

    def _message(self, path: str, body: bytes, headers: str = "") -> bytes:
        head = (
            f"POST {path} HTTP/1.1\r\nHost: {self._host}\r\nContent-Length: {len(body)}\r\n"
            f"{self._authorization}{headers}\r\n"
        )
        return head.encode() + body

    def ask(self, request: bytes) -> tuple[int | None, bytes]:
        """Bytes of JSON at the head of the body, None where all of it is; the body."""
        self._socket.sendall(request)
        status = self._file.readline()
        length, json_bytes = 0, None
        while (line := self._file.readline()).strip():
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
            elif name.lower() == HEADER.encode():
                json_bytes = int(value)
        body = self._file.read(length)
        if status.split(b" ")[1:2] != [b"200"]:
            raise RuntimeError(f"{status.decode().strip()}: {body[:200].decode(errors='replace')}")
        return json_bytes, body

    def close(self) -> None:
        """Lets the connection go."""
        self._file.close()
        self._socket.close()


class V2Binary(_Http):
    """Version 2 of inference, tensors as bytes behind the JSON both ways."""

    def request(self, inputs: Arrays) -> bytes:
        """The message over HTTP."""
        described = [
            {**_described(name, value), "parameters": {"binary_data_size": value.nbytes}}
            for name, value in inputs.items()
        ]
        parameters = {"signature_name": COMPILED, "binary_data_output": True}
        head = orjson.dumps({"inputs": described, "parameters": parameters})
        body = b"".join([head, *(value.tobytes() for value in inputs.values())])
        return self._message(f"/v2/models/{self._model}/infer", body, f"{HEADER}: {len(head)}\r\n")

    def outputs(self, answer: tuple[int | None, bytes]) -> Arrays:
        """Views of the body."""
        place, body = answer
        arrays = {}
        for tensor in orjson.loads(body[:place])["outputs"]:
            size = tensor["parameters"]["binary_data_size"]
            flat = np.frombuffer(body[place : (place or 0) + size], V2_DTYPES[tensor["datatype"]])
            arrays[tensor["name"]] = flat.reshape(tensor["shape"])
            place = (place or 0) + size
        return arrays


class V2Json(_Http):
    """Version 2 of inference, all of it JSON."""

    def request(self, inputs: Arrays) -> bytes:
        """The message over HTTP."""
        described = [
            {**_described(name, value), "data": value.ravel()} for name, value in inputs.items()
        ]
        content = {"inputs": described, "parameters": {"signature_name": COMPILED}}
        body = orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)
        return self._message(f"/v2/models/{self._model}/infer", body)

    def outputs(self, answer: tuple[int | None, bytes]) -> Arrays:
        """Arrays of the types that the answer names."""
        return {
            tensor["name"]: np.array(tensor["data"], V2_DTYPES[tensor["datatype"]]).reshape(
                tensor["shape"]
            )
            for tensor in orjson.loads(answer[1])["outputs"]
        }


class TensorFlowJson(_Http):
    """TensorFlow Serving's REST, row by row."""

    def request(self, inputs: Arrays) -> bytes:
        """The message over HTTP."""
        rows = [dict(zip(inputs, row, strict=True)) for row in zip(*inputs.values(), strict=True)]
        content = {"signature_name": COMPILED, "instances": rows}
        body = orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)
        return self._message(f"/v1/models/{self._model}:predict", body)

    def outputs(self, answer: tuple[int | None, bytes]) -> Arrays:
        """Arrays of whatever types the numbers are; "" names the output of a model with one."""
        rows = orjson.loads(answer[1])["predictions"]
        if not isinstance(rows[0], dict):
            return {"": np.array(rows)}
        return {name: np.array([row[name] for row in rows]) for name in rows[0]}


WAYS: dict[str, Any] = {GRPC: GrpcPredict, V2: V2Binary, TF_JSON: TensorFlowJson, V2_JSON: V2Json}


def spoken(
    way: str, http_address: str, grpc_address: str, model: str, frames: np.ndarray, wav: bytes
) -> Iterator[bytes]:
    """A sound as it comes: of frames float32 [frames, channels], of a recording, or of TEXT.

    Nothing but sending is left to be done when the first part is asked for.
    """
    if way == GRPC_SPEAK:
        return _spoken_by_grpc(grpc_address, model, frames)
    if way == HTTP_WAV:
        return _spoken_by_http(
            http_address, f"/v1/models/{model}:speak?format=l16", wav, "audio/wav"
        )
    said = {"text": TEXT} if way == HTTP_TEXT else {"frames": frames.tolist()}
    body = json.dumps({**said, "format": "l16"}).encode()
    return _spoken_by_http(http_address, f"/v1/models/{model}:speak", body, "application/json")


def _spoken_by_http(address: str, path: str, body: bytes, kind: str) -> Iterator[bytes]:
    connection = http.client.HTTPConnection(address, timeout=LIMIT_SECONDS)
    connection.connect()

    def parts() -> Iterator[bytes]:
        with contextlib.closing(connection):
            connection.request("POST", path, body, {"Content-Type": kind})
            answer = connection.getresponse()
            if answer.status != http.client.OK:
                words = answer.read()[:200].decode(errors="replace")
                raise RuntimeError(f"{answer.status}: {words}")
            while part := answer.read1():
                yield part

    return parts()


def _spoken_by_grpc(address: str, model: str, frames: np.ndarray) -> Iterator[bytes]:
    channel = grpc.insecure_channel(address, OPTIONS)
    grpc.channel_ready_future(channel).result(LIMIT_SECONDS)
    ask = channel.unary_stream(
        "/onepass.Models/Speak",
        response_deserializer=message("onepass.SpeakResponse").FromString,
    )
    made = message("onepass.SpeakRequest")()
    made.model_spec.name = model
    encode(frames, made.frames)
    request = made.SerializeToString()

    def parts() -> Iterator[bytes]:
        with channel:
            for part in ask(request, timeout=LIMIT_SECONDS):
                yield part.samples

    return parts()


def _described(name: str, value: np.ndarray) -> dict[str, Any]:
    return {"name": name, "datatype": V2_NAMES[value.dtype], "shape": value.shape}
