"""Traces: spans by OpenTelemetry's conventions for generative AI, exported by OTLP over HTTP. Import this module only
if traces are switched on: OpenTelemetry is an optional dependency.

The conventions are still in development, so their names are written here and not imported. The library reads the usual
environment variables (`OTEL_EXPORTER_OTLP_ENDPOINT`, `OTEL_SERVICE_NAME`, `OTEL_TRACES_SAMPLER` and so on). The tracer
is not set globally, because every library that supports OpenTelemetry would then add spans.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import structlog
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import Span as OtelSpan
from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from app import __version__
from app.runtime.caches import LogThrottle
from app.tokens.costs import Tokens

Headers = Sequence[tuple[bytes, bytes]]

log = structlog.get_logger("steno.tracing")

_CONTEXT = frozenset({b"traceparent", b"tracestate"})
_PROPAGATOR = TraceContextTextMapPropagator()
_USAGE = {
    "prompt": "gen_ai.usage.input_tokens",
    "completion": "gen_ai.usage.output_tokens",
    "cached": "gen_ai.usage.cache_read.input_tokens",
    "written": "gen_ai.usage.cache_creation.input_tokens",
    "reasoning": "gen_ai.usage.reasoning.output_tokens",
}


_PROVIDERS = {"messages": "anthropic", "gemini": "gcp.gemini"}
_REMEDY = "Check OTEL_EXPORTER_OTLP_ENDPOINT and whether the collector is running, or take OTEL_TRACES_EXPORTER away."


class Tracer:
    def __init__(self, format_at: Callable[[bytes], str | None]) -> None:
        """`format_at`: returns the name of the wire format of a request's target."""
        self._format_at = format_at
        self._provider = TracerProvider(resource=_resource(), shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(_Exporter(OTLPSpanExporter())))
        self._tracer = self._provider.get_tracer("steno", __version__)

    def begins(self, target: bytes, headers: Headers) -> Span:
        """Start a span for a call to the provider's path `target`, in the trace of the headers or in a new trace."""
        provider = _PROVIDERS.get(self._format_at(target) or "", "openai")
        attributes = {"gen_ai.operation.name": "chat", "gen_ai.provider.name": provider}
        parent = _PROPAGATOR.extract(_carrier(headers))
        return Span(self._tracer.start_span("chat", parent, SpanKind.CLIENT, attributes))

    def close(self) -> None:
        """Export waiting spans. Blocks for some seconds if the collector does not answer."""
        self._provider.shutdown()


class Span:
    """Span of one call to a model. No method raises."""

    def __init__(self, span: OtelSpan) -> None:
        self._span = span
        self._failure: str | None = None

    def parent_of(self, headers: Headers) -> list[tuple[bytes, bytes]]:
        """Return the headers with this span as the parent, so that the provider can continue the trace."""
        carrier: dict[str, str] = {}
        _PROPAGATOR.inject(carrier, set_span_in_context(self._span))
        if not carrier:  # OTEL_SDK_DISABLED: pass the client's headers on.
            return list(headers)
        kept = [header for header in headers if header[0] not in _CONTEXT]
        return kept + [(name.encode(), value.encode()) for name, value in carrier.items()]

    def names(self, model: str, address: str) -> None:
        self._span.update_name(f"chat {model}")
        self._span.set_attribute("gen_ai.request.model", model)
        self._span.set_attribute("server.address", address)

    def says(self, attribute: str, value: str | float | Sequence[str] | None) -> None:
        if value is not None:
            self._span.set_attribute(attribute, value)

    def used(self, tokens: Tokens) -> None:
        for kind, attribute in _USAGE.items():
            self.says(attribute, getattr(tokens, kind))

    def failed(self, kind: str | None) -> None:
        """Set the failure: a status of the provider, or an error code of Steno; None if the call did not fail."""
        self._failure = kind

    def ends(self) -> None:
        # The failure is not set earlier, because a retry may succeed after a refusal.
        if self._failure is not None:
            self._span.set_attribute("error.type", self._failure)
            self._span.set_status(Status(StatusCode.ERROR))
        self._span.end()


class _Exporter(SpanExporter):
    """Exporter that throttles the log line for failed exports; the library would log each batch."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self._throttle = LogThrottle()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._exporter.export(spans)
        if result is not SpanExportResult.SUCCESS:
            if (times := self._throttle.count("export")) is not None:
                log.warning("traces not exported", times=times, remedy=_REMEDY)
        elif (ended := self._throttle.end("export")) is not None:
            log.info("traces exported again", times=ended[0], seconds=ended[1])
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._exporter.force_flush(timeout_millis)


def _resource() -> Resource:
    """Return the resource from the environment, with the service name `steno` if none is set."""
    resource = Resource.create({SERVICE_VERSION: __version__})
    if str(resource.attributes.get(SERVICE_NAME, "")).startswith("unknown_service"):
        return resource.merge(Resource({SERVICE_NAME: "steno"}))
    return resource


def _carrier(headers: Headers) -> dict[str, Any]:
    """Return the trace headers. Join several `tracestate` headers."""
    carrier: dict[str, str] = {}
    for name, value in headers:
        if name in _CONTEXT:
            key, text = name.decode(), value.decode("latin-1")
            carrier[key] = f"{carrier[key]},{text}" if key in carrier else text
    return carrier
