"""One request over every protocol: the same answer, or the same error in the protocol's own way."""

import contextlib
import functools
import json
import re
import threading
from concurrent.futures import ThreadPoolExecutor

import grpc
import httpx
import numpy as np
import pytest
from fake_bundle import FakeSound
from grpc_running import Both, frames, is_discreet
from http_running import HERE, store
from serve_load import (
    GRPC_PREDICT,
    infer,
    infer_request,
    method,
    predict,
    predict_request,
    until,
)

from onepass.bundles import errors
from onepass.bundles.signature import V2_NAMES
from serving import Client
from serving.client.calls import ClientError
from serving.grpc.tensors import decode

TOKENS = ("a token of sixteen characters", "another one of these")
CODES = {errors.HTTP_CODES[error.http_status]: error.grpc_status for error in errors._COMMON}
CODES["internal"] = "INTERNAL"
STATUSES = {status: CODES[code] for status, code in errors.HTTP_CODES.items() if code in CODES}
STATUSES[500] = "INTERNAL"
DTYPES = {name: dtype for dtype, name in V2_NAMES.items()}


class Refused(Exception):  # noqa: N818 - an answer
    """What a request was refused with: gRPC's name of the status, and the words."""

    def __init__(self, status, words, retry_after=None):
        super().__init__(f"{status}: {words}")
        self.status, self.words, self.retry_after = status, words, retry_after
        assert is_discreet(words)


def post(running, path, token=TOKENS[0], **sent):
    """The answer over HTTP."""
    headers = {"authorization": f"Bearer {token}", **sent.pop("headers", {})}
    with httpx.Client(base_url=running.url, timeout=30, **HERE) as client:
        answer = client.post(path, headers=headers, **sent)
    if answer.status_code == 200:
        return answer
    error = answer.json()["error"]
    words = error["message"] if isinstance(error, dict) else error
    raise Refused(STATUSES[answer.status_code], words, answer.headers.get("retry-after"))


def place_of(name, version):
    return name + (f"/versions/{version}" if version else "")


def by_rest(running, inputs, name, version, signature, token, is_by_rows=False):
    """TensorFlow Serving's REST, by columns or by rows."""
    given = {key: value.tolist() for key, value in inputs.items()}
    body = {"signature_name": signature} if signature else {}
    if is_by_rows:
        rows = zip(*given.values(), strict=False)
        body["instances"] = [dict(zip(given, row, strict=True)) for row in rows]
    else:
        body["inputs"] = given
    path = f"/v1/models/{place_of(name, version)}:predict"
    found = post(running, path, token, content=json.dumps(body)).json()
    if is_by_rows:
        rows = found["predictions"]
        return {key: np.array([row[key] for row in rows]) for key in rows[0]}
    return {key: np.array(value) for key, value in found["outputs"].items()}


def by_v2(running, inputs, name, version, signature, token, seconds=None, binary=()):
    """Those of the inputs that are `binary`, and the outputs, go as bytes behind the JSON."""
    tensors, tail = [], b""
    for key, value in inputs.items():
        tensor = {"name": key, "shape": value.shape, "datatype": V2_NAMES[value.dtype]}
        more = {"parameters": {"binary_data_size": value.nbytes}}
        tensors.append(tensor | (more if key in binary else {"data": value.tolist()}))
        tail += value.tobytes() if key in binary else b""
    options = {"signature_name": signature or None, "binary_data_output": "outputs" in binary}
    options |= {"timeout": seconds * 1e6} if seconds else {}
    head = json.dumps({"inputs": tensors, "parameters": options, "id": "mine"}).encode()
    length = {"inference-header-content-length": str(len(head))}
    path = f"/v2/models/{place_of(name, version)}/infer"
    found = post(running, path, token, content=head + tail, headers=length)
    size = int(found.headers.get("inference-header-content-length", len(found.content)))
    said, rest, made = json.loads(found.content[:size]), found.content[size:], {}
    assert (said["model_name"], said["model_version"], said["id"]) == (name, "1", "mine")
    for tensor in said["outputs"]:
        dtype, count = DTYPES[tensor["datatype"]], tensor.get("parameters", {})
        count = count.get("binary_data_size", 0)
        values = np.frombuffer(rest[:count], dtype) if count else np.array(tensor["data"], dtype)
        made[tensor["name"]], rest = values.reshape(tensor["shape"]), rest[count:]
    assert not rest
    return made


@contextlib.contextmanager
def called(running, token=TOKENS[0]):
    """A channel, and the metadata of a call with it."""
    try:
        with running.channel() as channel:
            yield channel, (("authorization", f"Bearer {token}"),)
    except grpc.RpcError as error:
        after = dict(error.trailing_metadata() or ()).get("retry-after")
        raise Refused(error.code().name, error.details(), after) from None


def by_grpc(running, inputs, name, version, signature, token, seconds=20):
    request = predict_request(name, **inputs)
    request.model_spec.signature_name = signature
    if version:
        request.model_spec.version.value = version
    with called(running, token) as (channel, metadata):
        answer = predict(channel, request, seconds, metadata=metadata)
    spec = answer.model_spec
    assert (spec.name, spec.version.value) == (name, 1)
    assert spec.signature_name == (signature or "serving_default")
    return {key: decode(value, key, 2**20) for key, value in answer.outputs.items()}


