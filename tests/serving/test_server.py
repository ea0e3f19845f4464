import asyncio
import contextlib
import importlib.util
import json
import re
import shutil
import signal
import socket
from unittest import mock

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from loops import until
from processes import wait_until
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


@pytest.mark.integration
def test_the_command_answers_over_both_protocols_and_leaves_at_sigterm(store):
    store.add()
    with Command(store, "--log-format", "json") as command:
        assert command.names == "voice"
        assert command.asked("POST", "/v1/models/voice:predict", BODY)[0] == 200
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


@pytest.mark.integration
@pytest.mark.parametrize(("drain_seconds", "signals"), [(0.3, 1), (60, 2)])
def test_a_call_that_hangs_keeps_no_process_and_a_second_signal_insists(
    store, drain_seconds, signals
):
    store.add(seconds=60)
    with (
        Command(store, "--drain-seconds", drain_seconds) as command,
        contextlib.closing(command.connection()) as asking,
    ):
        asking.request("POST", "/v1/models/voice:predict", BODY)
        command.wait_for('onepass_calls_running{model="voice"}', 1.0)
        if signals == 2:
            command.process.signal(signal.SIGTERM)
            wait_until(lambda: "SIGTERM" in command.process.output(), 10)
        assert command.ended(signal.SIGTERM) == 128 + signal.SIGTERM


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
        *((("--prot", "1"), "did you mean --port?"), (("--weights", "int4"), "int4")),
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
    assert answer.startswith(b"HTTP/1.1 200")


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
        await until(lambda: not server._http.servers[0].is_serving())  # a slow reader
        assert await reader.readexactly(LARGE_BYTES) == bytes(LARGE_BYTES)
        assert await stopping is True
        writer.close()


async def test_what_does_not_end_in_time_is_cut_off_and_reported(store):
    async def never(scope, receive, send):
        await asyncio.Event().wait()

    async with serving(store, never, drain_seconds=0.1) as (server, connect):
        reader, writer = await connect()
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        await until(lambda: server._http._in_progress.taken == 1)
        assert await server.stop() is False
        async with asyncio.timeout(5):
            await reader.read()
        writer.close()


def test_models_and_an_empty_folder_are_served(store, tmp_path):
    store.add()
    check_models_folder(store.root)
    check_models_folder(tmp_path / "nothing yet")


IS_ONE = "is one version of a model; pass"
EXPORT = "which cannot be served: export it with `onepass export {0} --out MODELS/NAME/1`, and pass"


@pytest.mark.parametrize(
    ("folder", "said"),
    [
        ("models/no", "There is no folder {0}."),
        ("models/voice", "{0} is a single model; name the folder above it, {1}."),
        ("models/voice/1", f"{{0}} {IS_ONE} the folder of all models, {{1}}."),
        ("bundle", f"{{0}} {IS_ONE} MODELS, with this folder moved to MODELS/NAME/1."),
        ("config.json", f"{{0}} is a run of a wavenet, {EXPORT} MODELS."),
        ("model.json", f"{{0}} is a model folder of a pixelcnn, {EXPORT} MODELS."),
    ],
)
def test_another_folder_says_which_one_is_meant(mistake, store, tmp_path, folder, said):
    store.add()
    shutil.copytree(store.root / "voice" / "1", tmp_path / "bundle")
    for file, kind in (("config.json", "wavenet"), ("model.json", "pixelcnn")):
        (tmp_path / file).mkdir()
        (tmp_path / file / file).write_text(json.dumps({"kind": kind}))
    given = tmp_path / folder
    assert mistake("serve", given) == said.format(given, store.root)
