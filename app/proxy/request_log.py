"""Request log: the log lines (docs/logs.md), metrics and trace of one request.

The log holds names, numbers and codes, but no text of messages and no keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from time import monotonic
from typing import TYPE_CHECKING

import structlog
from msgspec import Struct, field

from app.compaction.decision import Decision
from app.compaction.request import ChatRequest
from app.conversation.reasons import Code, because, hint_for
from app.errors import (
    StenoError,
    UpstreamDisconnected,
    UpstreamTimedOut,
    UpstreamUnreachable,
    UpstreamUnreadable,
    WebSocketNotSpoken,
)
from app.http.connection import UpstreamExchange
from app.http.headers import value_of
from app.providers.providers import Provider
from app.runtime.caches import LogThrottle
from app.telemetry.metrics import Metrics
from app.tokens.counting_rules import LONGEST_MODEL

if TYPE_CHECKING:
    from app.telemetry.traces import Span


log = structlog.get_logger("steno.requests")

REQUEST = "steno.request"
"""Key of the request's record in the ASGI scope."""
LONGEST_PATH = 300
FIRST_ERROR = 400
_NO_FAILURE = (
    (),
    because(Code.COMPACTION_OFF),
    because(Code.SUMMARY_IN_BACKGROUND),
    because(Code.PUT_OFF_FOR_COST),
)
"""Reasons that are no failures: no reason, compaction is off, or Steno postponed the compaction."""
_ABOUT_PROVIDER = (UpstreamUnreachable, UpstreamTimedOut, UpstreamDisconnected)
_OF_PROVIDER = (*_ABOUT_PROVIDER, UpstreamUnreadable)


