"""Errors over HTTP: worded as each protocol words them, and never with anything of the insides."""

import asyncio
import contextlib
import http.client
import json

import numpy as np
import pytest
from http_running import ask, settings_of

from onepass.bundles.errors import Cancelled, DeadlineExceeded, NotReady
from onepass.bundles.manifest import VERSION_RULE
from serving.engine.registry import ModelRegistry
from serving.http.app import make_app
from serving.http.routes import StreamedResponse
from serving.observability import Metrics

PREDICT = "/v1/models/shapes:predict"
SECRET = "secret detail"


def frames_of(seed):
    return {"frames": [[0.0, 0.0, 0.0]] * 8, "seed": seed}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (PREDICT, {"instances": [{"seed": 13}]}),
        ("/v1/models/shapes:draw", {"class": 1, "seed": 13}),
        ("/v1/images/generations", {"prompt": "1", "seed": 13}),
        ("/v1/models/voice:speak", frames_of(13)),
        (
            "/v2/models/shapes/infer",
            {"inputs": [{"name": "seed", "shape": [1], "datatype": "INT64", "data": [13]}]},
        ),
    ],
)
def test_a_model_that_breaks_gives_500_and_no_details(models, caplog, path, body):
    for name in ("voice", "shapes"):
        models.controls[name, 1].fails_on = 13
    response = ask(models, "POST", path, json=body)
    assert response.status_code == 500
    for word in (SECRET, "Traceback", "RuntimeError", ".py"):
        assert word not in response.text
    assert SECRET in caplog.text


def test_a_broken_endpoint_gives_500_and_no_details(models, monkeypatch, caplog):
    def broken(*arguments):
        raise RuntimeError(SECRET)

    monkeypatch.setattr("serving.http.routes.json_model", broken)
    response = ask(models, "POST", PREDICT, json={})
    assert response.status_code == 500
    assert response.json() == {"error": "The server failed; see its log."}
    assert SECRET in caplog.text


def test_running_out_of_memory_is_not_the_end(running, monkeypatch):
    def greedy(*arguments):
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr("serving.http.routes.json_model", greedy)
        response = running.client.post(PREDICT, json={})
    assert response.status_code == 503
    assert "retry-after" in response.headers
    assert running.client.post(PREDICT, json={"instances": [{}]}).status_code == 200


NAMES = (
    *("..", "../..", "../../etc/passwd", "%2e%2e", "%2e%2e%2fetc%2fpasswd", "..%5c..", "."),
    *("%00", "voice%00", "voice/..", "~", "$HOME", "voice;ls", "a" * 5000, "%ff%fe"),
    *("voice/versions/..", "voice/versions/-1", "voice/versions/1e3", "{{7*7}}"),
    *("voice/versions/" + "9" * 5000, "voice/versions/9"),
)


def statuses(running, paths):
    """Of paths that are sent exactly as they are written."""
    connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=10)
    with contextlib.closing(connection):
        for path in paths:
            connection.request("GET", path)
            response = connection.getresponse()
            response.read()
            yield path, response.status


@pytest.mark.parametrize(
    "place", ["/v1/models/", "/v2/models/", "/page/", "/v1/models/voice/versions/"]
)
def test_names_that_are_no_models_are_not_found(running, place):
    ends = ("", "/metadata", "/ready", "/examples")
    paths = [f"{place}{name}{end}" for name in NAMES for end in ends]
    assert [found for found in statuses(running, paths) if found[1] != 404] == []


@pytest.mark.parametrize("version", ["1" * 21, "9" * 5000, "one", "-1", "01", "1e3", "\u0661"])
def test_a_version_that_cannot_be_is_named_with_its_rule(models, version):
    for path in (f"/v1/models/voice/versions/{version}", f"/v2/models/voice/versions/{version}"):
        answer = ask(models, "GET", path)
        assert answer.status_code == 404
        words = f"A version {VERSION_RULE}, got `{version[:64]}"
        assert answer.json()["error"].startswith(words) and len(answer.json()["error"]) < 200


def test_no_path_leads_to_a_file(running):
    paths = ["/page/../server.py", "/page/%2e%2e%2fserver.py", "/..%2f..%2fetc%2fpasswd"]
    assert [status for _, status in statuses(running, paths)] == [404] * 3


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("/v1/images/generations", {"message", "type", "param", "code"}),
        ("/v1/audio/speech", {"message", "type", "param", "code"}),
        (PREDICT, None),
        ("/v2/models/shapes/infer", None),
        ("/v1/models/shapes:draw", None),
        ("/nothing", None),
    ],
)
def test_errors_are_worded_as_the_protocol_words_them(models, path, error):
    response = ask(models, "POST", path, content=b"{")
    assert response.status_code in (400, 404)
    assert response.headers["content-type"] == "application/json"
    said = response.json()["error"]
    assert (set(said) if error else type(said)) == (error or str)


