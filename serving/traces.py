"""Spans of OpenTelemetry, where it is installed and asked for; nothing at all elsewhere."""

import contextlib
import importlib
import os
from collections.abc import Iterator, Mapping
from typing import Any

ASKED_BY = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")

_tracer: Any = None


def configure(provider: Any = None) -> bool:
    """Whether spans are made from now on.

    They are if OpenTelemetry's SDK and its OTLP exporter are installed and one of ASKED_BY is set,
    or a provider is given.
    """
    global _tracer
    _tracer = None
    if provider is None and any(os.environ.get(name) for name in ASKED_BY):
        with contextlib.suppress(ImportError):
            provider = _exporting_provider()
    if provider is not None:
        _tracer = provider.get_tracer("onepass.serving")
    return _tracer is not None


@contextlib.contextmanager
def span(
    name: str, headers: Mapping[str, str] | None = None, **attributes: str | int | float
) -> Iterator[None]:
    """A span around what is done within; in the trace of a `traceparent` in the headers.

    An error within marks it as failed, by its kind: what a client sent is in no trace.
    """
    if _tracer is None:
        yield
        return
    context = None
    if headers and "traceparent" in headers:
        context = importlib.import_module("opentelemetry.propagate").extract(headers)
    with _tracer.start_as_current_span(
        name,
        context=context,
        attributes=attributes,
        record_exception=False,
        set_status_on_exception=False,
    ) as made:
        try:
            yield
        except Exception as error:
            trace = importlib.import_module("opentelemetry.trace")
            made.set_status(trace.StatusCode.ERROR, type(error).__name__)
            raise


def _exporting_provider() -> Any:
    sdk = importlib.import_module("opentelemetry.sdk.trace")
    export = importlib.import_module("opentelemetry.sdk.trace.export")
    resources = importlib.import_module("opentelemetry.sdk.resources")
    otlp = importlib.import_module("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    resource = resources.Resource.create(
        {"service.name": os.environ.get("OTEL_SERVICE_NAME", "onepass")}
    )
    provider = sdk.TracerProvider(resource=resource)
    provider.add_span_processor(export.BatchSpanProcessor(otlp.OTLPSpanExporter()))
    return provider
