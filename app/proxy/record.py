"""Record of a request in the log: what was decided, what its provider refused, what Steno refused (docs/logs.md).

Names, numbers and codes; never a message's text, never a key.
"""

from __future__ import annotations

from collections.abc import Mapping
from time import monotonic

import structlog

from app.compaction.fallback import Decision
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
from app.http.relayed import value_of
from app.http.upstream import UpstreamAnswer
from app.providers.providers import Provider
from app.runtime.bounded import Repeats
from app.telemetry.metrics import Metrics
from app.telemetry.spans import Span
from app.tokens.rules import LONGEST_MODEL

log = structlog.get_logger("steno.requests")

REQUEST = "steno.request"
"""Scope key: the request's record."""
LONGEST_PATH = 300
FIRST_ERROR = 400
_NO_FAILURE = (
    (),
    because(Code.COMPACTION_OFF),
    because(Code.SUMMARY_IN_BACKGROUND),
    because(Code.PUT_OFF_FOR_COST),
)
"""Reasons that are no failure: somebody asked for it, or it is on its way, or it waits until it pays."""
_ABOUT_PROVIDER = (UpstreamUnreachable, UpstreamTimedOut, UpstreamDisconnected)
_OF_PROVIDER = (*_ABOUT_PROVIDER, UpstreamUnreadable)


class RequestRecord:
    route = "refused"
    """Route that the gate chose, as the metrics have it."""
    status = 0
    """Status of its answer; 0 before that has begun."""
    sent = 0.0
    """Time when the provider was sent it last, by the monotonic clock."""
    upstream: str | None = None
    model: str | None = None
    span: Span | None = None
    """Span of its trace; None if no traces are wanted."""
    has_waited = False
    """True once it has waited for a summary: it is counted once."""

    def __init__(
        self, request_id: str, method: str, path: str, repeats: Repeats, metrics: Metrics, verbose: bool = False
    ) -> None:
        """Begin a record. `repeats`: of the providers; `verbose`: there is a line for what needed no decision, too."""
        self.request_id = request_id
        """Id that Steno gave it, in log, ledger, REST and `x-context-request-id`; if the provider has none, in
        `x-request-id`."""
        self.method = method
        self.path = path
        self.repeats = repeats
        self.metrics = metrics
        self.verbose = verbose
        self.arrived = monotonic()
        """Time when its head came."""

    def goes_to(self, provider: Provider, model: str | None = None) -> None:
        """Note that it is about to be sent to a provider."""
        self.upstream, self.model, self.sent = provider.name, model and model[:LONGEST_MODEL], monotonic()
        if self.span is not None:
            self.span.names(self.model or "unknown", provider.host)

    def begins(self, status: int) -> None:
        """Note that the client is sent a status."""
        self.status = status
        self.metrics.begun(self.route, status, monotonic() - self.arrived)

    def ends(self) -> None:
        """Note that nothing more is sent to the client."""
        if self.status:
            self.metrics.ended(self.route, monotonic() - self.arrived)
        if self.span is not None:
            self.span.says("http.response.status_code", self.status or None)
            self.span.ends()

    def decided(self, request: ChatRequest, decision: Decision, began: float | None, *, waited: bool) -> None:
        """Log a payload that was changed, or left as it is although something was due."""
        self.metrics.payload(decision.status)
        if self.span is not None:
            _describe(self.span, request, decision)
        if waited and began is not None and not self.has_waited:
            self.has_waited = True
            self.metrics.waits.observe(monotonic() - began)
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
            self.metrics.recalled(request.recalled(decision.view.recalled))
        before, after = request.tokens(decision)
        tell = log.info if decision.why in _NO_FAILURE else log.warning
        tell(
            "payload unchanged" if decision.view is None else "payload changed",
            request_id=self.request_id,
            conversation_id=request.conversation_id,
            upstream=request.provider.name,
            model=request.model[:LONGEST_MODEL],
            context_status=decision.status,
            actions=list(decision.actions),
            messages=dict(decision.view.changed) if decision.view else {},
            reason=decision.reason,
            remedy=None if decision.why in _NO_FAILURE else hint_for(decision.why),
            tokens_before=before,
            tokens_after=after,
            window=request.window.context,
            seconds=0.0 if began is None else round(monotonic() - began, 3),
        )

    def answered(self, answering: UpstreamAnswer, *, tells: bool = True) -> None:
        """Note the provider's status. `tells`: if it is a refusal, that is for the log at once."""
        self.metrics.upstream_began(monotonic() - self.sent)
        if (ended := self.repeats.over(self.upstream)) is not None:
            log.info("provider answers again", upstream=self.upstream, times=ended[0], seconds=ended[1])
        if self.span is not None:
            self.span.says("gen_ai.response.time_to_first_chunk", monotonic() - self.arrived)
            self.span.failed(str(answering.status) if answering.status >= FIRST_ERROR else None)
        if answering.status >= FIRST_ERROR:
            self.metrics.upstream_error(answering.status)
            if tells:
                self.refused(answering)

    def refused(self, answering: UpstreamAnswer) -> None:
        """Log a refusal of the provider, unless the request was simply sent once more without what it refused."""
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
        """Log an error of ours that the client gets. A provider that is away, and WebSockets that clients try, are
        logged once, and then once a minute."""
        if self.span is not None:
            self.span.failed(error.code)
        if isinstance(error, _OF_PROVIDER):
            self.metrics.upstream_error(error.code)
        if isinstance(error, WebSocketNotSpoken):
            if (times := self.repeats.again(error.code)) is not None:
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
        elif (times := self.repeats.again(self.upstream)) is not None:
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
        """Log an answer that ended in its middle."""
        if self.span is not None:
            self.span.failed(error.code)
        if isinstance(error, _OF_PROVIDER):
            self.metrics.upstream_error(error.code)
        log.warning("answer cut", request_id=self.request_id, upstream=self.upstream, model=self.model, code=error.code)


def _describe(span: Span, request: ChatRequest, decision: Decision) -> None:
    """Attributes of a trace for a decision: names, numbers and codes, as in the log."""
    before, after = request.tokens(decision)
    span.says("gen_ai.conversation.id", request.conversation_id)
    span.says("gen_ai.request.stream", request.wire.answer.stream)
    span.says("gen_ai.conversation.compacted", decision.status == "summarized" or None)  # Only where it is true.
    span.says("steno.context.status", decision.status)
    span.says("steno.context.actions", decision.actions or None)
    span.says("steno.context.reason", decision.reason)
    span.says("steno.tokens.before", before)
    span.says("steno.tokens.after", after)
    span.says("steno.window", request.window.context)


# Remedies for a provider's refusal, and for one that did not answer.
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
