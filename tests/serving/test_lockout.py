"""Clients that keep connections, calls, bodies or streams without using them keep nobody out."""

import asyncio
import contextlib
import http.client
import json
import socket
import threading

import grpc
import grpc_running
import http_running
import pytest
from fake_bundle import CHANNELS
from grpc_health.v1 import health_pb2, health_pb2_grpc
from serve_load import GRPC_PREDICT, INFER, predict, predict_request, until

from serving.engine import admission
from serving.engine.auth import ATTEMPTS_AT_ONCE, FREE_MISTAKES, TokenAuth
from serving.engine.clients import Client
from serving.engine.tokens import Token
from serving.errors import TooManyRequests, Unauthorized
from serving.server import Server
from serving.settings import Settings

TOKEN = "a token of enough letters"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
INFER_PATH = "/v2/models/voice/infer"
CHECK = "/grpc.health.v1.Health/Check"
PLACES = 8


@pytest.fixture
def models(tmp_path):
    return http_running.store(tmp_path)


@pytest.fixture
def few_places(monkeypatch):
    monkeypatch.setattr(admission, "MAX_CONNECTIONS", PLACES)
    monkeypatch.setattr(admission, "MAX_CALLS", PLACES)


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


@pytest.mark.parametrize("sent", [b"", b"POST / HTTP/1.1\r\nHo"], ids=["nothing", "half a head"])
def test_idle_connections_make_room(models, few_places, sent):
    with http_running.Running(models) as running, sockets(running, 2 * PLACES, sent):
        assert asked(running, "GET", "/healthz", None) == 200
        until(lambda: asked(running) == 200)
        text = running.metrics.render()[0]
    assert b'onepass_refused_total{what="connections"}' in text


