"""The server's logs, metrics and traces."""

import contextlib
import contextvars
import functools
import json
import logging
import os
import queue
import re
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TextIO

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from onepass.bundles.errors import Overloaded

OWN_LOGGERS, OTHER_LOGGERS = ("serving", "onepass"), ("uvicorn", "grpc")
PLAIN = re.compile(r"[A-Za-z0-9_./:+@%-]+")
MAX_LINES = 10_000  # largest number of lines waiting to be written
ACCEPTED_ID = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
LOG = logging.getLogger(__name__)

_request_id: contextvars.ContextVar[str] = contextvars.ContextVar("request_id", default="")
request_id = _request_id.get  # of the current request; "" outside a request
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
ROWS = (1, 2, 4, 8, 16, 32, 64)
ENDPOINT_VARIABLES = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_provider: Any = None


def begin_request(given: str | None = None) -> str:
    """Set and return the id of a new request: the client's if it is valid, else a random one."""
    identity = given if given and ACCEPTED_ID.fullmatch(given) else secrets.token_hex(8)
    _request_id.set(identity)
    return identity


def event(logger: logging.Logger, message: str, level: int = logging.INFO, **fields: Any) -> None:
    """Log a message with fields."""
    logger.log(level, message, extra={"fields": fields})


class BackgroundHandler(logging.Handler):
    """A handler that writes lines in a separate thread, so logging never blocks.

    Lines that arrive while MAX_LINES are waiting are dropped, with a call of `on_lost` for each;
    the log later says how many were lost.
    """

    def __init__(self, stream: TextIO, on_lost: Callable[[], None] = lambda: None):
        super().__init__()
        self._stream, self._on_lost, self._lost = stream, on_lost, 0
        self._lines: queue.Queue[str | None] = queue.Queue(MAX_LINES)
        self._thread = threading.Thread(target=self._write, name="log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Queue the line for a record."""
        try:
            self._lines.put_nowait(self.format(record))
        except queue.Full:
            self._lost += 1
            self._on_lost()

    def write_all(self, seconds: float = 1.0) -> bool:
        """Write the waiting lines, end the thread in twice `seconds`; return whether it ended."""
        with contextlib.suppress(queue.Full):
            self._lines.put(None, timeout=seconds)
            self._thread.join(seconds)
        return not self._thread.is_alive()

    def _write(self) -> None:
        while (line := self._lines.get()) is not None:
            with contextlib.suppress(OSError, ValueError):  # the reader has closed the stream
                self._stream.write(f"{line}\n")
                lost, self._lost = self._lost, 0
                if lost:
                    self._stream.write(f"{lost} lines of this log were lost\n")
                self._stream.flush()


class Lines(logging.Formatter):
    """Formatter for lines of time, level, message and NAME=VALUE, or of one JSON object each."""

    def __init__(self, as_json: bool):
        super().__init__()
        self._as_json = as_json

    def format(self, record: logging.LogRecord) -> str:
        """Return the line; in text, no value has a line break, and any traceback follows."""
        whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        moment, level = f"{whole}.{int(record.msecs):03d}Z", record.levelname.lower()
        message, identity = record.getMessage(), getattr(record, "request", "") or request_id()
        fields = {"request": identity} if identity else {}
        fields |= getattr(record, "fields", {})
        trace = self.formatException(record.exc_info) if record.exc_info else None
        if self._as_json:
            line = {"time": moment, "level": level, "logger": record.name, "message": message}
            more = {} if trace is None else {"exception": trace}
            return json.dumps({**line, **fields, **more}, default=str)
        words = " ".join(f"{name}={_word(value)}" for name, value in fields.items())
        message = message if message.isprintable() else json.dumps(message)[1:-1]
        line_text = f"{moment} {level:7s} {message} {words}".rstrip()
        return line_text if trace is None else f"{line_text}\n{trace}"


def _word(value: Any) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if PLAIN.fullmatch(text) else json.dumps(text)


def configure_logging(
    log_format: str = "text",
    level: str = "info",
    stream: TextIO | None = None,
    on_lost: Callable[[], None] = lambda: None,
) -> BackgroundHandler:
    """Send the logs of this package, from `level`, and of servers, from warning, to the handler."""
    handler = BackgroundHandler(stream or sys.stderr, on_lost)
    handler.setFormatter(Lines(log_format == "json"))
    for name in (*OWN_LOGGERS, *OTHER_LOGGERS):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel((level if name in OWN_LOGGERS else "warning").upper())
    return handler


class Metrics:
    """Counters, gauges and histograms in a separate Prometheus registry.

    The label `model` is the name of a model that was found, or "", never any other text that a
    client sent.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._models, self._served = set[str](), dict[str, int]()  # names; versions by name

        def make(kind: Any, name: str, text: str, *labels: str, **more: Any) -> Any:
            return kind(f"onepass_{name}", text, labels, registry=self.registry, **more)

        counter, gauge = functools.partial(make, Counter), functools.partial(make, Gauge)
        seconds = functools.partial(make, Histogram, buckets=SECONDS)
        self._seconds = seconds(
            "request_seconds", "Seconds to the answer's end.", "model", "protocol"
        )
        self._first_seconds = seconds(
            "first_byte_seconds", "Seconds to the first byte.", "model", "protocol"
        )
        self._bytes = counter("bytes", "Bytes of bodies.", "protocol", "direction")
        self._refused = counter("refused", "Requests refused by a full server.", "what")
        self.log_lines_lost = counter("log_lines_lost", "Log lines not read in time.")
        self.queue_rows = gauge("queue_rows", "Rows in the queue.", "model")
        self.queue_seconds = seconds("queue_seconds", "Seconds a row waits.", "model")
        self.batch_rows = make(Histogram, "batch_rows", "Rows of a call.", "model", buckets=ROWS)
        self.running = gauge("calls_running", "Calls in progress.", "model")
        self.call_seconds = seconds("call_seconds", "Seconds of a call.", "model")
        self.retries = counter("batches_retried", "Batches retried row by row.", "model")
        kept = "Prefixes that a state was kept of, or not."
        self.prefixes = counter("prefixes", kept, "model", "outcome")
        self.prefix_bytes = gauge("prefix_bytes", "Bytes of the states after prefixes.")
        self.streams = gauge("streams", "Open streams.", "model")
        self._loads = counter("loads", "Versions loaded or broken.", "model", "outcome")
        self._version = gauge("model_version", "The version served.", "model")
        answered = "Requests answered."
        self._requests = counter("requests", answered, "model", "protocol", "status")
        self.version_requests = counter("version_requests", answered, "model", "version", "status")
        # TensorFlow Serving's name: a counter's would end in _total.
        count, of_model = ":tensorflow:serving:request_count", ("model_name", "status")
        self._tensorflow = Gauge(count, answered, of_model, registry=self.registry)
        ProcessCollector(registry=self.registry)

    def request(
        self,
        model: str | None,
        protocol: str,
        status: str,
        seconds: float,
        *,
        first_byte_seconds: float | None = None,
        received_bytes: int = 0,
        sent_bytes: int = 0,
    ) -> None:
        """Count an answered request: `status` is "ok" or an error's code; unknown models are ""."""
        name = model if model in self._models else ""
        self._requests.labels(name, protocol, status).inc()
        self._tensorflow.labels(name, status.upper()).inc()
        self._seconds.labels(name, protocol).observe(seconds)
        if first_byte_seconds is not None:
            self._first_seconds.labels(name, protocol).observe(first_byte_seconds)
        if status == Overloaded.code:
            self._refused.labels(protocol).inc()
        self._bytes.labels(protocol, "received").inc(received_bytes)
        self._bytes.labels(protocol, "sent").inc(sent_bytes)

    def add_model(self, model: str) -> None:
        """Accept the name of a model as a label."""
        self._models.add(model)

    def record_load(self, model: str, version: int) -> None:
        """Count a successful load, and record the version as the one being served."""
        self._models.add(model)
        self._loads.labels(model, "loaded").inc()
        self._version.labels(model).set(version)
        self._served[model] = version

    def record_unload(self, model: str, version: int) -> None:
        """Remove the gauge of the served version if this version is the one being served."""
        if self._served.get(model) == version:
            del self._served[model]
            self._version.remove(model)

    def load_failed(self, model: str) -> None:
        """Count a failed attempt to load a version."""
        self._models.add(model)
        self._loads.labels(model, "broken").inc()

    def render(self) -> tuple[bytes, str]:
        """Return the page that Prometheus reads, and its content type."""
        return generate_latest(self.registry), CONTENT_TYPE_LATEST


def configure_tracing(provider: Any = None) -> bool:
    """Trace with a provider, or over HTTP by ENDPOINT_VARIABLES; return whether it traces."""
    global _provider
    _provider, endpoints = provider, [name for name in ENDPOINT_VARIABLES if os.environ.get(name)]
    if provider is None and endpoints:
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ImportError as error:
            install = "Install it with `pip install 'onepass[traces]'`."
            LOG.warning("%s is set, but nothing is traced: %s. %s", endpoints[0], error, install)
        else:
            name = os.environ.get("OTEL_SERVICE_NAME", "onepass")
            _provider = TracerProvider(resource=Resource.create({"service.name": name}))
            _provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return _provider is not None


def close() -> None:
    """Stop tracing after sending all spans."""
    if _provider is not None:
        _provider.shutdown()


@contextlib.contextmanager
def span(
    name: str, headers: Mapping[str, str] | None = None, **attributes: str | int | float
) -> Iterator[None]:
    """Record a span around a block, if tracing is configured.

    It is part of the trace in the header `traceparent`, if there is one. An error marks it as
    failed, with only its type, since the message may contain client data.
    """
    if _provider is None:
        yield
        return
    from opentelemetry import propagate, trace

    with _provider.get_tracer("onepass.serving").start_as_current_span(
        name,
        context=propagate.extract(headers) if headers else None,  # None: the span around this one
        attributes=attributes,
        record_exception=False,
        set_status_on_exception=False,
    ) as recorded:
        try:
            yield
        except Exception as error:
            recorded.set_status(trace.StatusCode.ERROR, type(error).__name__)
            raise
