"""The guard: who may come in, how much of what, and what never leaves."""

import base64
import gzip
import time

import pytest
from http_running import Running, ask
from path_proxy import FOLDER, in_folder

from onepass.foundation.errors import UserError
from onepass.remote_model import RemoteModel
from serving import Client
from serving.settings import Settings

TOKEN = "a token of some length"
PREDICT = "/v1/models/shapes:predict"
SMALL = {"max_body_mib": 0.01}
LIMIT = int(0.01 * 2**20)
UPLOAD = f"POST {PREDICT} HTTP/1.1\nHost: localhost\nContent-Length: {{}}\n\n"


@pytest.fixture
def with_token(monkeypatch):
    monkeypatch.setenv("ONEPASS_TOKEN", TOKEN)


def head(connection, text):
    connection.sendall(text.replace("\n", "\r\n").encode())


def test_a_body_declared_too_large_is_refused_before_it_is_sent(models):
    with Running(models, **SMALL) as running, running.connection() as connection:
        head(
            connection, f"POST {PREDICT} HTTP/1.1\nHost: localhost\nContent-Length: 9000000000\n\n"
        )
        data = connection.recv(65536)
    assert data.startswith(b"HTTP/1.1 413")


def test_a_body_that_grows_too_large_is_refused_while_it_is_sent(models):
    def endless():
        yield b'{"instances": ['
        for _ in range(20 * LIMIT // 1000):
            yield b"0," * 500

    with Running(models, **SMALL) as running:
        response = running.client.post(PREDICT, content=endless())
        assert running.client.get("/healthz").status_code == 200
    assert response.status_code == 413
    assert "at most" in response.json()["error"]


def test_a_body_of_the_largest_size_is_read(models):
    row = b'{"instances": [{"label": 1}]}'
    bodies = [row + b" " * (LIMIT - len(row)), row + b" " * (LIMIT - len(row) + 1)]
    statuses = [ask(models, "POST", PREDICT, settings=SMALL, content=b).status_code for b in bodies]
    assert statuses == [200, 413]


@pytest.mark.parametrize("length", ["-1", "x", "1" * 30, "0x10"])
def test_a_content_length_that_is_no_number_is_refused(models, length):
    response = ask(models, "POST", PREDICT, headers={"content-length": length})
    assert response.status_code == 400


def test_what_requests_held_is_given_back(models):
    with Running(models, **SMALL) as running:
        for _ in range(48):
            assert running.client.post(PREDICT, content=b" " * (LIMIT - 1)).status_code == 400
            assert running.client.post(PREDICT, content=iter([b" " * LIMIT] * 2)).status_code == 413


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd", "GZIP", "gzip, identity"])
def test_a_compressed_body_is_refused_unread(models, encoding):
    bomb = gzip.compress(b" " * 10**7)
    headers = {"content-encoding": encoding}
    response = ask(models, "POST", PREDICT, content=bomb, headers=headers)
    assert response.status_code == 415
    assert "compressed" in response.json()["error"]


def test_an_identity_encoding_is_none(models):
    headers = {"content-encoding": "identity"}
    response = ask(models, "POST", PREDICT, json={"instances": [{}]}, headers=headers)
    assert response.status_code == 200


def test_a_body_that_never_ends_is_given_up(models):
    with Running(models, timeout_seconds=0.3) as running, running.connection() as connection:
        head(connection, UPLOAD.format(100))
        connection.sendall(b'{"instances"')
        assert connection.recv(65536).startswith(b"HTTP/1.1 408")


def test_a_body_whose_sender_leaves_is_forgotten(running):
    with running.connection() as connection:
        head(connection, UPLOAD.format(100))
        connection.sendall(b'{"instances"')
    deadline = time.monotonic() + 5
    while b'status="cancelled"} 1.0' not in running.metrics.render()[0]:
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"authorization": "Bearer " + TOKEN}, 200),
        ({"authorization": "bearer   " + TOKEN}, 200),
        ({"authorization": "Bearer " + TOKEN + "x"}, 401),
        ({"authorization": "Bearer " + TOKEN[:-1]}, 401),
        ({"authorization": "Bearer "}, 401),
        ({"authorization": "Bearer"}, 401),
        ({"authorization": TOKEN}, 401),
        ({"authorization": "Token " + TOKEN}, 401),
        ({"authorization": b"Bearer \xff\xfe"}, 401),
        ({"authorization": "Basic " + base64.b64encode(b":" + TOKEN.encode()).decode()}, 401),
        ({"x-token": TOKEN}, 401),
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
    ],
)
def test_every_path_of_models_needs_the_token(models, with_token, path):
    response = ask(models, "GET", path)
    assert response.status_code == 401
    assert response.headers["www-authenticate"].startswith("Bearer")
    assert TOKEN not in response.text


def test_health_without_a_token_says_nothing_else(models, with_token):
    response = ask(models, "GET", "/healthz")
    assert (response.status_code, response.json()) == (200, {"status": "ok"})