def test_connections_that_all_work_leave_room_for_probes_and_for_the_token(
    models, few_places, monkeypatch
):
    monkeypatch.setenv("ONEPASS_TOKEN", TOKEN)
    control = models.controls["voice", 1]
    control.open.clear()
    head = f"POST {INFER_PATH} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n"
    request = f"{head}Content-Length: {len(INFER)}\r\n\r\n{INFER}".encode()
    with (
        http_running.Running(models) as running,
        sockets(running, PLACES, request),
        sockets(running, PLACES // 2, request, "127.0.0.2"),
    ):
        until(lambda: running.registry.get("voice")._active >= PLACES)
        assert asked(running, "GET", "/healthz", None) == 200
        assert asked(running, "GET", "/v2", None, **BEARER) == 200
        control.open.set()


def test_bodies_that_stand_still_make_room(models):
    size = 100_000
    head = f"POST {INFER_PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {size}\r\n\r\n"
    stalled = head.encode() + b" " * (size - 1)
    with (
        http_running.Running(models, max_body_mib=0.1, timeout_seconds=60.0) as running,
        sockets(running, 20, stalled) as connections,
    ):
        until(lambda: asked(running, body=INFER.ljust(size)) == 200)
        ended = connections[0].recv(100)
    assert ended.startswith(b"HTTP/1.1 503")


def test_a_body_that_comes_to_a_stop_is_given_up_before_the_deadline(models, monkeypatch):
    monkeypatch.setattr("serving.http.request_bodies.SILENT_SECONDS", 0.1)
    head = f"POST {INFER_PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n".encode()
    with (
        http_running.Running(models, timeout_seconds=60.0) as running,
        sockets(running, 1, head) as (connection,),
    ):
        assert connection.recv(100).startswith(b"HTTP/1.1 408")


class Silent:
    """gRPC calls of a method that send no message: `answers` are their futures."""

    def __init__(self, channel, path, count, metadata=()):
        self._end = threading.Event()
        method = channel.stream_unary(path)
        self.answers = [
            method.future(self._nothing(), timeout=60, metadata=metadata) for _ in range(count)
        ]

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


def metadata_of(headers):
    return tuple((name.lower(), value) for name, value in headers.items())


def test_silent_probes_keep_out_neither_probes_nor_those_with_the_token(
    models, few_places, monkeypatch
):
    monkeypatch.setenv("ONEPASS_TOKEN", TOKEN)
    with (
        grpc_running.Running(models) as running,
        running.channel() as strangers,
        grpc.insecure_channel(running.address, [("grpc.use_local_subchannel_pool", 1)]) as channel,
        Silent(strangers, CHECK, 3 * PLACES) as silent,
    ):
        until(lambda: len(silent.statuses()) >= 2 * PLACES)
        predict(channel, predict_request(), metadata=metadata_of(BEARER))
        assert set(silent.statuses()) == {"UNAVAILABLE"}
        check = health_pb2_grpc.HealthStub(channel).Check
        assert check(health_pb2.HealthCheckRequest(), timeout=10).status == 1


def test_messages_that_do_not_come_are_bounded_by_bytes(models):
    with (
        grpc_running.Running(models, max_body_mib=0.1, timeout_seconds=60.0) as running,
        running.channel() as strangers,
        running.channel(use_local_subchannel_pool=1) as channel,
        Silent(strangers, GRPC_PREDICT, 3 * admission.BODIES_AT_ONCE) as silent,
    ):
        until(lambda: len(silent.statuses()) >= 2 * admission.BODIES_AT_ONCE)
        assert set(silent.statuses()) == {"UNAVAILABLE"}
        predict(channel, predict_request())


def test_a_probe_that_says_nothing_is_given_up_before_the_deadline(models, monkeypatch):
    monkeypatch.setattr("serving.grpc.interceptor.SILENT_SECONDS", 0.1)
    with (
        grpc_running.Running(models, timeout_seconds=60.0) as running,
        running.channel() as channel,
        Silent(channel, CHECK, 1) as silent,
    ):
        until(silent.statuses)
        assert silent.statuses() == ["DEADLINE_EXCEEDED"]


def test_bodies_and_messages_share_one_budget(models):
    """Messages on their way over gRPC make room for a body over HTTP."""
    settings = Settings(port=0, grpc_port=0, max_body_mib=0.1, poll_seconds=1000.0)
    size = settings.max_body_bytes

    async def post(address):
        reader, writer = await asyncio.open_connection(*address.split(":"))
        head = f"POST {INFER_PATH} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        writer.write(f"{head}Content-Length: {size}\r\n\r\n{INFER.ljust(size)}".encode())
        answer = await reader.read()
        writer.close()
        return answer[:12]

    async def run():
        registry, metrics = grpc_running.registry_of(models, settings)
        server = Server(registry, settings, metrics)
        await server.start()
        await registry.initial_load_done()
        async with grpc.aio.insecure_channel(server.grpc_address) as channel:
            calls = [channel.stream_unary(GRPC_PREDICT)() for _ in range(admission.BODIES_AT_ONCE)]
            async with asyncio.timeout(20):
                while server._admission.bodies.used < 12 * size:
                    await asyncio.sleep(0.01)
                answer = await post(server.http_address)
                while answer != b"HTTP/1.1 200":
                    answer = await post(server.http_address)
            while not any(call.done() for call in calls):
                await asyncio.sleep(0.01)
            for call in calls:
                call.cancel()
        assert await server.stop()

    asyncio.run(run())


def test_a_stalled_upload_of_one_client_leaves_room_for_others(models):
    size = 100_000
    head = f"POST {INFER_PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {size}\r\n\r\n"
    stalled = head.encode() + b" " * (size - 1)
    with (
        http_running.Running(models, max_body_mib=0.1, timeout_seconds=60.0) as running,
        sockets(running, 40, stalled, "127.0.0.2"),
    ):
        assert asked(running, body=INFER.ljust(size)) == 200


def test_wrong_tokens_are_answered_late_and_right_ones_at_once(monkeypatch):
    slept = []

    async def sleep(seconds):
        slept.append(seconds)

    monkeypatch.setattr("serving.engine.auth.asyncio.sleep", sleep)
    auth, anna = TokenAuth(lambda: {"": Token(TOKEN)}), Client("10.0.0.1", "10.0.0.1")

    async def run():
        for _ in range(FREE_MISTAKES + 3):
            with pytest.raises(Unauthorized):
                await auth.check("/v2", b"Bearer wrong", anna)
        assert len(slept) == 3
        assert await auth.check("/v2", b"Bearer " + TOKEN.encode(), anna) == ""
        assert len(slept) == 3

    asyncio.run(run())


def test_a_client_cannot_try_many_tokens_at_once(monkeypatch):
    asleep = asyncio.Event()

    async def sleep(seconds):
        await asleep.wait()

    monkeypatch.setattr("serving.engine.auth.asyncio.sleep", sleep)
    anna, ben = Client("10.0.0.1", "10.0.0.1"), Client("10.0.0.2", "10.0.0.2")
    right = b"Bearer " + TOKEN.encode()

    async def run():
        auth = TokenAuth(lambda: {"": Token(TOKEN)})
        await auth.check("/v2", right, ben)
        for client in (anna, ben):
            for _ in range(FREE_MISTAKES * (client is anna)):
                with pytest.raises(Unauthorized):
                    await auth.check("/v2", b"Bearer wrong", client)
            tries = [auth.check("/v2", b"Bearer wrong", client) for _ in range(ATTEMPTS_AT_ONCE)]
            for one in tries:
                asyncio.ensure_future(one).add_done_callback(lambda task: task.exception())
        await asyncio.wait([asyncio.ensure_future(asyncio.to_thread(int))])
        with pytest.raises(TooManyRequests):  # not even compared
            await auth.check("/v2", right, anna)
        assert await auth.check("/v2", right, ben) == ""  # who had a right one before
        asleep.set()

    asyncio.run(run())


@pytest.mark.parametrize("path", ["/healthz", "/", CHECK])
def test_open_paths_know_who_bears_the_token(path):
    auth, anna = TokenAuth(lambda: {"": Token(TOKEN)}), Client()
    given = {b"": False, b"Bearer wrong": False, b"Bearer " + TOKEN.encode(): True}
    for authorization, has_token in given.items():
        found = asyncio.run(auth.check(path, authorization, anna))
        assert found == ("" if has_token else None)


def test_log_lines_name_the_client(models, caplog):
    caplog.set_level("INFO", "serving")
    with (
        http_running.Running(models) as running,
        sockets(running, 1, b"GET /v2 HTTP/1.1\r\nHost: localhost\r\n\r\n", "127.0.0.7") as (
            connection,
        ),
    ):
        assert connection.recv(100).startswith(b"HTTP/1.1 200")
        until(lambda: [r for r in caplog.records if r.message == "GET /v2"])
    with grpc_running.Running(models) as running, running.channel() as channel:
        predict(channel, predict_request())
        until(lambda: [r for r in caplog.records if r.message == "answered"])
    clients = {
        r.message: r.fields["client"]
        for r in caplog.records
        if hasattr(r, "fields")
        if "client" in r.fields
    }
    assert clients["GET /v2"] == "127.0.0.7" and clients["answered"] == "127.0.0.1"


def test_a_client_that_has_sent_all_and_says_so_is_answered(models):
    control = models.controls["voice", 1]
    control.open.clear()
    head = f"POST {INFER_PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(INFER)}\r\n\r\n"
    with http_running.Running(models) as running, running.connection() as connection:
        connection.sendall((head + INFER).encode())
        connection.shutdown(socket.SHUT_WR)
        assert control.entered.wait(10)
        control.open.set()
        data = b""
        while piece := connection.recv(65536):
            data += piece
    assert b"HTTP/1.1 200 OK" in data and json.loads(data.rpartition(b"\r\n\r\n")[2])["outputs"]
    assert data.replace(b"HTTP/1.1 100 Continue\r\n\r\n", b"").startswith(b"HTTP/1.1 200 OK")


def test_a_client_that_has_left_ends_its_work(models):
    """It closes its socket, which looks as if it had only sent all, until it is written to."""
    control = models.controls["voice", 1]
    control.open.clear()
    head = f"POST {INFER_PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(INFER)}\r\n\r\n"
    with http_running.Running(models) as running:
        with sockets(running, 2, (head + INFER).encode()):
            until(lambda: running.registry.get("voice")._active == 2)
        until(lambda: b'status="cancelled"} 2.0' in running.metrics.render()[0])
        control.open.set()
    assert len(control.calls) == 1


def test_frames_of_a_request_are_counted_before_they_are_read(models):
    values = json.dumps({"frames": [[0] * CHANNELS] * 140_000})
    answer = http_running.ask(models, "POST", "/v1/models/voice:speak", content=values)
    assert answer.status_code == 400 and "at most" in answer.json()["error"]
