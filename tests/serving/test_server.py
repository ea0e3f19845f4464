import asyncio
import contextlib
import importlib.util
import json
import re
import signal
import socket
import threading
import time
from unittest import mock

import grpc
import pytest
from fake_bundle import HOP
from grpc_health.v1 import health_pb2, health_pb2_grpc
from registries import until
from serve_command import Command

import onepass
import onepass.command.verbs
from serving import observability
from serving.command import check_models_folder
from serving.engine.clients import read_tokens
from serving.engine.registry import ModelRegistry
from serving.observability import Metrics
from serving.server import Server, ready_line
from serving.settings import Settings

BODY = json.dumps({"instances": [{"frames": [[0.0] * 3] * 3, "num_frames": 3}]})
TOKEN = "a token of enough letters"


class Log:
    """Nothing waits to be written."""

    def write_all(self):
        return True


@pytest.fixture(autouse=True)
def apart(monkeypatch):
    """The command in this process brings no TensorFlow, and leaves the log to the other tests."""
    monkeypatch.setattr(onepass.command.verbs, "_import_tensorflow_quietly", lambda: None)
    monkeypatch.setattr(observability, "configure_logging", lambda *how, **more: Log())


@contextlib.contextmanager
def a_call_under_way(command):
    """A prediction that has left the queue and is being made."""
    with contextlib.closing(command.connection()) as asking:
        asking.request("POST", "/v1/models/voice:predict", BODY)
        command.wait_for('onepass_calls_running{model="voice"}', 1.0)
        yield


def ask(connection):
    """The status of one prediction, its answer checked."""
    connection.request("POST", "/v1/models/voice:predict", BODY)
    answer = connection.getresponse()
    content = json.loads(answer.read())
    if answer.status == 200:
        assert len(content["predictions"][0]["sound"]) == 3 * HOP
    return answer.status


@pytest.mark.integration
def test_the_command_answers_over_both_protocols_and_leaves_at_sigterm(store):
    store.add()
    with Command(store, "--log-format", "json") as command:
        assert command.names == "voice"
        with contextlib.closing(command.connection()) as connection:
            assert ask(connection) == 200
        with grpc.insecure_channel(command.grpc_address) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            answer = stub.Check(health_pb2.HealthCheckRequest(service="voice"), timeout=10)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        assert command.ended(signal.SIGTERM) == 0
    lines = command.process.output().splitlines()
    records = [json.loads(line) for line in lines if not line.startswith("serving ")]
    assert {line["message"] for line in records} >= {"loading", "ready"}


@pytest.mark.integration
def test_ctrl_c_asks_it_to_leave_as_well(store):
    with Command(store) as command:
        assert command.names == "no model yet"
        assert command.ended(signal.SIGINT) == 0


class Client(threading.Thread):
    """Asks until nobody listens; anything else that goes wrong is a failure."""

    def __init__(self, command, keeps, started):
        super().__init__(daemon=True)
        self.command, self.keeps, self.started = command, keeps, started
        self.statuses, self.failures = [], []

    def run(self):
        connection = self.command.connection()
        while True:
            try:
                connection.connect()
            except OSError:  # nobody accepted it
                return
            try:
                for _ in range(50 if self.keeps else 1):
                    self.statuses.append(ask(connection))
                    self.started.release()
                    if connection.sock is None:
                        break
            except ConnectionError:  # closed before the request was read; the log tells
                return
            except Exception as error:
                self.failures.append(repr(error))
                return
            finally:
                connection.close()


@pytest.mark.integration
def test_every_accepted_request_is_answered_when_the_server_leaves_under_load(store):
    store.add(seconds=0.01)
    started = threading.Semaphore(0)
    with Command(store) as command:
        clients = [Client(command, number % 2 == 0, started) for number in range(12)]
        for client in clients:
            client.start()
        for _ in range(60):
            assert started.acquire(timeout=10)
        store.add(version=2, seconds=0.01)  # and a reload on the way
        for _ in range(60):
            assert started.acquire(timeout=10)
        assert command.ended(signal.SIGTERM) == 0
        for client in clients:
            client.join(10)
    assert [failure for client in clients for failure in client.failures] == []
    assert {status for client in clients for status in client.statuses} == {200}
    answered = sum(len(client.statuses) for client in clients)
    log = command.process.output()
    assert len(re.findall(r":predict request=\w+ status=200 code=ok ", log)) == answered
    assert "code=cancelled" not in log and "unloaded model=voice version=1" in log


