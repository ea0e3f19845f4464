"""Clients, disks and versions that fail a running `onepass serve`, over real sockets."""

import contextlib
import json
import signal
import threading

import grpc
import pytest
from fake_bundle import CHANNELS, HOP, FakeModelStore
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2_grpc
from relay import Relay
from serve_command import Command
from serve_load import GRPC_PREDICT, INFER, method, predict_request, speak, until

pytestmark = pytest.mark.integration

INFER_PATH = "/v2/models/voice/infer"
TIMEOUT_SECONDS = 3
GROWTH_MIB = 32  # that a listener may cost: some chunks, and what the system's buffers hold
STREAMS = 'onepass_streams{{model="{}"}}'


def store(root):
    made = FakeModelStore(root / "models")
    made.root.mkdir()
    return made


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """`voice`, one whose chunks take time and one without end."""
    models = store(tmp_path_factory.mktemp("faults"))
    models.add("voice", seconds=0.02)
    models.add("slow", chunk_seconds=0.02)
    models.add("endless", endless=True)
    limits = ("--timeout-seconds", TIMEOUT_SECONDS, "--max-streams", 1, "--queue-rows", 16)
    with Command(models, *limits) as command:
        yield command


@pytest.fixture(scope="module")
def channel(server):
    with server.channel() as channel:
        yield channel


@pytest.fixture
def fresh(tmp_path):
    return store(tmp_path)


def listen(server, name, count, receive_bytes=None):
    """A bare socket on which the sound of so many frames has been asked for."""
    body = json.dumps({"frames": [[0.5] * CHANNELS] * count, "format": "l16"}).encode()
    head = f"POST /v1/models/{name}:speak HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    connection = server.socket(receive_bytes)
    connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    return connection


def read_to_end(connection):
    data = b""
    while piece := connection.recv(65536):
        data += piece
    return data


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_listener_that_does_not_read_costs_little_and_loses_its_place(server, protocol):
    before = server.memory_mib()
    with contextlib.ExitStack() as stack:
        if protocol == "http":
            stack.enter_context(listen(server, "endless", 1, 4096))
        else:
            channel = stack.enter_context(server.channel())
            call = speak(channel, 1, name="endless", timeout=60)
            next(call)
        server.wait_for(STREAMS.format("endless"), 1.0)
        assert server.asked("POST", INFER_PATH, INFER)[0] == 200  # others do not notice
        server.wait_for(STREAMS.format("endless"), 0.0, seconds=TIMEOUT_SECONDS + 10)
    assert server.memory_mib() - before < GROWTH_MIB


def stall(server):
    """Six messages that stand still after 14 MB each, and then break off."""
    before, files = server.memory_mib(), server.count("fd")
    with contextlib.ExitStack() as stack:
        port = int(server.grpc_address.rpartition(":")[2])
        ways = [stack.enter_context(Relay(port, most=14_000_000)) for _ in range(6)]
        channels = [stack.enter_context(grpc.insecure_channel(way.address)) for way in ways]
        methods = [channel.unary_unary(GRPC_PREDICT) for channel in channels]
        answers = [method.future(bytes(15 * 2**20), timeout=120) for method in methods]
        assert all(way.stands_still.wait(60) for way in ways)
        held = server.memory_mib() - before
        assert not any(answer.done() for answer in answers)
        for way in ways:
            way.cut()
    until(lambda: server.count("fd") <= files, 60)
    return held


def test_messages_that_stand_still_leave_their_memory_to_the_next(fresh):
    fresh.add()
    with Command(fresh) as server:
        assert stall(server) > 2 * GROWTH_MIB
        most = server.memory_mib("VmHWM")
        # What the allocator keeps serves the next ones; six times 84 MB would not.
        for _ in range(6):
            stall(server)
        assert server.memory_mib("VmHWM") - most < 4 * GROWTH_MIB


def test_all_that_was_accepted_is_answered_when_the_server_leaves(fresh):
    fresh.add(seconds=1.5, chunk_seconds=0.02)
    asked = threading.Event()
    with Command(fresh) as command, contextlib.ExitStack() as stack:
        channels = [stack.enter_context(command.channel()) for _ in range(3)]
        ask = method(channels[0], GRPC_PREDICT, answer="tensorflow.serving.PredictResponse")
        calls = [ask.future(predict_request(), timeout=20) for _ in range(4)]
        asking = [stack.enter_context(contextlib.closing(command.connection())) for _ in range(4)]
        for connection in asking:
            connection.request("POST", INFER_PATH, INFER)
        heard = stack.enter_context(listen(command, "voice", 400))
        chunks = speak(channels[1])
        first = next(chunks)
        watch = health_pb2_grpc.HealthStub(channels[2]).Watch(health_pb2.HealthCheckRequest())
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
        questions = reflection_pb2_grpc.ServerReflectionStub(channels[2])
        described = questions.ServerReflectionInfo(slowly(asked))
        half = channels[2].stream_unary(GRPC_PREDICT).future(slowly(asked), timeout=20)
        command.wait_for(STREAMS.format("voice"), 2.0)
        command.wait_for('onepass_queue_rows{model="voice"}', 7.0)  # and one is being answered
        command.process.signal(signal.SIGTERM)
        sound = first.samples + b"".join(chunk.samples for chunk in chunks)
        assert len(sound) == 4 * 400 * HOP
        assert [call.result(20).model_spec.version.value for call in calls] == [1] * 4
        assert [connection.getresponse().status for connection in asking] == [200] * 4
        assert read_to_end(heard).endswith(b"\r\n0\r\n\r\n")
        assert [answer.status for answer in watch] == [health_pb2.HealthCheckResponse.NOT_SERVING]
        assert list(described) == []
        with pytest.raises(grpc.RpcError, match="The server is stopping"):
            half.result(20)
        assert command.process.ended(10) == 0
        asked.set()


def slowly(asked):
    """Messages that do not come."""
    asked.wait(30)
    yield from ()