def by_grpc_v2(running, inputs, name, version, signature, token, seconds=20):
    request = infer_request(name, **inputs)
    request.model_version = str(version or "")
    if signature:
        request.parameters["signature_name"].string_param = signature
    with called(running, token) as (channel, metadata):
        answer = infer(channel, request, seconds, metadata=metadata)
    assert (answer.model_name, answer.model_version, answer.id) == (name, "1", "mine")
    return {
        tensor.name: np.frombuffer(raw, DTYPES[tensor.datatype]).reshape(tensor.shape)
        for tensor, raw in zip(answer.outputs, answer.raw_output_contents, strict=True)
    }


def by_client(running, inputs, name, version, signature, token, seconds=20, scheme="http"):
    url = running.url if scheme == "http" else f"grpc://{running.address}"
    try:
        with Client(url, token=token, retries=0, timeout_seconds=seconds) as client:
            return client.predict(name, inputs, signature or "serving_default", version)
    except ClientError as error:
        assert "\n" not in str(error)
        raise Refused(CODES[error.code], str(error)) from None


NAMED = ("frames", "num_frames", "seed", "outputs", "row", "temperature", "speaker")
PROTOCOLS = {
    "rows": functools.partial(by_rest, is_by_rows=True),
    "columns": by_rest,
    "v2": by_v2,
    "v2, bytes": functools.partial(by_v2, binary=NAMED),
    "v2, mixed": functools.partial(by_v2, binary=NAMED[::2]),
    "grpc": by_grpc,
    "grpc, v2": by_grpc_v2,
    "client": by_client,
    "client, grpc": functools.partial(by_client, scheme="grpc"),
}
WITH_DEADLINES = [name for name in PROTOCOLS if name not in ("rows", "columns")]


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    models = store(tmp_path_factory.mktemp("models"))
    models.add("late", load_fails=True)
    tokens = models.root / "tokens"
    tokens.write_text("\n".join(TOKENS))
    with Both(models, token_file=tokens, queue_rows=3) as running:
        yield running


@pytest.fixture
def control(running):
    """The control of the voice, which is as it was afterwards."""
    control = running.store.controls["voice", 1]
    control.calls.clear()
    control.entered.clear()
    yield control
    control.open.set()
    control.fails_on = None
    until(lambda: not running.registry.is_busy)


def sounds(rows=1, seed=3, **changes):
    counts = np.array([5, 2, 4][:rows], np.int32)
    given = {"frames": frames(rows), "num_frames": counts, "seed": seed + np.arange(rows)}
    return {**given, **changes}


def ask(running, protocol, inputs=None, name="voice", version=None, signature="", **rest):
    given = (sounds() if inputs is None else inputs), name, version, signature
    return PROTOCOLS[protocol](running, *given, rest.pop("token", TOKENS[0]), **rest)


def refused(function, *given, **rest):
    with pytest.raises(Refused) as caught:
        function(*given, **rest)
    return caught.value