@pytest.mark.integration
def test_a_call_that_hangs_does_not_keep_the_process(store):
    store.add(seconds=60)
    with Command(store, "--drain-seconds", 0.3) as command, a_call_under_way(command):
        assert command.ended(signal.SIGTERM) == 128 + signal.SIGTERM


@pytest.mark.integration
def test_a_second_signal_insists(store):
    store.add(seconds=60)
    with Command(store, "--drain-seconds", 60) as command, a_call_under_way(command):
        command.process.signal(signal.SIGTERM)
        end = time.monotonic() + 10
        while "SIGTERM" not in command.process.output() and time.monotonic() < end:
            time.sleep(0.02)
        assert command.ended(signal.SIGTERM, 3) == 128 + signal.SIGTERM


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "example.org"])
def test_others_are_not_let_in_without_a_token(store, mistake, monkeypatch, host):
    monkeypatch.delenv("ONEPASS_TOKEN", raising=False)
    assert "requires a token: --token-file FILE" in mistake("serve", store.root, "--host", host)


def test_a_token_that_anybody_could_guess_is_refused(store, mistake, monkeypatch, tmp_path):
    monkeypatch.setenv("ONEPASS_TOKEN", "short")
    assert "ONEPASS_TOKEN must be at least 16" in mistake("serve", store.root)
    (tmp_path / "token").write_text("\n")
    line = mistake("serve", store.root, "--token-file", tmp_path / "token")
    assert "token must be at least 16" in line
    assert "Cannot read the token file" in mistake("serve", store.root, "--token-file", "no/file")


def test_the_token_comes_from_the_file_or_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("ONEPASS_TOKEN", TOKEN)
    assert read_tokens(Settings()) == (TOKEN,)
    (tmp_path / "token").write_text(f"another {TOKEN}\n")
    assert read_tokens(Settings(token_file=tmp_path / "token")) == (f"another {TOKEN}",)


@pytest.mark.parametrize("option", ["--port", "--grpc-port"])
def test_a_port_in_use_is_one_line(store, mistake, option):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ports = {"--port": "0", "--grpc-port": "0", option: str(port)}
        words = [word for pair in ports.items() for word in pair]
        line = mistake("serve", store.root, *words)
    assert line == f"Cannot listen on 127.0.0.1:{port}: Address already in use."


def test_missing_packages_are_one_line_that_says_what_to_do(store, mistake, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "uvicorn" else found(name)
    )
    line = mistake("serve", store.root)
    assert line == "Serving needs more packages (uvicorn): pip install 'onepass[serve]'"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--queue-rows", "0"), "`--queue-rows` must be at least 1, got 0."),
        (("--timeout-seconds", "nan"), "`--timeout-seconds` must be at least 0.001, got nan."),
        (("--port", "70000"), "`--port` must be at most 65535, got 70000."),
        (("--port", "9000", "--grpc-port", "9000"), "`--grpc-port` must differ, both are 9000."),
        (("--prot", "1"), "did you mean --port?"),
        (("--weights", "int4"), "int4"),
    ],
)
def test_settings_that_cannot_be_are_one_line(store, mistake, words, said):
    assert said in mistake("serve", store.root, *words)


async def echo(scope, receive, send):
    """An application that answers once the body is there."""
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})


@contextlib.asynccontextmanager
async def serving(store, app=echo, **settings):
    given = Settings(port=0, grpc_port=-1, poll_seconds=1000.0, **settings)
    registry = ModelRegistry(store.root, given, store.load)
    with mock.patch("serving.server.make_app", lambda *parts: app):
        server = Server(registry, given, Metrics())
    await server.start()
    host, port = server.http_address.split(":")
    try:
        yield server, lambda: asyncio.open_connection(host, int(port))
    finally:
        await server.stop()


async def test_the_ready_line_leaves_out_what_is_not(store):
    store.add()
    store.add("broken", load_fails=True)
    async with serving(store) as (server, _):
        await server.registry.initial_load_done()
        assert re.fullmatch(r"serving voice at http://127\.0\.0\.1:\d+", ready_line(server))


