"""Metrics of the server, for Prometheus."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import Metric, UnknownMetricFamily

from serving.engine.batching import BatchObserver

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
ROWS = (1, 2, 4, 8, 16, 32, 64)


class Metrics:
    """Counters, gauges and histograms in a registry of their own.

    A label `model` is always the name of a model that was found, never what a client asked for.
    """

    def __init__(self):
        self.registry = CollectorRegistry()
        self._models: set[str] = set()
        model, of_request = ["model"], ["model", "protocol", "status"]
        self._requests = Counter(
            "onepass_requests", "Requests answered.", of_request, registry=self.registry
        )
        self._seconds = Histogram(
            "onepass_request_seconds",
            "Seconds from a request to the end of its answer.",
            ["model", "protocol"],
            buckets=SECONDS,
            registry=self.registry,
        )
        self._bytes = Counter(
            "onepass_bytes",
            "Bytes of bodies and messages.",
            ["protocol", "direction"],
            registry=self.registry,
        )
        self._queue_rows = Gauge(
            "onepass_queue_rows", "Rows that wait.", model, registry=self.registry
        )
        self._batch_rows = Histogram(
            "onepass_batch_rows", "Rows of a call.", model, buckets=ROWS, registry=self.registry
        )
        self._running = Gauge(
            "onepass_calls_running", "Calls being made.", model, registry=self.registry
        )
        self._call_seconds = Histogram(
            "onepass_call_seconds",
            "Seconds of a call.",
            model,
            buckets=SECONDS,
            registry=self.registry,
        )
        self._retries = Counter(
            "onepass_batches_retried",
            "Failed batches tried again row by row.",
            model,
            registry=self.registry,
        )
        self._streams = Gauge("onepass_streams", "Open streams.", model, registry=self.registry)
        self._loads = Counter(
            "onepass_loads",
            "Versions loaded, or found broken.",
            ["model", "outcome"],
            registry=self.registry,
        )
        self._version = Gauge(
            "onepass_model_version", "The version served.", model, registry=self.registry
        )
        self.registry.register(_TensorFlowNames(self._requests))

    def request(
        self,
        model: str | None,
        protocol: str,
        status: str,
        seconds: float,
        *,
        received_bytes: int = 0,
        sent_bytes: int = 0,
    ) -> None:
        """Counts an answered request.

        Args:
          model: as the client named it; None for a request of no model.
          protocol: a short word, such as "tensorflow-rest", "v2", "openai", "grpc".
          status: "ok" or the `code` of a ServingError.
          seconds: from its first byte to the last of its answer.
          received_bytes, sent_bytes: of the bodies or messages.
        """
        name = model if model in self._models else ""
        self._requests.labels(name, protocol, status).inc()
        self._seconds.labels(name, protocol).observe(seconds)
        self._bytes.labels(protocol, "received").inc(received_bytes)
        self._bytes.labels(protocol, "sent").inc(sent_bytes)

    def for_model(self, model: str) -> "ModelMetrics":
        """The observer of one model; its name is a label from now on."""
        self._models.add(model)
        return ModelMetrics(self, model)

    def loaded(self, model: str, version: int) -> None:
        """Counts a version that is served from now on."""
        self._models.add(model)
        self._loads.labels(model, "loaded").inc()
        self._version.labels(model).set(version)

    def load_failed(self, model: str) -> None:
        """Counts a version that could not be loaded."""
        self._models.add(model)
        self._loads.labels(model, "broken").inc()

    def render(self) -> tuple[bytes, str]:
        """The page that Prometheus reads, and its content type."""
        return generate_latest(self.registry), CONTENT_TYPE_LATEST


class ModelMetrics(BatchObserver):
    """The metrics of one model."""

    def __init__(self, metrics: Metrics, model: str):
        self._queue_rows = metrics._queue_rows.labels(model)
        self._batch_rows = metrics._batch_rows.labels(model)
        self._running = metrics._running.labels(model)
        self._call_seconds = metrics._call_seconds.labels(model)
        self._retries = metrics._retries.labels(model)
        self._streams = metrics._streams.labels(model)

    def rows_queued(self, rows: int) -> None:
        """Moves the gauge of the queue."""
        self._queue_rows.inc(rows)

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

    def streaming(self, number: int) -> None:
        """Moves the gauge of streams."""
        self._streams.inc(number)


class _TensorFlowNames:
    """The requests under the name that dashboards of TensorFlow Serving ask for."""

    def __init__(self, requests: Counter):
        self._requests = requests

    def collect(self) -> list[Metric]:
        counts: dict[tuple[str, str], float] = {}
        for sample in [sample for metric in self._requests.collect() for sample in metric.samples]:
            if sample.name.endswith("_total"):
                status = sample.labels["status"].upper()
                key = (sample.labels["model"], status)
                counts[key] = counts.get(key, 0.0) + sample.value
        family = UnknownMetricFamily(
            ":tensorflow:serving:request_count",
            "Requests answered.",
            labels=["model_name", "status"],
        )
        for key, count in counts.items():
            family.add_metric(list(key), count)
        return [family]
