"""Who may come in over HTTP, how much of what, and what errors tell."""

import asyncio
import base64
import contextlib
import http.client
import json
import threading

import numpy as np
import pytest
from http_running import Running, ask, settings_of
from path_proxy import in_folder
from serve_load import until

from onepass.bundles.errors import DeadlineExceeded
from onepass.bundles.manifest import VERSION_RULE
from onepass.foundation.rules import UserError
from onepass.remote_model import RemoteModel
from serving import Client
from serving.engine.registry import ModelRegistry
from serving.http.app import make_app
from serving.http.routes import MAX_VALUES, StreamedResponse, json_model
from serving.observability import Metrics
from serving.settings import Settings

TOKEN = "a token of some length"
PREDICT = "/v1/models/shapes:predict"
SMALL = {"max_body_mib": 0.01}
LIMIT = int(0.01 * 2**20)
UPLOAD = f"POST {PREDICT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n".encode()
SITE = "https://site.example"
PREFLIGHT = {
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,content-type",
}


@pytest.fixture
def with_token(monkeypatch):
    monkeypatch.setenv("ONEPASS_TOKEN", TOKEN)


def predict(models, **request):
    return ask(models, "POST", PREDICT, **{"json": {"instances": [{}]}, **request})


# Bodies


def test_a_body_declared_too_large_is_refused_before_it_is_sent(models):
    with Running(models, **SMALL) as running, running.connection() as connection:
        connection.sendall(UPLOAD % 9_000_000_000)
        data = connection.recv(65536)
    assert data.startswith(b"HTTP/1.1 413")


def test_a_body_that_grows_too_large_is_refused_while_it_is_sent_and_bodies_are_given_back(models):
    row = b'{"instances": [{"label": 1}]}'
    bodies = {200: row.ljust(LIMIT), 413: row.ljust(LIMIT + 1), 400: b" " * (LIMIT - 1)}
    with Running(models, **SMALL) as running:
        for _ in range(24):  # more than may be there at once
            for status, body in bodies.items():
                assert running.client.post(PREDICT, content=body).status_code == status
            growing = running.client.post(PREDICT, content=iter([b" " * LIMIT] * 2))
            assert growing.status_code == 413 and "at most" in growing.json()["error"]


def test_a_body_that_never_ends_is_given_up(models):
    with Running(models, timeout_seconds=0.3) as running, running.connection() as connection:
        connection.sendall(UPLOAD % 100 + b'{"instances"')
        assert connection.recv(65536).startswith(b"HTTP/1.1 408")


def test_a_body_whose_sender_leaves_is_forgotten(running):
    with running.connection() as connection:
        connection.sendall(UPLOAD % 100 + b'{"instances"')
    until(lambda: b'status="cancelled"} 1.0' in running.metrics.render()[0])


# Who comes in: the headers of a prediction, and what it is answered

PROXIED = {"host": "127.0.0.1:8501"}
BASIC = "Basic " + base64.b64encode(b":" + TOKEN.encode()).decode()
ALLOWED, REACHED = {"allowed_hosts": ("models.example",)}, {"host": "0.0.0.0"}
LOCAL = ("http://localhost:5173", "http://[::1]:8080", "http://10.0.0.1", "https://a:80")
ORIGINS = {"allow_origin": (SITE, *LOCAL)}
ANSWERED = [
    *(({"content-length": length}, {}, 400) for length in ("-1", "x", "1" * 30, "0x10")),
    *(
        ({"content-encoding": each}, {}, 415)
        for each in ("deflate", "br", "gzip", "GZIP", "gzip, identity")
    ),
    ({"content-encoding": "identity"}, {}, 200),
    *(
        ({"host": host}, {}, 200)
        for host in ("localhost", "LOCALHOST:85", "127.0.0.1:9", "[::1]:8")
    ),
    *(({"host": f"{each}.evil.example"}, {}, 421) for each in ("www", "localhost", "127.0.0.1")),
    *(({"host": host}, {}, 421) for host in ("evil.example", "voice.localhost", "10.0.0.1")),
    *(({"host": host}, {}, 400) for host in ("", "a b", "localhost:port", "u@localhost", "a/..")),
    *(({"host": host}, ALLOWED, 200) for host in ("models.example", "MODELS.example:80")),
    ({"host": "x.example"}, ALLOWED, 421),
    # A server that others reach answers to any address but not to any name.
    *(({"host": host}, REACHED, 200) for host in ("10.1.2.3:8500", "[2001:db8::1]")),
    ({"host": "evil.example"}, REACHED, 421),
    *(({"origin": each}, {}, 403) for each in (SITE, "null", "http://localhost:81")),
    ({"origin": "http://localhost"}, {}, 200),
    # Behind a proxy that asks for another host.
    *(({**PROXIED, "origin": f"https://{m}.example"}, ALLOWED, 200) for m in ("models", "MODELS")),
    ({**PROXIED, "origin": "https://models.example:8443"}, ALLOWED, 403),
    ({**PROXIED, "origin": "http://localhost:3000"}, ALLOWED, 403),
    ({**PROXIED, "origin": "null"}, ALLOWED, 403),
    *(({"origin": origin}, ORIGINS, 200) for origin in ORIGINS["allow_origin"]),
]


