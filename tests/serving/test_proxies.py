"""Behind a proxy: who asks, and which pages and hosts are the server's own."""

import contextlib
import json

import grpc_running
import pytest
from grpc_running import refused
from http_running import Running, ask, store

from serving.engine import admission
from serving.grpc.messages import message

PREDICT = "/v1/models/shapes:predict"
TRUSTED = ("127.0.0.1", "192.168.0.0/16")


@pytest.fixture
def models(tmp_path):
    return store(tmp_path)


def statuses(running, *forwarded):
    """Of requests by way of these addresses, of one client a minute's only request."""
    return [
        running.client.get("/v2", headers={"X-Forwarded-For": words}).status_code
        for words in forwarded
    ]


def test_a_proxy_that_is_trusted_says_who_asks(models):
    with Running(models, requests_per_minute_per_client=1, trusted_proxies=TRUSTED) as running:
        assert statuses(running, "10.0.0.1", "10.0.0.2", "10.0.0.1") == [200, 200, 429]
        # What the client wrote itself stands before what the proxies added.
        forged = [f"10.9.9.{n}, 10.0.0.1, 192.168.1.{n}" for n in range(3)]
        assert statuses(running, *forged) == [429] * 3


def test_nobody_else_does(models):
    with Running(models, requests_per_minute_per_client=1) as running:
        assert statuses(running, "10.0.0.1", "10.0.0.2") == [200, 429]
    trusted = {"trusted_proxies": ("192.168.0.0/16",)}
    with Running(models, requests_per_minute_per_client=1, **trusted) as running:
        assert statuses(running, "10.0.0.1", "10.0.0.2") == [200, 429]


def test_grpc_believes_the_same_proxies(tmp_path):
    request = message("tensorflow.serving.GetModelStatusRequest")()
    request.model_spec.name = "voice"
    for trusted, expected in ((TRUSTED, 2), ((), 1)):
        made = grpc_running.store(tmp_path / str(expected))
        settings = {"requests_per_minute_per_client": 1, "trusted_proxies": trusted}
        with grpc_running.Running(made, **settings) as running, running.channel() as channel:
            status = channel.unary_unary(
                "/tensorflow.serving.ModelService/GetModelStatus",
                type(request).SerializeToString,
                message("tensorflow.serving.GetModelStatusResponse").FromString,
            )
            for n in range(expected):
                status(request, metadata=(("x-forwarded-for", f"10.0.0.{n}"),))
            with refused("RESOURCE_EXHAUSTED"):
                status(request, metadata=(("x-forwarded-for", "10.0.0.0"),))


@pytest.mark.parametrize(("trusted", "last"), [((), 503), (TRUSTED, 200)])
def test_the_connections_of_a_trusted_proxy_are_not_one_clients_share(
    models, monkeypatch, trusted, last
):
    monkeypatch.setattr(admission, "MAX_CONNECTIONS", 4)
    monkeypatch.setattr(admission, "FIRST_SECONDS", 60.0)  # nobody makes room meanwhile
    with Running(models, trusted_proxies=trusted) as running, contextlib.ExitStack() as stack:
        for status in (200, 200, 200, last):  # a client alone has three quarters
            connection = stack.enter_context(running.connection())
            connection.sendall(b"GET /v2 HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert int(connection.recv(65536).split(b" ", 2)[1]) == status


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
    answer = ask(models, "POST", PREDICT, content=json.dumps({}), headers=headers)
    assert answer.status_code == 403 and "`allowed_hosts`" in answer.json()["error"]
    answer = ask(models, "POST", PREDICT, headers={"host": "upstream"})
    assert answer.status_code == 421 and "`allowed_hosts`" in answer.json()["error"]


def test_a_proxy_by_name_is_refused_in_one_line(mistake, tmp_path):
    line = mistake("serve", tmp_path, "--trusted-proxies", "nginx")
    assert "`--trusted-proxies` must be addresses or networks in numbers, got 'nginx'" in line
