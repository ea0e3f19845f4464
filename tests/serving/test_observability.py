"""Logs, metrics and traces of the server."""

import asyncio
import contextlib
import contextvars
import http.client
import http.server
import io
import json
import logging
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import types

import numpy as np
import pytest
from fake_bundle import FakeSound
from loops import running
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from processes import ROOT
from serve_command import READY, SCRIPT

from onepass.bundles.errors import InvalidInput
from serving import observability
from serving.engine.registry import MISSED_SCANS
from serving.engine.served_model import ServedModel
from serving.observability import Metrics
from serving.settings import Settings

FRAMES = {"frames": np.ones([5, 3, 3], np.float32), "num_frames": np.full([5], 3, np.int32)}
REQUESTS = 1000  # whose lines are more than a pipe holds


@pytest.fixture
def configure_log():
    """Configures the log and returns what it has said."""
    kept = [(logging.getLogger(name), {}) for name in ("serving", "uvicorn", "grpc", "onepass")]
    for logger, state in kept:
        state.update(handlers=logger.handlers, propagate=logger.propagate, level=logger.level)
    written = io.StringIO()

    def configure_log(log_format, level="info"):
        handler = observability.configure_logging(log_format, level, written)
        return types.SimpleNamespace(getvalue=lambda: handler.write_all(5) and written.getvalue())

    yield configure_log
    for logger, state in kept:
        logger.__dict__.update(state)
        logger.setLevel(state["level"])


def in_a_request(function, given=None):
    """Calls the function within a request; returns the request's id."""

    def run():
        identity = observability.begin_request(given)
        function()
        return identity

    return contextvars.copy_context().run(run)


def test_no_text_can_forge_a_line_of_the_log(configure_log):
    written = configure_log("text")
    logger = logging.getLogger("serving.test")
    forged = "x\n2026-01-01T00:00:00.000Z info all is well\x1b[2J"
    observability.event(logger, f"asked for {forged}", name=forged, plain="voice/1")
    assert written.getvalue().count("\n") == 1 and "\x1b" not in written.getvalue()
    assert written.getvalue().endswith("plain=voice/1\n")


def test_a_line_bears_the_id_of_its_request(configure_log):
    written = configure_log("json", "info")
    logger = logging.getLogger("serving.test")
    observability.event(logger, "below the level", logging.DEBUG)
    identity = in_a_request(lambda: observability.event(logger, "within", rows=3), "client-7")
    observability.event(logger, "outside")
    within, outside = map(json.loads, written.getvalue().splitlines())
    assert identity == within["request"] == "client-7"
    assert (within["message"], within["rows"], within["level"]) == ("within", 3, "info")
    assert "request" not in outside


@pytest.mark.parametrize("given", [None, "", "two words", "line\nbreak", "x" * 65, "ü"])
def test_an_id_that_is_no_short_word_is_replaced(given):
    first, second = (in_a_request(lambda: None, given) for _ in range(2))
    assert re.fullmatch("[0-9a-f]{16}", first) and first != second


async def test_a_failure_in_the_model_is_in_the_log_with_the_id_of_its_request(configure_log):
    written = configure_log("json")
    bundle = FakeSound()
    bundle.control.fails_on = 0
    observability.begin_request("the-bad-one")
    with pytest.raises(Exception, match="see the server's log"):
        await ServedModel(bundle, Settings()).predict(FRAMES)
    lines = [json.loads(line) for line in written.getvalue().splitlines()]
    assert [line["request"] for line in lines] == ["the-bad-one"]
    assert "secret detail" in lines[0]["exception"]


def value(metrics, name, **labels):
    return metrics.registry.get_sample_value(name, labels)


async def test_what_a_model_does_is_counted():
    bundle, metrics = FakeSound("voice"), Metrics()
    served = ServedModel(bundle, Settings(), metrics)
    await served.predict(FRAMES)
    stream = served.stream(condition=np.zeros([200, 3], np.float32))
    await anext(stream)
    assert value(metrics, "onepass_streams", model="voice") == 1
    await stream.aclose()
    async with asyncio.timeout(5):
        while served.is_busy:
            await asyncio.sleep(0.001)
    assert bundle.control.rows == [4, 1]
    assert value(metrics, "onepass_batch_rows_sum", model="voice") == 5
    assert value(metrics, "onepass_call_seconds_count", model="voice") == 2
    assert value(metrics, "onepass_queue_seconds_count", model="voice") == 5
    for gauge in ("onepass_queue_rows", "onepass_calls_running", "onepass_streams"):
        assert value(metrics, gauge, model="voice") == 0


async def test_a_version_that_is_no_longer_served_is_no_longer_shown(store):
    metrics = Metrics()
    store.add(version=1)

    def shown():
        return re.findall(rb'onepass_model_version{model="voice"} (.*)', metrics.render()[0])

    async with running(store, metrics) as registry:
        assert shown() == [b"1.0"]
        store.add(version=2)
        await registry.rescan()
        assert shown() == [b"2.0"]
        store.add("other")  # a folder without any model could be a disk that is not there
        shutil.rmtree(store.root / "voice")
        for _ in range(MISSED_SCANS):
            await registry.rescan()
        assert shown() == []


