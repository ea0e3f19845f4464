"""A client that asks for much text keeps nobody else waiting, and its work ends when it leaves."""

import itertools
import json
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import pytest
from fake_bundle import CHANNELS
from http_running import HERE, Running, ask, speak_text_with
from serve_load import until

from onepass.speech.phonemes import MAX_CHARACTERS
from serving.engine import clients
from serving.engine.clients import current_client as client

SPEECH, SPEAK = "/v1/audio/speech", "/v1/models/voice:speak"
HEAVY, LIGHT = "127.0.0.2", "127.0.0.3"
PIECE_SECONDS = 0.002


class FrontEnd:
    """A text front end that goes on with a text of `endless` words, in pieces, until `go`."""

    def __init__(self):
        self.go, self.lock = threading.Event(), threading.Lock()
        self.begun, self.ended = [], []

    def __call__(self, bundle, words, *, speed=1.0, pause=lambda: None, **_):
        with self.lock:
            self.begun.append(words)
        try:
            while words.startswith("endless") and not self.go.wait(PIECE_SECONDS):
                pause()
        finally:
            with self.lock:
                self.ended.append(words)
        return np.zeros([2, CHANNELS], np.float32)

    def count(self, words):
        with self.lock:
            return sum(each.startswith(words) for each in self.begun)


@pytest.fixture
def front_end(monkeypatch):
    made = FrontEnd()
    speak_text_with(monkeypatch, made)
    yield made
    made.go.set()


def post_from(address, running, path, body, **headers):
    """The status of a request that comes from an address of loopback."""
    transport = httpx.HTTPTransport(local_address=address, verify=False)
    given = {"base_url": running.url, "transport": transport, "timeout": 30, **HERE}
    with httpx.Client(**given) as client:
        return client.post(path, json=body, headers=headers).status_code


@pytest.mark.parametrize(("path", "name"), [(SPEECH, "input"), (SPEAK, "text")])
def test_a_short_text_of_any_client_does_not_wait_for_many_long_ones(models, front_end, path, name):
    long = [{name: f"endless {n} ".ljust(400, "a"), "format": "wav"} for n in range(16)]
    with Running(models, timeout_seconds=30.0) as running, ThreadPoolExecutor(16) as pool:
        asked = [pool.submit(post_from, HEAVY, running, path, body) for body in long]
        until(lambda: front_end.count("endless") == clients.MAX_RUNNING_OF_CLIENT)
        until(lambda: len(clients.THREADS._waiting) == 16 - front_end.count("endless"))
        for address in (HEAVY, LIGHT, HEAVY):
            assert post_from(address, running, path, {name: "hello"}) == 200
        assert not any(each.done() for each in asked) and front_end.ended == ["hello"] * 3
        assert front_end.count("endless") == clients.MAX_RUNNING_OF_CLIENT
        front_end.go.set()
        assert {each.result(30) for each in asked} <= {200, 503}
    assert front_end.count("endless") == 16


@pytest.mark.parametrize("path", [SPEECH, SPEAK])
def test_the_work_ends_when_the_client_leaves(models, front_end, path):
    body = json.dumps({"input": "endless", "text": "endless"}).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    with Running(models, timeout_seconds=60.0) as running:
        most = clients.MAX_RUNNING_OF_CLIENT
        connections = [running.connection() for _ in range(most + 2)]
        for connection in connections[:most]:
            connection.sendall(head.encode() + body)
        until(lambda: len(front_end.begun) == most)
        for connection in connections[most:]:
            connection.sendall(head.encode() + body)
        until(lambda: len(clients.THREADS._waiting) == 2)
        for connection in connections[most:]:  # before the others, whose ends would let them begin
            connection.close()
        until(lambda: not clients.THREADS._waiting)
        for connection in connections[:most]:
            connection.close()
        until(lambda: len(front_end.ended) == most)
        until(lambda: not clients.THREADS._running)
        assert not front_end.go.is_set() and not clients.THREADS._waiting
        assert len(front_end.begun) == most  # what waited was never begun


def test_the_work_ends_when_its_time_is_over(models, front_end):
    limits = {"timeout_seconds": 0.1}
    answer = ask(models, "POST", SPEECH, json={"input": "endless"}, settings=limits)
    assert answer.status_code == 504
    until(lambda: front_end.ended == ["endless"])
    assert not front_end.go.is_set()


@pytest.mark.parametrize(
    ("words", "speed", "rule"),
    [
        ("a " * 513, 0.25, "at most 1,024 characters at speed 0.25, got 1,026"),
        ("a " * 1025, 0.5, "at most 2,048 characters at speed 0.5, got 2,050"),
        ("7" * 171, 0.25, "at most 1,024 characters at speed 0.25, got 1,026, counting"),
        ("7" * 683, 4.0, "at most 4,096 characters, got 4,098, counting"),
    ],
)
def test_a_text_that_would_last_too_long_is_refused_before_any_work(
    models, front_end, words, speed, rule
):
    answer = ask(models, "POST", SPEECH, json={"input": words, "speed": speed})
    assert answer.status_code == 400 and rule in answer.json()["error"]["message"]
    assert front_end.begun == [] and models.controls["voice", 1].chunks == 0


def test_no_part_of_a_slow_text_lasts_longer_than_the_longest_at_speed_1(models, front_end):
    answer = ask(models, "POST", SPEECH, json={"input": "a word " * 140, "speed": 0.25})
    assert answer.status_code == 200
    assert len(front_end.begun) > 3 and "".join(front_end.begun) == "a word " * 140
    assert max(map(len, front_end.begun)) <= MAX_CHARACTERS // 4


# Who a client is

TOKENS = ("first token, long enough", "second token, long enough")


@pytest.mark.parametrize("count", [1, 2])
def test_a_client_is_a_token_where_there_are_several_else_an_address(
    models, monkeypatch, tmp_path, count
):
    (tmp_path / "tokens").write_text("\n".join((*TOKENS[:count], "")))
    seen = []
    speak_text_with(monkeypatch, lambda *_, **more: pytest.fail("nothing is spoken"))
    monkeypatch.setattr(
        "serving.engine.served_model.ServedModel.predict", lambda *_, **more: seen.append(client())
    )
    with Running(models, token_file=tmp_path / "tokens") as running:
        for address, token in itertools.product((HEAVY, LIGHT), TOKENS):
            path, bearer = "/v1/models/shapes:predict", f"Bearer {token}"
            body = {"instances": [{}]}
            status = post_from(address, running, path, body, Authorization=bearer)
            assert (status == 401) == (token not in TOKENS[:count])
    assert len(set(seen)) == 2
    assert seen == ([HEAVY, LIGHT] if count == 1 else ["token 1", "token 2"] * 2)
