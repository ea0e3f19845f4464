"""Metrics of the server, for Prometheus."""

import functools

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from serving.errors import Overloaded

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
ROWS = (1, 2, 4, 8, 16, 32, 64)


class Metrics:
    """Counters, gauges and histograms in a registry of their own.

    A label `model` is always the name of a model that was found, never what a client asked for.
    """

    def __init__(self):
        self.registry = CollectorRegistry()
        self._models: set[str] = set()
        self._served: dict[str, int] = {}  # the version, by model
        counter = functools.partial(Counter, registry=self.registry)
        gauge = functools.partial(Gauge, registry=self.registry)
        histogram = functools.partial(Histogram, registry=self.registry)
        seconds = functools.partial(histogram, buckets=SECONDS)
        model, protocol = ["model"], ["model", "protocol"]
        self._requests = counter("onepass_requests", "Requests answered.", [*protocol, "status"])
        self._seconds = seconds(
            "onepass_request_seconds", "Seconds from a request to the end of its answer.", protocol
        )
        self._first_byte_seconds = seconds(
            "onepass_first_byte_seconds",
            "Seconds from a request to the first byte of its answer.",
            protocol,
        )
        self._bytes = counter(
            "onepass_bytes", "Bytes of bodies and messages.", ["protocol", "direction"]
        )
        self._refused = counter(
            "onepass_refused", "Requests for which there was no room, by protocol.", ["what"]
        )
        self._log_lines_lost = counter(
            "onepass_log_lines_lost", "Lines of the log that nobody read in time."
        )
        self._queue_rows = gauge("onepass_queue_rows", "Rows that wait.", model)
        self._queue_seconds = seconds("onepass_queue_seconds", "Seconds that a row waits.", model)
        self._batch_rows = histogram("onepass_batch_rows", "Rows of a call.", model, buckets=ROWS)
        self._running = gauge("onepass_calls_running", "Calls being made.", model)
        self._call_seconds = seconds("onepass_call_seconds", "Seconds of a call.", model)
        self._retries = counter(
            "onepass_batches_retried", "Failed batches tried again row by row.", model
        )
        self._streams = gauge("onepass_streams", "Open streams.", model)
        self._loads = counter(
            "onepass_loads", "Versions loaded, or found broken.", ["model", "outcome"]
        )
        self._version = gauge("onepass_model_version", "The version served.", model)
        self.version_requests = counter(
            "onepass_version_requests",
            "Requests answered by a version, streams among them.",
            ["model", "version", "status"],
        )
        # By the name that TensorFlow Serving has; a counter's would end in _total.
        self._tensorflow_requests = gauge(
            ":tensorflow:serving:request_count", "Requests answered.", ["model_name", "status"]
        )
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
        """Counts an answered request.

        Args:
          model: as the client named it; None for a request of no model.
          protocol: a short word, such as "tensorflow-rest", "v2", "openai", "grpc".
          status: "ok" or the `code` of a ServingError.
          seconds: from its first byte to the last of its answer.
          first_byte_seconds: to the first byte of its answer; None where there was none.
          received_bytes, sent_bytes: of the bodies or messages.
        """
        name = model if model in self._models else ""
        self._requests.labels(name, protocol, status).inc()
        self._tensorflow_requests.labels(name, status.upper()).inc()
        self._seconds.labels(name, protocol).observe(seconds)
        if first_byte_seconds is not None:
            self._first_byte_seconds.labels(name, protocol).observe(first_byte_seconds)
        if status == Overloaded.code:
            self._refused.labels(protocol).inc()
        self._bytes.labels(protocol, "received").inc(received_bytes)
        self._bytes.labels(protocol, "sent").inc(sent_bytes)

    def log_line_lost(self) -> None:
        """Counts a line of the log that was not written."""
        self._log_lines_lost.inc()

    def for_model(self, model: str) -> "ModelMetrics":
        """The observer of one model; its name is a label from now on."""
        self._models.add(model)
        return ModelMetrics(self, model)

    def loaded(self, model: str, version: int) -> None:
        """Counts a version that is served from now on."""
        self._models.add(model)
        self._loads.labels(model, "loaded").inc()
        self._version.labels(model).set(version)
        self._served[model] = version

    def unloaded(self, model: str, version: int) -> None:
        """Remove the gauge of the version served, if it is this one."""
        if self._served.get(model) == version:
            del self._served[model]
            self._version.remove(model)

    def load_failed(self, model: str) -> None:
        """Counts a version that could not be loaded."""
        self._models.add(model)
        self._loads.labels(model, "broken").inc()

    def render(self) -> tuple[bytes, str]:
        """The page that Prometheus reads, and its content type."""
        return generate_latest(self.registry), CONTENT_TYPE_LATEST


class ModelMetrics:
    """The metrics of one model."""

    def __init__(self, metrics: Metrics, model: str):
        self._model, self._version_requests = model, metrics.version_requests
        self._queue_rows = metrics._queue_rows.labels(model)
        self._queue_seconds = metrics._queue_seconds.labels(model)
        self._batch_rows = metrics._batch_rows.labels(model)
        self._running = metrics._running.labels(model)
        self._call_seconds = metrics._call_seconds.labels(model)
        self._retries = metrics._retries.labels(model)
        self._streams = metrics._streams.labels(model)

    def rows_queued(self, rows: int) -> None:
        """Moves the gauge of the queue."""
        self._queue_rows.inc(rows)

    def waited(self, seconds: float) -> None:
        """Counts a row's time in the queue."""
        self._queue_seconds.observe(seconds)

    def call_started(self) -> None:
        """Moves the gauge of calls."""
        self._running.inc()

    def call_finished(self, rows: int, seconds: float) -> None:
        """Counts a call."""
        self._running.dec()
        self._batch_rows.observe(rows)
        self._call_seconds.observe(seconds)

    def batch_retried(self) -> None:
        """Counts a failed batch."""
        self._retries.inc()

    def request_ended(self, version: int, status: str) -> None:
        """Counts a request of a version."""
        self._version_requests.labels(self._model, str(version), status).inc()

    def streaming(self, number: int) -> None:
        """Moves the gauge of streams."""
        self._streams.inc(number)