async def test_a_request_under_way_is_answered_and_its_connection_closed_when_the_server_leaves(
    store,
):
    under_way, finish = asyncio.Event(), asyncio.Event()

    async def slow(scope, receive, send):
        under_way.set()
        await finish.wait()
        await echo(scope, receive, send)

    async with serving(store, slow) as (server, connect):
        reader, writer = await connect()
        writer.write(GET)
        await under_way.wait()
        stopping = asyncio.create_task(server.stop())
        await until(lambda: not server._http.servers[0].is_serving())
        with pytest.raises(OSError):
            await connect()
        finish.set()
        answer = await reader.read()  # to the end
        assert await stopping is True
        writer.close()
        answer = answer
    assert answer.startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1\r\nx: " + b"y" * 400_000,
        b"GET /" + b"y" * 400_000,
        b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 100_000,
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n"
        + b"a: b\r\n" * 100_000,
    ],
    ids=["field", "path", "fields", "trailers"],
)
async def test_a_head_without_end_is_refused(store, head):
    async with serving(store) as (_, connect):
        reader, writer = await connect()
        writer.write(head)
        async with asyncio.timeout(5):
            with contextlib.suppress(ConnectionResetError):
                answer = await reader.read(12)
                assert answer == b"HTTP/1.1 400"
                await reader.read()  # closed
        writer.close()


@pytest.mark.parametrize("pieces", [1, 3, 200])
async def test_a_long_body_is_no_head(store, pieces):
    body = b"y" * 600_000
    head = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 600000\r\n\r\n"
    async with serving(store) as (_, connect):
        reader, writer = await connect()
        size = len(body) // pieces
        for _ in range(2):  # the second on the same connection
            writer.write(head)
            for start in range(0, len(body), size):
                writer.write(body[start : start + size])
                await writer.drain()
            async with asyncio.timeout(5):
                answer = await reader.readuntil(b"\r\n0\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 200")
        writer.close()


GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
LARGE_BYTES = 32 * 2**20  # more than the system takes off the server's hands


async def large(scope, receive, send):
    """An application with a long answer."""
    headers = [(b"content-length", str(LARGE_BYTES).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": bytes(LARGE_BYTES)})


async def test_a_long_answer_that_is_being_taken_is_whole_when_the_server_leaves(store):
    async with serving(store, large) as (server, connect):
        reader, writer = await connect()
        writer.write(GET)
        await reader.readuntil(b"\r\n\r\n")
        stopping = asyncio.create_task(server.stop())
        await asyncio.sleep(2.0)  # a reader slower than the server's last steps
        assert await reader.readexactly(LARGE_BYTES) == bytes(LARGE_BYTES)
        assert await stopping is True
        writer.close()


async def test_what_does_not_end_in_time_is_cut_off_and_reported(store):
    async def never(scope, receive, send):
        await asyncio.Event().wait()

    async with serving(store, never, drain_seconds=0.1) as (server, connect):
        reader, writer = await connect()
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await asyncio.sleep(0.05)
        assert await server.stop() is False
        async with asyncio.timeout(5):
            await reader.read()
        writer.close()


@pytest.fixture
def models(tmp_path):
    """A folder of models with `voice` in version 1."""
    bundle = tmp_path / "models" / "voice" / "1"
    bundle.mkdir(parents=True)
    (bundle / "manifest.json").write_text("{}")
    (bundle / "model.json").write_text(json.dumps({"kind": "student"}))
    return tmp_path / "models"


def test_a_folder_that_is_not_there_is_one_line(store, mistake):
    assert mistake("serve", store.root / "no") == f"There is no folder {store.root / 'no'}."


def test_models_and_an_empty_folder_are_served(models, tmp_path):
    check_models_folder(models)
    check_models_folder(tmp_path / "nothing yet")


@pytest.mark.parametrize(
    ("inside", "said"),
    [
        ("voice", " is a single model; name the folder above it, {models}."),
        ("voice/1", " is one version of a model; pass the folder of all models, {models}."),
    ],
)
def test_a_part_of_the_folder_of_models_names_the_whole(mistake, models, inside, said):
    assert mistake("serve", models / inside) == f"{models / inside}{said.format(models=models)}"


def test_a_bundle_that_lies_elsewhere_says_where_it_belongs(mistake, models):
    bundle = (models / "voice" / "1").rename(models.parent / "bundle")
    said = "is one version of a model; pass MODELS, with this folder moved to MODELS/NAME/1."
    assert mistake("serve", bundle) == f"{bundle} {said}"


@pytest.mark.parametrize(
    ("file", "kind", "what"),
    [("config.json", "wavenet", "a run"), ("model.json", "pixelcnn", "a model folder")],
)
def test_a_run_and_a_model_folder_say_how_they_are_exported(mistake, tmp_path, file, kind, what):
    folder = tmp_path / "it"
    folder.mkdir()
    (folder / file).write_text(json.dumps({"kind": kind}))
    assert mistake("serve", folder) == (
        f"{folder} is {what} of a {kind}, which cannot be served: export it with "
        f"`onepass export {folder} --out MODELS/NAME/1`, and pass MODELS."
    )
