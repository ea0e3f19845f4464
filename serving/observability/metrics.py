"""Metrics of the server, for Prometheus."""

import functools

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from onepass.bundles.errors import Overloaded

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
ROWS = (1, 2, 4, 8, 16, 32, 64)


class Metrics:
    """Counters, gauges and histograms in a separate Prometheus registry.

    The label `model` is the name of a model that was found, or "", never any other text that a
    client sent.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._models, self._served = set[str](), dict[str, int]()  # names; versions by name
        counter = functools.partial(Counter, registry=self.registry)
        gauge = functools.partial(Gauge, registry=self.registry)
        histogram = functools.partial(Histogram, registry=self.registry)
        seconds = functools.partial(histogram, buckets=SECONDS)
        model, protocol = ["model"], ["model", "protocol"]
        self._requests = counter("onepass_requests", "Requests answered.", [*protocol, "status"])
        self._seconds = seconds(
            "onepass_request_seconds",
            "Seconds from a request to the end of its response.",
            protocol,
        )
        self._first_byte_seconds = seconds(
            "onepass_first_byte_seconds",
            "Seconds from a request to the first byte of a response.",
            protocol,
        )
        self._bytes = counter(
            "onepass_bytes", "Bytes of bodies and messages.", ["protocol", "direction"]
        )
        self._refused = counter(
            "onepass_refused", "Requests refused because the server was full.", ["what"]
        )
        self.log_lines_lost = counter(
            "onepass_log_lines_lost", "Log lines dropped because the log was not read in time."
        )
        self.queue_rows = gauge("onepass_queue_rows", "Rows in the queue.", model)
        self.queue_seconds = seconds("onepass_queue_seconds", "Seconds a row waits.", model)
        self.batch_rows = histogram("onepass_batch_rows", "Rows of a call.", model, buckets=ROWS)
        self.running = gauge("onepass_calls_running", "Calls in progress.", model)
        self.call_seconds = seconds("onepass_call_seconds", "Seconds of a call.", model)
        self.retries = counter(
            "onepass_batches_retried", "Failed batches retried row by row.", model
        )
        self.streams = gauge("onepass_streams", "Open streams.", model)
        self._loads = counter(
            "onepass_loads", "Versions loaded, or found broken.", ["model", "outcome"]
        )
        self._version = gauge("onepass_model_version", "The version served.", model)
        self.version_requests = counter(
            "onepass_version_requests",
            "Requests answered by a version, streams included.",
            ["model", "version", "status"],
        )
        # TensorFlow Serving's name: a counter's would end in _total.
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
        """Count an answered request: `status` is "ok" or an error's code; unknown models are ""."""
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