@pytest.mark.parametrize("signature", ["", "compiled"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_sound_is_the_bundles_over_every_protocol(running, control, protocol, signature):
    row, speaker = np.array([0, 0, 9], np.int32), np.array([1, 0, 1], np.int32)
    temperature = np.array([1.0, 0.5, 0.0], np.float32)
    inputs = sounds(3, row=row, temperature=temperature, speaker=speaker)
    expected = FakeSound().call("compiled", inputs)
    for version in (None, 1):
        found = ask(running, protocol, inputs, version=version, signature=signature)
        assert found.keys() == expected.keys() and found["num_samples"].tolist() == [20, 8, 16]
        np.testing.assert_allclose(found["sound"], expected["sound"], rtol=1e-6)
    assert {call[0] for call in control.calls} == {signature or "serving_default"}


def made_of(name, *values, dtype=np.int32):
    return {"inputs": sounds(**{name: np.array(values, dtype)})}


FIVE = {key: np.concatenate([rows, rows[:2]]) for key, rows in sounds(3).items()}
INFINITE, ONE = np.full([5, 3], np.inf), np.ones(1, np.int32)
WRONG = [
    ({"name": "nobody"}, "NOT_FOUND", "no model `nobody`"),
    ({"version": 7}, "NOT_FOUND", "no version 7"),
    ({"name": "late"}, "UNAVAILABLE", "`late` cannot be loaded"),
    ({"signature": "other"}, "INVALID_ARGUMENT", "no signature `other`; there are serving_default"),
    (made_of("frames", INFINITE, dtype=np.float32), "INVALID_ARGUMENT", "be finite|must be JSON"),
    (made_of("frames", [[1, 2]], dtype=np.float32), "INVALID_ARGUMENT", "`frames` must have"),
    (made_of("num_frames", -1), "INVALID_ARGUMENT", "`num_frames` must be"),
    (made_of("num_frames", 2**31 - 1), "INVALID_ARGUMENT", "`num_frames` must be"),
    (made_of("temperature", -1, dtype=np.float32), "INVALID_ARGUMENT", "`temperature` must be"),
    (made_of("more", 1), "INVALID_ARGUMENT", "`more` is not an input; there are frames"),
    ({"inputs": {"num_frames": ONE}}, "INVALID_ARGUMENT", "`frames` must be given"),
    ({"inputs": FIVE}, "RESOURCE_EXHAUSTED", "at most 3 rows, got 5"),
    ({"token": "a wrong one, also long"}, "UNAUTHENTICATED", "token"),
    ({"token": TOKENS[0][:-1]}, "UNAUTHENTICATED", "token"),
]


@pytest.mark.parametrize(("asked", "status", "words"), WRONG)
def test_what_breaks_a_rule_is_refused_in_the_same_words(running, control, asked, status, words):
    for protocol in PROTOCOLS:
        caught = refused(ask, running, protocol, **asked)
        assert caught.status == status and re.search(words, caught.words), (protocol, caught)
        if status == "UNAVAILABLE" and "client" not in protocol:
            assert caught.retry_after == "1"
    assert control.calls == []


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_failure_of_the_model_tells_nothing_and_is_in_the_log(running, control, protocol, caplog):
    control.fails_on = 13
    caught = refused(ask, running, protocol, sounds(seed=13))
    assert (caught.status, caught.words) == ("INTERNAL", "The model failed; see the server's log.")
    assert "secret detail of the seed 13" in caplog.text


ROUTES = {
    "/v1/models/shapes:draw": {"class": 1, "seed": 13},
    "/v1/images/generations": {"prompt": "1", "model": "shapes", "seed": 13},
    "/v1/models/voice:speak": {"frames": [[0.0] * 3] * 8, "seed": 13},
}


@pytest.mark.parametrize("path", ROUTES)
def test_so_is_one_at_the_other_routes(running, control, path, caplog, monkeypatch):
    control.fails_on = 13
    monkeypatch.setattr(running.store.controls["shapes", 1], "fails_on", 13)
    assert refused(post, running, path, json=ROUTES[path]).status == "INTERNAL"
    assert "secret detail" in caplog.text


def queued(running):
    return running.metrics.registry.get_sample_value("onepass_queue_rows", {"model": "voice"})


@pytest.mark.parametrize("protocol", ["rows", "v2, bytes", "grpc", "grpc, v2", "client"])
def test_a_full_queue_says_when_to_come_again(running, control, protocol):
    control.open.clear()
    with ThreadPoolExecutor(2) as pool:
        held = pool.submit(ask, running, protocol)
        until(control.entered.is_set)
        waits = pool.submit(ask, running, protocol, sounds(3))
        until(lambda: queued(running) == 3)
        caught = refused(ask, running, protocol)
        assert (caught.status, caught.words) == ("UNAVAILABLE", "The queue is full: 3 rows wait.")
        assert protocol == "client" or caught.retry_after == "1"
        control.open.set()
        assert held.result(20).keys() == waits.result(20).keys()


@pytest.mark.parametrize("protocol", WITH_DEADLINES)
def test_the_deadline_of_a_client_is_kept(running, control, protocol):
    control.open.clear()
    assert refused(ask, running, protocol, seconds=0.2).status == "DEADLINE_EXCEEDED"


@pytest.mark.parametrize("protocol", ["rows", "v2", "grpc", "grpc, v2"])
def test_no_client_has_more_time_than_the_server_gives(models, protocol):
    control, more = models.controls["voice", 1], {} if protocol == "rows" else {"seconds": 100}
    control.open.clear()
    with Both(models, timeout_seconds=0.2) as running:
        assert refused(ask, running, protocol, **more).status == "DEADLINE_EXCEEDED"
        control.open.set()


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_client_that_leaves_takes_its_waiting_rows_with_it(running, control, protocol):
    control.open.clear()
    held = threading.Thread(target=ask, args=(running, "columns", sounds(seed=1)))
    held.start()
    until(control.entered.is_set)
    before = running.counted("cancelled")
    if protocol == "http":
        body = json.dumps({"inputs": {key: x.tolist() for key, x in sounds(seed=2).items()}})
        head = "POST /v1/models/voice:predict HTTP/1.1\r\nHost: localhost\r\n"
        head += f"Authorization: Bearer {TOKENS[0]}\r\nContent-Length: {len(body)}\r\n\r\n"
        with running.connection() as connection:
            connection.sendall((head + body).encode())
            until(lambda: queued(running) == 1)
    else:
        with called(running) as (channel, metadata):
            later = method(channel, GRPC_PREDICT).future
            asked = later(predict_request(**sounds(seed=2)), timeout=20, metadata=metadata)
            until(lambda: queued(running) == 1)
            asked.cancel()
    until(lambda: running.counted("cancelled") == before + 1 and queued(running) == 0)
    control.open.set()
    held.join(20)
    ask(running, "columns", sounds(seed=3))
    assert [call[3] for call in control.calls] == [[1], [3]]