@pytest.mark.parametrize("path", ["/", "/page/page.js"])
def test_the_page_which_asks_for_the_token_needs_none(models, with_token, path):
    assert ask(models, "GET", path).status_code in (200, 404)


def test_a_token_given_in_the_address_is_none(models, with_token):
    assert ask(models, "GET", f"/v1/models?token={TOKEN}").status_code == 401


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LOCALHOST:8500", 200),
        ("127.0.0.1:9", 200),
        ("[::1]:8500", 200),
        ("evil.example", 421),
        ("localhost.evil.example", 421),
        ("voice.localhost", 421),
        ("127.0.0.1.evil.example", 421),
        ("10.0.0.1", 421),
        ("", 400),
        ("a b", 400),
        ("localhost:port", 400),
        ("user@localhost", 400),
        ("localhost/..", 400),
    ],
)
def test_only_the_own_host_is_answered(models, host, status):
    assert ask(models, "GET", "/healthz", headers={"host": host}).status_code == status


def test_other_hosts_can_be_allowed(models):
    for host, status in (("models.example", 200), ("MODELS.example:80", 200), ("x.example", 421)):
        settings = {"allowed_hosts": ("models.example",)}
        response = ask(models, "GET", "/healthz", settings=settings, headers={"host": host})
        assert response.status_code == status


def test_a_server_that_others_reach_answers_to_any_address_but_not_to_any_name(models, with_token):
    for host, status in (("10.1.2.3:8500", 200), ("evil.example", 421)):
        settings = {"host": "0.0.0.0"}
        response = ask(models, "GET", "/healthz", settings=settings, headers={"host": host})
        assert response.status_code == status


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://localhost:81"])
def test_a_page_of_another_site_cannot_start_work(models, origin):
    headers = {"origin": origin}
    response = ask(models, "POST", PREDICT, json={"instances": [{}]}, headers=headers)
    assert response.status_code == 403
    assert models.controls["shapes", 1].calls == []
    assert "access-control-allow-origin" not in response.headers


def test_the_own_page_can(models):
    headers = {"origin": "http://localhost"}
    response = ask(models, "POST", PREDICT, json={"instances": [{}]}, headers=headers)
    assert response.status_code == 200


def test_no_answer_lets_another_origin_read_it(models):
    response = ask(models, "GET", "/v1/models", headers={"origin": "https://evil.example"})
    assert not [name for name in response.headers if name.startswith("access-control")]
    preflight = ask(models, "OPTIONS", PREDICT, headers={"origin": "https://evil.example"})
    assert preflight.status_code == 405


def test_the_request_id_is_the_clients_own_or_a_new_one(models):
    given = ask(models, "GET", "/healthz", headers={"x-request-id": "abc-1.2_3"})
    assert given.headers["x-request-id"] == "abc-1.2_3"
    made = {ask(models, "GET", "/healthz").headers["x-request-id"] for _ in range(2)}
    assert len(made) == 2 and all(len(identity) == 16 for identity in made)


@pytest.mark.parametrize("identity", ["a b", "a\tb", "x" * 65, "<script>", "é"])
def test_a_request_id_that_is_no_short_word_is_replaced(models, identity):
    headers = {"x-request-id": identity.encode("latin-1")}
    response = ask(models, "GET", "/healthz", headers=headers)
    assert response.headers["x-request-id"] != identity


@pytest.mark.parametrize("path", ["/healthz", "/nothing", "/v1/models", "/"])
def test_every_answer_has_the_headers_of_safety(models, path):
    headers = ask(models, "GET", path).headers
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert headers["referrer-policy"] == "no-referrer"


def test_streams_ask_nginx_not_to_hold_them_back(models):
    answer = ask(models, "POST", "/v1/models/shapes:draw", json={"class": 3})
    assert answer.headers["x-accel-buffering"] == "no"


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("https://models.example", 200),
        ("https://MODELS.example", 200),
        ("https://models.example:8443", 403),
        ("https://evil.example", 403),
        ("http://localhost:3000", 403),
        ("null", 403),
    ],
)
def test_the_own_page_works_behind_a_proxy_that_asks_for_another_host(models, origin, status):
    settings = {"allowed_hosts": ("models.example",)}
    headers = {"host": "127.0.0.1:8501", "origin": origin}
    body = {"json": {"instances": [{}]}, "headers": headers}
    assert ask(models, "POST", PREDICT, settings=settings, **body).status_code == status


def test_a_refusal_names_the_setting(models):
    headers = {"host": "127.0.0.1:8501", "origin": "https://models.example"}
    answer = ask(models, "POST", PREDICT, json={}, headers=headers)
    assert answer.status_code == 403 and "`allowed_hosts`" in answer.json()["error"]
    answer = ask(models, "POST", PREDICT, headers={"host": "upstream"})
    assert answer.status_code == 421 and "`allowed_hosts`" in answer.json()["error"]


