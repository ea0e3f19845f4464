"""OpenTelemetry spans, if tracing is configured."""

import contextlib
import importlib
import logging
import os
from collections.abc import Iterator, Mapping
from typing import Any

ENDPOINT_VARIABLES = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")

LOG = logging.getLogger(__name__)

_provider: Any = None
_tracer: Any = None


def configure(provider: Any = None) -> bool:
    """Start tracing with a provider or, if one of ENDPOINT_VARIABLES is set, export over HTTP.

    Return whether spans are recorded. A warning is logged if OpenTelemetry is needed but not
    installed.
    """
    global _provider, _tracer
    endpoints = [name for name in ENDPOINT_VARIABLES if os.environ.get(name)]
    if provider is None and endpoints:
        try:
            provider = _exporting_provider()
        except ImportError as error:
            LOG.warning(
                "%s is set, but nothing is traced: %s. Install it with "
                "`pip install 'onepass[traces]'`.",
                endpoints[0],
                error,
            )
    _provider = provider
    _tracer = None if provider is None else provider.get_tracer("onepass.serving")
    return _tracer is not None


def close() -> None:
    """Stop tracing after sending all spans."""
    if _provider is not None:
        _provider.shutdown()


@contextlib.contextmanager
def span(
    name: str, headers: Mapping[str, str] | None = None, **attributes: str | int | float
) -> Iterator[None]:
    """Record a span around a block, if tracing is configured.

    The span is part of the trace in the header `traceparent`, if there is one. An error marks it as
    failed, with only the error's type, since the message may contain client data.
    """
    if _tracer is None:
        yield
        return
    context = None
    if headers and headers.get("traceparent"):
        context = importlib.import_module("opentelemetry.propagate").extract(headers)
    with _tracer.start_as_current_span(
        name,
        context=context,
        attributes=attributes,
        record_exception=False,
        set_status_on_exception=False,
    ) as recorded:
        try:
            yield
        except Exception as error:
            trace = importlib.import_module("opentelemetry.trace")
            recorded.set_status(trace.StatusCode.ERROR, type(error).__name__)
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
