"""Clients that keep connections, calls or bodies without using them; what each is refused by.

How often an address may ask, and how slowly it may read, is for the proxy in front to limit:
tests/serving/test_deployment_files.py asks a real nginx.
"""

import contextlib
import http.client
import socket
import threading

import grpc
import grpc_running
import http_running
import pytest
from serve_load import GRPC_PREDICT, INFER, predict, predict_request, until

from serving.http.routes import BODIES_AT_ONCE
from serving.server import HEAD_BYTES

DONE = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
HALF_A_BODY = b"POST /v1/audio/speech HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{"
REFUSED = (
    b"POST /v1/nothing HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{"  # body to come
)
TOKEN = "a token of enough letters"
INFER_PATH = "/v2/models/voice/infer"
HEAD = b"POST /v2/models/voice/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
CHECK = "/grpc.health.v1.Health/Check"
PLACES = 8


def asked(running, method="POST", path=INFER_PATH, body=INFER, **headers):
    """The status of an answer, on a connection of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=20)
    with contextlib.closing(connection):
        connection.request(method, path, body, headers)
        return connection.getresponse().status


@contextlib.contextmanager
def sockets(running, count, sent=b"", source="127.0.0.1"):
    """So many connections on which that much was sent and nothing more comes."""
    with contextlib.ExitStack() as stack:
        made = []
        for _ in range(count):
            address = ("127.0.0.1", running.port)
            made.append(socket.create_connection(address, 10, (source, 0)))
            stack.enter_context(made[-1])
            made[-1].sendall(sent)
        yield made


def is_closed(connection):
    """Return whether the server has ended a connection, waiting for it."""
    with contextlib.suppress(ConnectionResetError):
        while connection.recv(1 << 16):
            pass
    return True


def is_healthy(connection):
    """Return whether the answer to DONE comes, all of it."""
    received = b""
    while not received.endswith(b'{"status":"ok"}'):
        received += (part := connection.recv(1 << 16))
        assert part
    return received.startswith(b"HTTP/1.1 200")


def test_more_requests_than_there_may_be_are_refused_and_no_client_has_them_all(
    models, monkeypatch
):
    monkeypatch.setattr("serving.server.MAX_REQUESTS", PLACES)
    clients = {f"127.0.0.{n}": places for n, places in ((2, 4), (3, 2), (4, 1), (5, 1))}
    with (
        http_running.Running(models, timeout_seconds=60.0) as running,
        contextlib.ExitStack() as stack,
    ):
        taken = running._server._in_progress.taken_by
        for client, places in clients.items():
            stack.enter_context(sockets(running, places, HALF_A_BODY, client))
            until(lambda client=client, places=places: taken(client) == places)
            (refused,) = stack.enter_context(sockets(running, 1, HALF_A_BODY, client))
            assert refused.recv(100).startswith(b"HTTP/1.1 503")
        assert asked(running) == 503
        stack.close()
        until(lambda: asked(running) == 200)


@pytest.mark.parametrize("sent", [b"", b"GET /healthz HTTP/1.1\r\nHost: local", DONE])
def test_connections_without_a_request_lock_nobody_out(models, monkeypatch, sent):
    """Silent ones, such with half a head, and such whose request is answered: the oldest ends."""
    monkeypatch.setattr("serving.server.MAX_REQUESTS", PLACES)
    monkeypatch.setattr("serving.server.MAX_IDLE", PLACES)
    with http_running.Running(models) as running:
        idle = running._server.idle
        with sockets(running, 1, DONE, "127.0.0.3") as (other,), contextlib.ExitStack() as stack:
            assert is_healthy(other)
            strangers = []
            for _ in range(3 * PLACES):
                strangers += stack.enter_context(sockets(running, 1, sent, "127.0.0.2"))
                if sent == DONE:
                    assert is_healthy(strangers[-1])
            assert all(map(is_closed, strangers[: 2 * PLACES]))
            assert asked(running) == 200 and asked(running, "GET", "/healthz", None) == 200
            until(lambda: len(idle) <= PLACES)
            other.sendall(DONE)  # of another client, it has stayed
            assert is_healthy(other)


@pytest.mark.parametrize(
    "sent", [b"", b"\r", b"GET /healthz HTTP/1.1\r\nHost: local", DONE, DONE + b"GET /", REFUSED]
)
def test_a_connection_without_a_request_is_closed_in_its_time(models, monkeypatch, sent):
    monkeypatch.setattr("serving.server.IDLE_SECONDS", 0.2)
    with http_running.Running(models) as running, sockets(running, 2, sent) as connections:
        assert all(map(is_closed, connections))
        until(lambda: not running._server.server_state.connections)
        assert not len(running._server.idle)


def test_no_byte_but_the_last_of_a_head_keeps_a_connection(models, monkeypatch):
    monkeypatch.setattr("serving.server.IDLE_SECONDS", 0.3)
    head = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: "
    with http_running.Running(models) as running, sockets(running, 1, head) as (connection,):
        connection.settimeout(0.01)
        with contextlib.suppress(ConnectionResetError, BrokenPipeError):
            for _ in range(10_000):  # until it is closed
                connection.sendall(b"x")
                with contextlib.suppress(TimeoutError):
                    assert connection.recv(1) == b""
                    break
        until(lambda: not running._server.server_state.connections)


def test_a_request_at_work_is_not_idle_however_long_it_takes(models, monkeypatch):
    monkeypatch.setattr("serving.server.IDLE_SECONDS", 0.05)
    control = models.controls["voice", 1]
    with http_running.Running(models) as running:
        control.open.clear()
        with sockets(running, 1, HEAD % len(INFER) + INFER.encode()) as (connection,):
            until(control.entered.is_set)
            with sockets(running, 1) as (silent,):
                assert is_closed(silent)  # its time has passed, and so has that of the other
            control.open.set()
            assert connection.recv(100).startswith(b"HTTP/1.1 200")


def test_bodies_together_have_a_limit_and_give_back_what_they_held(models):
    size = 100_000
    stalled = HEAD % size + b" " * (size - 1)
    with http_running.Running(models, max_body_mib=0.1, timeout_seconds=60.0) as running:
        with sockets(running, BODIES_AT_ONCE + 1, stalled):
            until(lambda: asked(running, body=INFER.ljust(size)) == 503)
        until(lambda: asked(running, body=INFER.ljust(size)) == 200)
        text = running.metrics.render()[0]
    assert b'onepass_refused_total{what="v2"}' in text


class Silent:
    """gRPC calls of a method that send no message: `answers` are their futures."""

    def __init__(self, channel, path, count):
        self._end = threading.Event()
        method = channel.stream_unary(path)
        self.answers = [method.future(self._nothing(), timeout=60) for _ in range(count)]

    def _nothing(self):
        self._end.wait(60)
        yield from ()

    def statuses(self):
        return [answer.code().name for answer in self.answers if answer.done()]

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self._end.set()
        for answer in self.answers:
            answer.cancel()


def test_grpc_refuses_more_calls_than_there_may_be(models, monkeypatch):
    monkeypatch.setattr("serving.grpc.server.MAX_CALLS", PLACES)
    with (
        grpc_running.Running(models, timeout_seconds=60.0) as running,
        running.channel() as strangers,
        running.channel(use_local_subchannel_pool=1) as channel,
        Silent(strangers, GRPC_PREDICT, 2 * PLACES) as silent,
    ):
        until(lambda: len(silent.statuses()) == PLACES)
        assert set(silent.statuses()) == {"RESOURCE_EXHAUSTED"}
        for answer in silent.answers:
            answer.cancel()
        until(lambda: can_predict(channel))


def test_silent_connections_of_grpc_end_in_their_time(models, monkeypatch):
    monkeypatch.setattr("serving.grpc.server.MAX_CONNECTIONS", PLACES)
    monkeypatch.setattr("serving.grpc.server.HANDSHAKE_SECONDS", 1)
    with grpc_running.Running(models) as running, sockets(running, PLACES) as silent:
        assert all(map(is_closed, silent))
        with running.channel(use_local_subchannel_pool=1) as channel:
            until(lambda: can_predict(channel))


def can_predict(channel):
    with contextlib.suppress(grpc.RpcError):
        return bool(predict(channel, predict_request()))


@pytest.mark.parametrize(
    ("path", "timeout_seconds", "token", "status"),
    [
        (CHECK, 60.0, "", "DEADLINE_EXCEEDED"),  # of a probe, which needs no token, sooner
        (GRPC_PREDICT, 0.2, "", "DEADLINE_EXCEEDED"),
        (GRPC_PREDICT, 60.0, TOKEN, "UNAUTHENTICATED"),
    ],
)
def test_a_message_that_never_comes_is_given_up_at_once_without_the_token(
    models, monkeypatch, path, timeout_seconds, token, status
):
    monkeypatch.setenv("ONEPASS_TOKEN", token)
    monkeypatch.setattr("serving.grpc.server.SILENT_SECONDS", 0.1)
    with (
        grpc_running.Running(models, timeout_seconds=timeout_seconds) as running,
        running.channel() as channel,
        Silent(channel, path, 1) as silent,
    ):
        until(silent.statuses)
        assert silent.statuses() == [status]


# Heads and bodies that are refused, and the connection that ends with them

START = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
END = b"\r\n\r\n"
POST = b"POST /v1/audio/speech HTTP/1.1\r\nHost: localhost\r\n"
CHUNKED = b"2\r\n{}\r\n0\r\n\r\n"
LAST = START + b"Connection: close" + END
FIELDS = b"a: b\r\n" * 100_000


def answers(running, *packets, ends=False):
    """Return all that comes back until the server closes the connection."""
    received = b""
    with running.connection() as connection, contextlib.suppress(ConnectionError):
        for packet in packets:
            connection.sendall(packet)
        if ends:
            connection.shutdown(socket.SHUT_WR)
        while part := connection.recv(1 << 16):
            received += part
    return received


@pytest.mark.parametrize("cut", ["whole", "in pieces", "pipelined"])
@pytest.mark.parametrize(
    ("size", "status"), [(HEAD_BYTES, b"200"), (HEAD_BYTES + 1, b"400"), (70_000, b"400")]
)
def test_a_head_has_at_most_64_kib_however_it_comes(running, cut, size, status):
    head = START + b"X: ".ljust(size - len(START) - len(END), b"x") + END
    packets = {
        "whole": [head + LAST],
        "in pieces": [head[:5], head[5:-1], head[-1:] + LAST],
        "pipelined": [START + b"\r\n" + head + LAST],
    }[cut]
    received = answers(running, *packets)
    heads = received.count(b"HTTP/1.1 ")
    before = cut == "pipelined"
    if status == b"200":
        assert received.count(b"HTTP/1.1 200 ") == heads == 2 + before
    else:  # a reset of the connection may overtake the answer
        assert received.count(b"HTTP/1.1 200 ") <= before
        assert received.count(b"HTTP/1.1 400 ") == 1 or size - HEAD_BYTES > 1


@pytest.mark.parametrize(
    "sent",
    [
        *(START + b"x: " + b"y" * 400_000, b"GET /" + b"y" * 400_000, START + FIELDS),
        POST + b"Transfer-Encoding: chunked" + END + b"0\r\n" + FIELDS,
        *(b"\x00" * 99, b"GET / HTTP/9.9\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc"),
        b"GET http://evil.example/ HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    ],
    ids=["field", "path", "fields", "trailers", "zeros", "version", "TLS", "address"],
)
def test_a_head_without_end_or_that_is_none_is_refused_and_the_connection_closed(running, sent):
    received = answers(running, sent, ends=len(sent) < 100)
    assert b"Traceback" not in received
    assert received == b"" or received.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 404 "))
    assert running.client.get("/healthz").status_code == 200


@pytest.mark.parametrize("smuggled", [b"", LAST])
@pytest.mark.parametrize(
    "fields",
    [
        b"Content-Length: 2\r\nTransfer-Encoding: chunked",
        b"transfer-encoding: chunked\r\ncontent-length: 12",
        b"TRANSFER-ENCODING: Chunked\r\nX: 1\r\nCONTENT-LENGTH: 0",
    ],
)
def test_a_body_with_two_lengths_is_refused_and_ends_the_connection(running, fields, smuggled):
    received = answers(running, POST + fields + END + CHUNKED + smuggled)
    assert received.count(b"HTTP/1.1 ") == 1 and received.startswith(b"HTTP/1.1 400 ")
    assert b"connection: close" in received.lower()


LONG = b"y" * 600_000


@pytest.mark.parametrize("pieces", [1, 3, 200])
@pytest.mark.parametrize("body", [b"{}", LONG, CHUNKED])
def test_a_body_with_one_length_is_no_head_and_keeps_the_connection(running, body, pieces):
    field = b"Content-Length: %d" % len(body) if body != CHUNKED else b"Transfer-Encoding: chunked"
    size = max(1, len(body) // pieces)
    parts = [body[start : start + size] for start in range(0, len(body), size)]
    received = answers(running, *2 * [POST + field + END, *parts], LAST)
    assert received.count(b"HTTP/1.1 ") == 3 and received.count(b"HTTP/1.1 200 ") == 1


@pytest.mark.parametrize("field", [b"Content-Length: 500", b"Transfer-Encoding: chunked"])
def test_a_body_that_ends_before_its_length_is_answered(running, field):
    received = answers(running, POST + field + END + b"20\r\n{", ends=True)
    words = b"The connection ended before the body of the request did."
    assert received.startswith(b"HTTP/1.1 400 ") and words in received