class RequestRecord(Struct, eq=False):
    """Log lines and metrics of one request, on any route."""

    request_id: str
    """Steno's id of the request: in log, ledger, REST and `x-context-request-id`, and in `x-request-id` unless the
    provider sets that header."""
    method: str
    path: str
    throttle: LogThrottle
    """Throttle of log lines about failing providers and refused WebSockets."""
    metrics: Metrics
    verbose: bool = False
    """True if requests with unchanged payloads are logged, at level debug."""
    arrived: float = field(default_factory=monotonic)
    """Time at which the request's head arrived, by the monotonic clock."""
    route: str = "refused"
    """Name of the route in the metrics."""
    status: int = 0
    """Status of the answer; 0 before the answer has begun."""
    sent: float = 0.0
    """Time of the latest call to the provider, by the monotonic clock."""
    upstream: str | None = None
    model: str | None = None
    span: Span | None = None
    """Trace span; None if tracing is off."""
    wait_is_counted: bool = False
    """True once the metrics contain the wait for a summary. A request's wait is counted only once."""

    def goes_to(self, provider: Provider, model: str | None = None) -> None:
        self.upstream, self.model, self.sent = provider.name, model and model[:LONGEST_MODEL], monotonic()
        if self.span is not None:
            self.span.names(self.model or "unknown", provider.host)

    def begins(self, status: int) -> None:
        self.status = status
        self.metrics.begun(self.route, status, monotonic() - self.arrived)

    def ends(self) -> None:
        if self.status:
            self.metrics.request_seconds[self.route].observe(monotonic() - self.arrived)
        if self.span is not None:
            self.span.says("http.response.status_code", self.status or None)
            self.span.ends()

    def decided(self, request: ChatRequest, decision: Decision, *, seconds: float, waited: bool) -> None:
        """Count and log a decision. `seconds`: time that the decision took."""
        self.metrics.payloads[decision.status].inc()
        if self.span is not None:
            _describe(self.span, request, decision)
        if waited and not self.wait_is_counted:
            self.wait_is_counted = True
            self.metrics.waits.observe(seconds)
        if decision.view is None and not decision.why:
            if self.verbose:
                log.debug(
                    "payload untouched",
                    request_id=self.request_id,
                    conversation_id=request.conversation_id,
                    upstream=request.provider.name,
                    model=request.model[:LONGEST_MODEL],
                    window=request.window.context,
                )
            return
        if decision.why:
            self.metrics.not_done(decision.why)
        if decision.view is not None and decision.view.recalled:
            self.metrics.recalled_tokens.inc(request.recalled(decision.view.recalled))
        before, after = request.tokens(decision)
        tell = log.info if decision.why in _NO_FAILURE else log.warning
        tell(
            "payload unchanged" if decision.view is None else "payload changed",
            request_id=self.request_id,
            conversation_id=request.conversation_id,
            upstream=request.provider.name,
            model=request.model[:LONGEST_MODEL],
            window=request.window.context,
            context_status=decision.status,
            actions=list(decision.actions),
            messages=dict(decision.view.changed) if decision.view else {},
            reason=decision.reason,
            remedy=None if decision.why in _NO_FAILURE else hint_for(decision.why),
            tokens_before=before,
            tokens_after=after,
            seconds=seconds,
        )

    def answered(self, answering: UpstreamExchange, *, logs_refusal: bool = True) -> None:
        """Record the provider's status. `logs_refusal`: log an error status now; if False, the caller may log it."""
        self.metrics.upstream_first_byte.observe(monotonic() - self.sent)
        if (ended := self.throttle.end(self.upstream)) is not None:
            log.info("provider answers again", upstream=self.upstream, times=ended[0], seconds=ended[1])
        if self.span is not None:
            self.span.says("gen_ai.response.time_to_first_chunk", monotonic() - self.arrived)
            self.span.failed(str(answering.status) if answering.status >= FIRST_ERROR else None)
        if answering.status >= FIRST_ERROR:
            self.metrics.upstream_error(answering.status)
            if logs_refusal:
                self.refused(answering)

    def refused(self, answering: UpstreamExchange) -> None:
        log.warning(
            "provider refused",
            request_id=self.request_id,
            provider_request_id=value_of(answering.headers, b"x-request-id"),
            upstream=self.upstream,
            model=self.model,
            status=answering.status,
            remedy=_FAULT if answering.status >= 500 else _STATUSES.get(answering.status),
        )

    def failed(self, error: StenoError) -> None:
        """Log an error of Steno's own that the client gets. Log unreachable providers and refused WebSockets at most
        once a minute."""
        if self.span is not None:
            self.span.failed(error.code)
        if isinstance(error, _OF_PROVIDER):
            self.metrics.upstream_error(error.code)
        if isinstance(error, WebSocketNotSpoken):
            if (times := self.throttle.count(error.code)) is not None:
                log.info("websocket refused", request_id=self.request_id, path=self.path, times=times)
        elif not isinstance(error, _ABOUT_PROVIDER):
            log.warning(
                "request refused",
                request_id=self.request_id,
                method=self.method,
                path=self.path,
                status=error.status,
                code=error.code,
            )
        elif (times := self.throttle.count(self.upstream)) is not None:
            log.warning(
                "provider failed",
                request_id=self.request_id,
                upstream=self.upstream,
                model=self.model,
                status=error.status,
                code=error.code,
                times=times,
                remedy=_AWAY.get(type(error)),
            )

    def cut(self, error: StenoError) -> None:
        if self.span is not None:
            self.span.failed(error.code)
        if isinstance(error, _OF_PROVIDER):
            self.metrics.upstream_error(error.code)
        log.warning("answer cut", request_id=self.request_id, upstream=self.upstream, model=self.model, code=error.code)


def _describe(span: Span, request: ChatRequest, decision: Decision) -> None:
    """Add a decision to a trace span: names, numbers and codes, as in the log."""
    before, after = request.tokens(decision)
    span.says("gen_ai.conversation.id", request.conversation_id)
    span.says("gen_ai.request.stream", request.wire.answer.stream)
    span.says("gen_ai.conversation.compacted", decision.status == "summarized" or None)  # None omits the attribute.
    span.says("steno.context.status", decision.status)
    span.says("steno.context.actions", decision.actions or None)
    span.says("steno.context.reason", decision.reason)
    span.says("steno.tokens.before", before)
    span.says("steno.tokens.after", after)
    span.says("steno.window", request.window.context)


# Remedies for a provider's refusal, and for a provider that did not answer.
_STATUSES: Mapping[int, str] = {
    400: "The answer that the client got says what the provider did not accept.",
    401: "Check the key: the client's own, or that of the upstream in the settings.",
    403: "Check what the key may use: the client's own, or that of the upstream in the settings.",
    404: "Check the model's name and the upstream's base URL.",
    413: "The request is larger than the provider accepts.",
    429: "Raise the rate limit or quota at the provider, or send less.",
}
_FAULT = "This is the provider's own trouble; its status page or log says more."
_AWAY: Mapping[type[StenoError], str] = {
    UpstreamUnreachable: "Check the upstream's base URL and whether the provider is running; `steno doctor` tries it.",
    UpstreamTimedOut: "Raise the upstream's first_byte_seconds or between_bytes_seconds if its models need longer.",
    UpstreamDisconnected: "The provider closed the connection; its log says why.",
}