def test_another_method_is_refused_with_the_right_one(models):
    response = ask(models, "GET", PREDICT)
    assert (response.status_code, response.headers["allow"]) == (405, "POST")
    assert ask(models, "DELETE", "/v1/models/voice").headers["allow"] == "GET, HEAD"


def test_a_head_has_no_body(models):
    response = ask(models, "HEAD", "/nothing")
    assert (response.status_code, response.content) == (404, b"")


def test_errors_keep_a_connection_that_was_read_to_its_end(running):
    for _ in range(3):
        assert running.client.post(PREDICT, content=b"{").status_code == 400
    assert len(running.client._transport._pool.connections) == 1


def test_requests_are_counted_by_model_protocol_and_outcome(running):
    running.client.post(PREDICT, json={"instances": [{}]})
    running.client.post(PREDICT, content=b"{")
    running.client.get("/v2/models/unheard-of")
    text = running.client.get("/monitoring/prometheus/metrics").text
    rest = 'onepass_requests_total{model="shapes",protocol="tensorflow-rest",status='
    assert rest + '"ok"} 1.0' in text
    assert rest + '"invalid_input"} 1.0' in text
    assert 'model="",protocol="v2",status="not_found"} 1.0' in text
    assert "unheard-of" not in text


def test_a_log_line_has_the_id_and_not_the_body(models, caplog):
    caplog.set_level("INFO")
    headers = {"x-request-id": "id-7", "authorization": "Bearer nobody"}
    ask(models, "POST", PREDICT, json={"instances": [{"secret": SECRET}]}, headers=headers)
    lines = [r for r in caplog.records if r.name == "serving.http.app"]
    assert [line.fields["status"] for line in lines] == [400]
    assert lines[0].getMessage() == f"POST {PREDICT}"
    assert "nobody" not in caplog.text and SECRET not in str(lines[0].__dict__)


async def test_a_web_socket_is_refused(models):
    sent = []

    async def note(message):
        sent.append(message)

    settings = settings_of()
    app = make_app(ModelRegistry(models.root, settings, models.load), settings, Metrics())
    await app({"type": "websocket", "path": "/", "headers": []}, None, note)
    assert [message["type"] for message in sent] == ["websocket.close"]


@pytest.mark.parametrize(
    "junk",
    [
        b"\x00" * 100,
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET http://evil.example/ HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"POST " + PREDICT.encode() + b" HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /healthz HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET /" + b"a" * 10**6 + b" HTTP/1.1\r\n\r\n",
    ],
)
def test_what_is_no_http_does_no_harm(running, junk):
    ignored = contextlib.suppress(TimeoutError, ConnectionError)
    with running.connection() as connection, ignored:
        connection.settimeout(0.3)
        connection.sendall(junk)
        assert b"Traceback" not in connection.recv(65536)
    assert running.client.get("/healthz").status_code == 200


def test_outputs_that_are_not_finite_are_still_json(models, monkeypatch):
    def strange(self, signature, inputs):
        return {"picture": np.full([1, 1], np.nan, np.float32)}

    monkeypatch.setattr("fake_bundle.FakeImages.call", strange)
    response = ask(models, "POST", PREDICT, json={"instances": [{}]})
    assert json.loads(response.text) == {"predictions": [[None]]}


async def test_a_reader_who_stops_reading_a_stream_ends_it_in_its_time():
    closed = []

    async def chunks():
        try:
            while True:
                yield b"chunk"
        finally:
            closed.append(True)

    async def never(*_):
        await asyncio.Event().wait()

    async def send(message):
        if message.get("body"):
            await never()

    response = StreamedResponse(chunks(), "audio/wav", 0.01)
    with pytest.raises(DeadlineExceeded, match="does not read"):
        await response({}, never, send)
    assert closed == [True]


async def test_a_reader_who_leaves_a_stream_ends_it():
    sent, closed = [], []

    async def chunks():
        try:
            while True:
                yield b"chunk"
                await asyncio.sleep(0)
        finally:
            closed.append(True)

    async def receive():
        while not sent:
            await asyncio.sleep(0)
        return {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)

    with pytest.raises(Cancelled):
        await StreamedResponse(chunks(), "audio/wav", 10.0)({}, receive, send)
    assert closed == [True] and sent[0]["status"] == 200


async def test_a_stream_that_breaks_before_its_first_chunk_has_sent_nothing():
    sent = []

    async def chunks():
        raise NotReady("It loads.")
        yield

    async def never(*_):
        await asyncio.Event().wait()

    async def send(message):
        sent.append(message)

    with pytest.raises(NotReady):
        await StreamedResponse(chunks(), "audio/wav", 10.0)({}, never, send)
    assert sent == []