@pytest.mark.parametrize(("headers", "settings", "status"), ANSWERED)
def test_only_what_may_come_in_is_answered(models, headers, settings, status):
    answer = predict(models, headers=headers, settings=settings)
    assert answer.status_code == status
    assert len(models.controls["shapes", 1].calls) == (status == 200)
    if status == 415:
        assert "compressed" in answer.json()["error"]
    if status == 421 or (status == 403 and "host" in headers):
        assert "`allowed_hosts`" in answer.json()["error"]
    if not settings:
        assert not [name for name in answer.headers if name.startswith(("access-control", "vary"))]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        *(({"authorization": f"{each}{TOKEN}"}, 200) for each in ("Bearer ", "bearer   ")),
        *(({"authorization": f"{each}{TOKEN}"}, 401) for each in ("", "Token ")),
        *(({"authorization": f"Bearer {each}"}, 401) for each in (f"{TOKEN}x", TOKEN[:-1], "")),
        *(({"authorization": each}, 401) for each in ("Bearer", b"Bearer \xff\xfe", BASIC)),
        *(({}, 401), ({"x-token": TOKEN}, 401)),
    ],
)
def test_only_who_bears_the_token_comes_in(models, with_token, headers, status):
    assert ask(models, "GET", "/v1/models", headers=headers).status_code == status


@pytest.mark.parametrize(
    "path",
    [
        *("/page", "/pages/page.js", "/readyz", "/monitoring/prometheus/metrics", "/openapi.json"),
        *("/v1/models", "/v1/models/voice", "/v2", "/v2/health/live", "/nothing", "/healthz/"),
        *("/page/../v1/models", "/healthz/../v1/models", "/v1/models/voice/metadata"),
        f"/v1/models?token={TOKEN}",
    ],
)
def test_every_path_of_models_needs_the_token(models, with_token, path):
    response = ask(models, "GET", path)
    assert response.status_code == 401
    assert response.headers["www-authenticate"].startswith("Bearer")
    assert TOKEN not in response.text


def test_health_and_the_page_which_asks_for_the_token_need_none_and_say_nothing(models, with_token):
    response = ask(models, "GET", "/healthz")
    assert (response.status_code, response.json()) == (200, {"status": "ok"})
    assert [ask(models, "GET", path).status_code for path in ("/", "/page/page.js")] == [200, 200]


# Pages of other sites


def test_a_page_of_an_allowed_origin_may_read_answers_and_errors(models):
    sent = {"settings": ORIGINS, "headers": {"origin": SITE}}
    none, wrong = (ask(models, "GET", path, **sent) for path in ("/v1/models/none", PREDICT))
    for answer, status in ((predict(models, **sent), 200), (none, 404), (wrong, 405)):
        assert answer.status_code == status
        found = {k: v for k, v in answer.headers.items() if k.startswith("access-control")}
        assert found.pop("access-control-allow-origin") == SITE
        exposed = found.pop("access-control-expose-headers").split(", ")
        assert {"x-num-samples", "retry-after", "x-request-id"} <= set(exposed)
        assert found == {} and answer.headers["vary"].lower() == "origin"