def test_requests_are_counted_and_names_that_clients_invent_become_no_labels():
    metrics, labels = Metrics(), {"model": "voice", "protocol": "v2"}
    metrics.add_model("voice")
    for number in range(1000):
        metrics.request(f"guess {number}", "v2", "not_found", 0.001)
    received = {"received_bytes": 3, "sent_bytes": 5}
    metrics.request("voice", "v2", "ok", 2.0, first_byte_seconds=0.25, **received)
    metrics.request("voice", "v2", "cancelled", 2.0)
    metrics.request("voice", "grpc", "ok", 0.001)
    page = metrics.render()[0].decode()
    assert "guess" not in page and len(page.splitlines()) < 250
    name = "onepass_requests_total"
    assert value(metrics, name, model="", protocol="v2", status="not_found") == 1000
    assert value(metrics, "onepass_bytes_total", protocol="v2", direction="sent") == 5
    assert value(metrics, "onepass_first_byte_seconds_count", **labels) == 1
    assert value(metrics, "onepass_first_byte_seconds_sum", **labels) == 0.25
    assert value(metrics, "onepass_request_seconds_count", **labels) == 2
    # Which dashboards of TensorFlow Serving look for.
    assert ':tensorflow:serving:request_count{model_name="voice",status="OK"} 2.0' in page


@pytest.fixture
def spans():
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    assert observability.configure_tracing(provider)
    yield exporter
    observability.configure_tracing()


async def test_a_prediction_is_a_span_in_the_trace_of_its_client(spans):
    trace_id = "0af7651916cd43dd8448eb211c80319c"
    headers = {"traceparent": f"00-{trace_id}-b7ad6b7169203331-01"}
    with observability.span("request", headers):
        await ServedModel(FakeSound("voice"), Settings()).predict(FRAMES)
    predict, request = spans.get_finished_spans()
    assert (predict.name, request.name) == ("predict", "request")
    assert predict.parent.span_id == request.context.span_id
    assert f"{request.context.trace_id:032x}" == trace_id
    assert predict.attributes["model"] == "voice"


async def test_a_failed_span_says_that_and_nothing_of_why(spans):
    with pytest.raises(InvalidInput):
        await ServedModel(FakeSound(), Settings()).predict({"secret": [1]})
    (span,) = spans.get_finished_spans()
    assert not span.status.is_ok and span.events == ()
    assert "secret" not in str(span.to_json())


class Collector(http.server.BaseHTTPRequestHandler):
    """Takes what an exporter sends."""

    def do_POST(self):
        length = int(self.headers["content-length"])
        self.server.taken.append((self.path, self.rfile.read(length)))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *arguments):
        """Nothing."""


def test_spans_reach_a_collector_before_the_server_ends(monkeypatch):
    with http.server.HTTPServer(("127.0.0.1", 0), Collector) as collector:
        collector.taken = []
        threading.Thread(target=collector.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{collector.server_port}"
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", address)
        assert observability.configure_tracing()
        with observability.span("predict", model="voice"):
            assert not collector.taken
        observability.close()
        collector.shutdown()
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT")
    assert observability.configure_tracing() is False  # as nobody asks for it
    with observability.span("anything", {"traceparent": "nonsense"}):
        pass
    [(path, body)] = collector.taken
    assert path == "/v1/traces" and b"predict" in body and b"voice" in body and b"onepass" in body


def test_a_missing_exporter_is_said(monkeypatch, caplog):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    assert observability.configure_tracing() is False
    assert "pip install 'onepass[traces]'" in caplog.text


@pytest.mark.integration
def test_a_reader_of_the_log_that_hangs_stops_neither_answers_nor_the_end(store):
    store.add()
    words = [str(SCRIPT), str(store.root), "--port", "0", "--grpc-port", "0"]
    with subprocess.Popen(
        [sys.executable, *words],
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            port = int(READY.search(process.stdout.readline())[3])
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
            with contextlib.closing(connection):
                for _ in range(REQUESTS):
                    connection.request("GET", "/v2", headers={"x-request-id": "a" * 64})
                    answer = connection.getresponse()
                    answer.read()
                    assert answer.status == 200
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
        finally:
            process.kill()


class Gate(io.StringIO):
    """A stream that takes nothing until it is opened."""

    def __init__(self):
        super().__init__()
        self.opened, self.asked = threading.Event(), threading.Event()

    def write(self, text):
        self.asked.set()
        self.opened.wait(20)
        return super().write(text)


def test_lines_that_nobody_reads_are_lost_and_counted(monkeypatch):
    monkeypatch.setattr(observability, "MAX_LINES", 3)
    gate, lost = Gate(), []
    handler = observability.BackgroundHandler(gate, lambda: lost.append(True))
    logger = logging.Logger("test")
    logger.addHandler(handler)
    logger.warning("first")
    assert gate.asked.wait(10)  # it is being written
    for number in range(10):
        logger.warning("line %d", number)
    assert len(lost) == 7
    assert not handler.write_all(0.01)
    gate.opened.set()
    end = time.monotonic() + 10
    while "line 2" not in gate.getvalue():
        assert time.monotonic() < end
        time.sleep(0.01)
    assert gate.getvalue().splitlines() == [
        *("first", "7 lines of this log were lost", "line 0", "line 1", "line 2")
    ]
