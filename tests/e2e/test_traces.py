"""Traces: real spans, as a collector gets them over OTLP. Who sends a trace context finds all that was done in it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from structlog.testing import capture_logs

from tests.e2e import commands
from tests.e2e.histories import chat, long_history
from tests.e2e.raw import post
from tests.e2e.running import StartSteno
from tests.e2e.scripted import ScriptedProvider, answer, closed_port

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CONTEXT = f"traceparent: 00-{TRACE}-{PARENT}-01".encode()


class Collector:
    """Takes spans over OTLP/HTTP, decodes them and keeps them."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.resources: list[dict[str, Any]] = []
        self.bodies = b""
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                collector.take(body)
                told = ExportTraceServiceResponse().SerializeToString()
                self.send_response(200)
                self.send_header("content-type", "application/x-protobuf")
                self.send_header("content-length", str(len(told)))
                self.end_headers()
                self.wfile.write(told)

            def log_message(self, *_: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def take(self, body: bytes) -> None:
        request = ExportTraceServiceRequest.FromString(body)
        self.bodies += body
        for group in request.resource_spans:
            self.resources.append(attributes_of(group.resource.attributes))
            self.spans += [span for scope in group.scope_spans for span in scope.spans]

    def wait_for(self, number: int) -> list[Span]:
        """The spans, oldest first, once there are so many."""
        commands.until(lambda: len(self.spans) >= number)
        return sorted(self.spans, key=lambda span: span.start_time_unix_nano)

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def attributes_of(pairs: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, str(pair.value.WhichOneof("value"))) for pair in pairs}


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    collector = Collector()
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "otlp")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
    yield collector
    collector.close()


def test_a_chat_is_a_span_in_the_clients_trace_and_its_summary_call_a_child(
    collector: Collector, steno: StartSteno
) -> None:
    answered = post(steno().url, chat(long_history()), CONTEXT, b"x-conversation-id: order-4711")
    whole, summary = collector.wait_for(2)
    assert (whole.trace_id.hex(), whole.parent_span_id.hex()) == (TRACE, PARENT)
    assert (summary.trace_id, summary.parent_span_id) == (whole.trace_id, whole.span_id)
    assert (whole.name, summary.name, whole.kind) == ("chat gpt-4o", "chat gpt-4o", Span.SPAN_KIND_CLIENT)
    told, context, usage = attributes_of(whole.attributes), answered.json["context"], answered.json["usage"]
    assert told.pop("gen_ai.response.time_to_first_chunk") > 0
    assert told.pop("steno.context.actions").values[0].string_value == context["actions"][0]
    assert told == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "gpt-4o",
        "gen_ai.request.stream": False,
        "gen_ai.conversation.id": "order-4711",
        "gen_ai.conversation.compacted": True,
        "gen_ai.usage.input_tokens": usage["prompt_tokens"],
        "gen_ai.usage.output_tokens": usage["completion_tokens"],
        **{key: value for key, value in told.items() if key.startswith("gen_ai.usage.") and key[13:] not in usage},
        "server.address": "127.0.0.1",
        "http.response.status_code": 200,
        "steno.request.id": answered.header("x-context-request-id"),
        "steno.context.status": "summarized",
        "steno.tokens.before": context["tokens"]["estimated"],
        "steno.tokens.after": context["tokens"]["forwarded"],
        "steno.window": context["tokens"]["window"],
    }
    assert attributes_of(summary.attributes)["steno.summary_call"] is True
    assert attributes_of(summary.attributes)["gen_ai.usage.output_tokens"] > 0
    assert whole.status.code == Status.STATUS_CODE_UNSET
    assert collector.resources[0]["service.name"] == "steno"
    assert b"the clerk" in chat(long_history())
    assert b"the clerk" not in collector.bodies, "What was said is no part of a trace."


def test_what_fails_is_an_error_by_its_status_or_code(
    collector: Collector, before_scripted: StartSteno, scripted: ScriptedProvider
) -> None:
    url = before_scripted().url
    scripted.then("close")
    post(url, chat())
    scripted.then(answer(b"{}", status=b"429 Too Many Requests"))
    post(url, chat())
    spans = collector.wait_for(2)
    assert [attributes_of(span.attributes)["error.type"] for span in spans] == ["upstream_disconnected", "429"]
    assert {span.status.code for span in spans} == {Status.STATUS_CODE_ERROR}


def test_a_trace_that_its_client_does_not_record_is_not_recorded_here(
    collector: Collector, before_scripted: StartSteno, scripted: ScriptedProvider
) -> None:
    url = before_scripted().url
    post(url, chat(), CONTEXT[:-1] + b"0")
    post(url, chat())
    [recorded] = collector.wait_for(1)
    assert recorded.trace_id.hex() != TRACE
    [sent] = scripted.requests[0].all(b"traceparent")
    assert sent.startswith(f"00-{TRACE}-".encode())
    assert sent.endswith(b"-00")


def test_without_the_setting_a_trace_context_passes_byte_for_byte(
    before_scripted: StartSteno, scripted: ScriptedProvider
) -> None:
    odd = b"traceparent: 00-not-a-context", b"tracestate: vendor=1", b"tracestate: other=2"
    post(before_scripted().url, chat(), *odd)
    received = scripted.requests[0]
    assert received.all(b"traceparent") == [b"00-not-a-context"]
    assert received.all(b"tracestate") == [b"vendor=1", b"other=2"]


def test_a_collector_that_is_away_is_one_line_and_no_requests_trouble(
    monkeypatch: pytest.MonkeyPatch, before_scripted: StartSteno
) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "otlp")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{closed_port()}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
    with capture_logs() as lines:
        url = before_scripted().url
        for _ in range(2):
            assert post(url, chat()).status == 200
            time.sleep(0.1)
        commands.until(lambda: any(line["event"] == "traces not exported" for line in lines))
        time.sleep(0.5)
    [line] = [line for line in lines if line["event"] == "traces not exported"]
    assert "OTEL_EXPORTER_OTLP_ENDPOINT" in line["remedy"]
