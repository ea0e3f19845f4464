"""Errors over HTTP: worded as each protocol words them, and never with anything of the insides."""

import asyncio
import contextlib
import http.client
import json
import threading

import numpy as np
import pytest
from http_running import ask, settings_of

from onepass.bundles.errors import DeadlineExceeded
from onepass.bundles.manifest import VERSION_RULE
from serving.engine.registry import ModelRegistry
from serving.http.app import make_app
from serving.http.routes import MAX_VALUES, StreamedResponse, json_model
from serving.observability import Metrics

PREDICT, DRAW = "/v1/models/shapes:predict", "/v1/models/shapes:draw"
SECRET = "secret detail"


@pytest.mark.parametrize(("error", "status"), [(RuntimeError(SECRET), 500), (MemoryError(), 503)])
def test_a_broken_endpoint_tells_nothing_and_is_not_the_end(
    running, monkeypatch, caplog, error, status
):
    def broken(*arguments):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr("serving.http.routes.json_model", broken)
        response = running.client.post(PREDICT, json={})
    assert response.status_code == status and ("retry-after" in response.headers) == (status == 503)
    words = {500: "The server failed; see its log.", 503: "There is not enough memory"}[status]
    assert response.json()["error"].startswith(words)
    assert (SECRET if status == 500 else "MemoryError") in caplog.text
    assert running.client.post(PREDICT, json={"instances": [{}]}).status_code == 200


NAMES = (
    *("..", "../..", "../../etc/passwd", "%2e%2e", "%2e%2e%2fetc%2fpasswd", "..%5c..", "."),
    *("%00", "voice%00", "voice/..", "~", "$HOME", "voice;ls", "a" * 5000, "%ff%fe"),
    *("voice/versions/..", "voice/versions/-1", "voice/versions/1e3", "{{7*7}}"),
    *("voice/versions/" + "9" * 5000, "voice/versions/9"),
)
FILES = ("/page/../server.py", "/page/%2e%2e%2fserver.py", "/..%2f..%2fetc%2fpasswd")


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
def test_names_that_are_no_models_are_not_found_nor_any_file(running, place):
    ends = ("", "/metadata", "/ready", "/examples")
    paths = [f"{place}{name}{end}" for name in NAMES for end in ends]
    assert [found for found in statuses(running, [*paths, *FILES]) if found[1] != 404] == []


@pytest.mark.parametrize("version", ["1" * 21, "9" * 5000, "one", "-1", "01", "1e3", "\u0661"])
def test_a_version_that_cannot_be_is_named_with_its_rule(models, version):
    for path in (f"/v1/models/voice/versions/{version}", f"/v2/models/voice/versions/{version}"):
        answer = ask(models, "GET", path)
        words = f"A version {VERSION_RULE}, got `{version[:64]}"
        assert answer.status_code == 404 and len(answer.json()["error"]) < 200
        assert answer.json()["error"].startswith(words)


@pytest.mark.parametrize("path", ["/v1/images/generations", "/v1/audio/speech", "/v1/models/x:draw",
    PREDICT, "/v2/models/shapes/infer", DRAW, "/v2/repository/models/voice/load"])  # fmt: skip
def test_errors_are_worded_as_the_protocol_words_them(models, path):
    response = ask(models, "POST", path, content=b"{")
    assert response.status_code in (400, 404)
    assert response.headers["content-type"] == "application/json"
    said = response.json()["error"]
    is_openais = path.startswith(("/v1/images", "/v1/audio"))
    assert (set(said) == {"message", "type", "param", "code"}) if is_openais else type(said) is str


def test_another_method_is_refused_with_the_right_one_and_a_head_has_no_body(models):
    response = ask(models, "GET", PREDICT)
    assert (response.status_code, response.headers["allow"]) == (405, "POST")
    assert ask(models, "DELETE", "/v1/models/voice").headers["allow"] == "GET, HEAD"
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
    assert rest + '"ok"} 1.0' in text and rest + '"invalid_input"} 1.0' in text
    assert 'model="",protocol="v2",status="not_found"} 1.0' in text
    assert "unheard-of" not in text


def test_a_log_line_has_the_id_and_not_the_body(models, caplog):
    caplog.set_level("INFO")
    headers = {"x-request-id": "id-7", "authorization": "Bearer nobody"}
    ask(models, "POST", PREDICT, json={"instances": [{"secret": SECRET}]}, headers=headers)
    lines = [r for r in caplog.records if r.name == "serving.http.app"]
    fields = [(line.fields["status"], line.fields["client"]) for line in lines]
    assert fields == [(400, "127.0.0.1")]
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


def test_outputs_that_are_not_finite_are_still_json(models, monkeypatch):
    strange = {"picture": np.full([1, 1], np.nan, np.float32)}
    monkeypatch.setattr("fake_bundle.FakeImages.call", lambda *given: strange)
    response = ask(models, "POST", PREDICT, json={"instances": [{}]})
    assert json.loads(response.text) == {"predictions": [[None]]}


@pytest.mark.parametrize(
    ("path", "field"),
    [
        *((PREDICT, "instances"), (DRAW, "map")),
        *(("/v1/models/voice:speak", "frames"), ("/v1/images/generations", "prompt")),
    ],
)
def test_json_is_measured_before_it_is_read(models, path, field):
    body = b'{"%s": [%s0]}' % (field.encode(), b"0," * MAX_VALUES)
    answer = ask(models, "POST", path, content=body)
    assert answer.status_code == 400 and "binary tensors" in answer.text


@pytest.mark.parametrize("path", [DRAW, "/v1/images/generations", "/v1/audio/speech"])
def test_long_json_is_read_in_a_thread(running, path, monkeypatch):
    threads = []

    def read(body, model):
        threads.append(threading.current_thread())
        return json_model(body, model)

    monkeypatch.setattr("serving.http.routes.json_model", read)
    running.client.post(path, content=b"{}".ljust(100_000))
    assert threads and threads[0] is not running._thread


async def test_a_reader_who_stops_reading_a_stream_ends_it_in_its_time():
    ended = []

    async def chunks():
        try:
            while True:
                yield b"chunk"
        finally:
            ended.append(True)

    async def never(*_):
        await asyncio.Event().wait()

    async def send(message):
        if message.get("body"):
            await never()

    with pytest.raises(DeadlineExceeded, match="does not read"):
        await StreamedResponse(chunks(), "audio/wav", 0.01)({}, never, send)
    assert ended