def test_a_preflight_of_an_allowed_origin_is_answered_without_the_token(models, with_token):
    headers = {"origin": SITE, **PREFLIGHT}
    response = ask(models, "OPTIONS", PREDICT, settings=ORIGINS, headers=headers)
    assert response.status_code == 200
    assert response.headers["access-control-allow-origin"] == SITE
    assert response.headers["access-control-allow-methods"] == "GET, HEAD, POST"
    names = set(response.headers["access-control-allow-headers"].lower().split(", "))
    assert {"authorization", "content-type", "x-request-id"} <= names and "*" not in names
    assert "access-control-allow-credentials" not in response.headers
    assert predict(models, settings=ORIGINS, headers={"origin": SITE}).status_code == 401
    for headers, status in (({"origin": SITE}, 401), (PREFLIGHT, 401), (dict(HOSTILE), 421)):
        answer = ask(models, "OPTIONS", PREDICT, settings=ORIGINS, headers=headers)
        assert answer.status_code == status


HOSTILE = {"host": "evil.example", "origin": SITE, **PREFLIGHT}


@pytest.mark.parametrize(
    "origin",
    [
        *("https://SITE.example", "https://site.example:8443", "https://site.example.", f"{SITE}/"),
        *("https://site.example.evil.example", "https://evil.site.example", "http://site.example"),
        *("http://localhost:51730", "null", "*", ""),
    ],
)
def test_an_origin_that_is_only_like_an_allowed_one_is_not(models, with_token, origin):
    headers = {"origin": origin, "authorization": f"Bearer {TOKEN}"}
    answers = [
        predict(models, headers=headers, settings=ORIGINS),
        ask(models, "OPTIONS", PREDICT, settings=ORIGINS, headers={**headers, **PREFLIGHT}),
        ask(models, "GET", "/v1/models", settings=ORIGINS, headers=headers),
    ]
    assert [answer.status_code for answer in answers] == [403, 400, 200]
    assert not any("access-control-allow-origin" in answer.headers for answer in answers)
    assert models.controls["shapes", 1].calls == []


def test_without_the_setting_no_preflight_is_answered(models):
    assert ask(models, "OPTIONS", PREDICT, headers={"origin": SITE}).status_code == 405


@pytest.mark.parametrize(
    "origin",
    [
        *("*", "null", "", "site.example", "https://*.example", "https://site.example/"),
        *("https://site.example/page", "ftp://site.example", "HTTPS://site.example"),
        *("https://site.example:443", "http://site.example:80", "https://a b", "https://"),
        *("https://user@site.example", "https://site.example\n", "https://site.example:123456"),
    ],
)
def test_only_an_exact_origin_can_be_allowed(origin):
    with pytest.raises(UserError) as refused:
        Settings(allow_origin=(SITE, origin))
    rule = "must be exact origins as browsers send them, such as https://site.example, got"
    assert str(refused.value) == f"`allow_origin` {rule} {origin!r}."


# What leaves


def test_the_request_id_is_the_clients_own_or_a_new_one(models):
    given = ask(models, "GET", "/healthz", headers={"x-request-id": "abc-1.2_3"})
    assert given.headers["x-request-id"] == "abc-1.2_3"
    made = {ask(models, "GET", "/healthz").headers["x-request-id"] for _ in range(2)}
    assert len(made) == 2 and all(len(identity) == 16 for identity in made)


@pytest.mark.parametrize("path", ["/healthz", "/nothing", "/v1/models", "/"])
def test_every_answer_has_the_headers_of_safety(models, path):
    headers = ask(models, "GET", path).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    expected = {"x-content-type-options": "nosniff", "x-frame-options": "DENY"}
    expected["referrer-policy"] = "no-referrer"
    assert expected.items() <= dict(headers).items()


def test_streams_ask_nginx_not_to_hold_them_back(models):
    answer = ask(models, "POST", "/v1/models/shapes:draw", json={"class": 3})
    assert answer.headers["x-accel-buffering"] == "no"


@pytest.mark.integration
def test_clients_reach_a_server_in_a_folder_of_a_proxy(running):
    with in_folder(running.port) as (folder, strays):
        with Client(f"{folder}/") as client:
            assert [model["id"] for model in client.models()] == ["shapes", "voice"]
        model = RemoteModel(f"{folder}/shapes")
        drawn = model.sample(1, seed=3, condition=2)
        model.close()
    assert model.name == "shapes" and drawn.shape[0] == 1 and drawn.dtype.name == "uint8"
    assert running.store.controls["shapes", 1].calls and strays == []


# What errors tell

DRAW = "/v1/models/shapes:draw"
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