SITE = "https://site.example"
ALLOWS = {"allow_origin": (SITE, "http://localhost:5173")}
PREFLIGHT = {
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,content-type",
}


def allowed(response):
    """Return the headers of an answer that speak of other origins."""
    return {k: v for k, v in response.headers.items() if k.startswith("access-control")}


@pytest.mark.parametrize("origin", ALLOWS["allow_origin"])
def test_a_page_of_an_allowed_origin_is_answered_and_may_read_it(models, origin):
    sent = {"json": {"instances": [{}]}, "headers": {"origin": origin}}
    response = ask(models, "POST", PREDICT, settings=ALLOWS, **sent)
    assert response.status_code == 200
    found = allowed(response)
    assert found.pop("access-control-allow-origin") == origin
    exposed = found.pop("access-control-expose-headers").split(", ")
    assert {"x-num-samples", "retry-after", "x-request-id"} <= set(exposed)
    assert found == {}
    assert response.headers["vary"].lower() == "origin"


def test_an_allowed_origin_reads_errors_too(models):
    for path, status in (("/v1/models/none", 404), (PREDICT, 405)):
        response = ask(models, "GET", path, settings=ALLOWS, headers={"origin": SITE})
        assert response.status_code == status
        assert response.headers["access-control-allow-origin"] == SITE


def test_a_preflight_of_an_allowed_origin_is_answered_without_the_token(models, with_token):
    headers = {"origin": SITE, **PREFLIGHT}
    response = ask(models, "OPTIONS", PREDICT, settings=ALLOWS, headers=headers)
    assert response.status_code == 200
    assert response.headers["access-control-allow-origin"] == SITE
    assert response.headers["access-control-allow-methods"] == "GET, HEAD, POST"
    names = set(response.headers["access-control-allow-headers"].lower().split(", "))
    assert {"authorization", "content-type", "x-request-id"} <= names and "*" not in names
    assert "access-control-allow-credentials" not in response.headers
    sent = {"json": {"instances": [{}]}, "headers": {"origin": SITE}}
    assert ask(models, "POST", PREDICT, settings=ALLOWS, **sent).status_code == 401


@pytest.mark.parametrize(
    "origin",
    [
        "https://SITE.example",
        "https://site.example:8443",
        "https://site.example.",
        "https://site.example/",
        "https://site.example.evil.example",
        "https://evil.site.example",
        "http://site.example",
        "http://localhost:51730",
        "null",
        "*",
        "",
    ],
)
def test_an_origin_that_is_only_like_an_allowed_one_is_not(models, with_token, origin):
    body = {"json": {"instances": [{}]}, "settings": ALLOWS}
    headers = {"origin": origin, "authorization": f"Bearer {TOKEN}"}
    answers = [
        ask(models, "POST", PREDICT, headers=headers, **body),
        ask(models, "OPTIONS", PREDICT, settings=ALLOWS, headers={**headers, **PREFLIGHT}),
        ask(models, "GET", "/v1/models", settings=ALLOWS, headers=headers),
    ]
    assert [answer.status_code for answer in answers] == [403, 400, 200]
    assert not any("access-control-allow-origin" in answer.headers for answer in answers)
    assert models.controls["shapes", 1].calls == []


def test_options_without_a_question_of_a_browser_needs_the_token(models, with_token):
    for headers in ({"origin": SITE}, PREFLIGHT):
        answer = ask(models, "OPTIONS", PREDICT, settings=ALLOWS, headers=headers)
        assert answer.status_code == 401


def test_a_preflight_for_another_host_is_refused(models):
    headers = {"host": "evil.example", "origin": SITE, **PREFLIGHT}
    assert ask(models, "OPTIONS", PREDICT, settings=ALLOWS, headers=headers).status_code == 421


def test_without_the_setting_answers_do_not_depend_on_the_origin(models):
    assert "vary" not in ask(models, "GET", "/v1/models", headers={"origin": SITE}).headers


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


@pytest.mark.parametrize("origin", [SITE, "http://[::1]:8080", "http://10.0.0.1", "https://a:80"])
def test_an_exact_origin_can_be_allowed(origin):
    assert Settings(allow_origin=(origin,)).allow_origin == (origin,)


def test_the_document_of_the_routes_is_relative_to_itself(models):
    document = ask(models, "GET", "/openapi.json").json()
    assert document["servers"] == [{"url": "."}]


@pytest.mark.integration
def test_clients_reach_a_server_in_a_folder_of_a_proxy(running):
    with in_folder(running.port) as (folder, strays):
        with Client(f"{folder}/") as client:
            listed = [model["id"] for model in client.models()]
        model = RemoteModel(f"{folder}/shapes")
        drawn = model.sample(1, seed=3, condition=2)
        model.close()
    assert listed == ["shapes", "voice"] and model.name == "shapes"
    (part,) = running.store.controls["shapes", 1].calls[-1:]
    assert drawn.shape[0] == 1 and drawn.dtype.name == "uint8" and part
    assert strays == [] and FOLDER in folder
