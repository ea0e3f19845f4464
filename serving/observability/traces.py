"""Spans of OpenTelemetry, where it is asked for; nothing at all elsewhere."""

import contextlib
import importlib
import logging
import os
from collections.abc import Iterator, Mapping
from typing import Any

ASKED_BY = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")

LOG = logging.getLogger(__name__)

_provider: Any = None
_tracer: Any = None


def configure(provider: Any = None) -> bool:
    """Whether spans are made from now on.

    They are if one of ASKED_BY is set, and then go there over HTTP, or if a provider is given.
    Where OpenTelemetry is not installed, a warning says so.
    """
    global _provider, _tracer
    asked = [name for name in ASKED_BY if os.environ.get(name)]
    if provider is None and asked:
        try:
            provider = _exporting_provider()
        except ImportError as error:
            LOG.warning(
                "%s is set, but nothing is traced: %s. Install it with "
                "`pip install 'onepass[traces]'`.",
                asked[0],
                error,
            )
    _provider = provider
    _tracer = None if provider is None else provider.get_tracer("onepass.serving")
    return _tracer is not None


def close() -> None:
    """Ends tracing, once all spans have been sent."""
    if _provider is not None:
        _provider.shutdown()


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
