"""Exchanges: what was sent and observed for one request, its log lines included (docs/logs.md).

The log has names, numbers and codes; never a message's text, never a key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from time import monotonic
from typing import TYPE_CHECKING, Literal

import structlog
from msgspec import Struct
from msgspec.structs import replace

from app.compaction.budget import Overflow
from app.compaction.fallback import Decision
from app.compaction.request import ChatRequest
from app.compaction.view import View
from app.conversation.reasons import Code, because, hint_for
from app.errors import (
    StenoError,
    UpstreamDisconnected,
    UpstreamTimedOut,
    UpstreamUnreachable,
    UpstreamUnreadable,
    WebSocketNotSpoken,
)
from app.formats.answers import AnswerEditor
from app.formats.usage import Usage
from app.http.asgi import ClientAnswer
from app.http.connection import UpstreamExchange
from app.http.headers import Headers, value_of
from app.providers.ledger import NOT_REPORTED
from app.providers.providers import Provider, StreamedUsage
from app.proxy.caller import Caller
from app.proxy.services import Services
from app.runtime.bounded import LogThrottle
from app.telemetry.metrics import Metrics
from app.telemetry.spans import Span
from app.tokens.rules import LONGEST_MODEL
from app.tokens.usage import Tokens

if TYPE_CHECKING:
    from app.proxy.stream import EarlyStream

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
"""Reasons that are no failure: the client asked for it, or it is on its way, or it waits until it pays."""
_ABOUT_PROVIDER = (UpstreamUnreachable, UpstreamTimedOut, UpstreamDisconnected)
_OF_PROVIDER = (*_ABOUT_PROVIDER, UpstreamUnreadable)


@dataclass(slots=True, eq=False)
class RequestRecord:
    """Log lines and metrics of one request, whichever route it takes."""

    request_id: str
    """Id that Steno gave it, in log, ledger, REST and `x-context-request-id`; if the provider has none, in
    `x-request-id`."""
    method: str
    path: str
    throttle: LogThrottle
    """Throttle of the lines about providers that fail."""
    metrics: Metrics
    verbose: bool = False
    """True if there is a line for what needed no decision, too."""
    arrived: float = field(default_factory=monotonic)
    """Time when its head came."""
    route: str = "refused"
    """Route that the router chose, as the metrics have it."""
    status: int = 0
    """Status of its answer; 0 before that has begun."""
    sent: float = 0.0
    """Time when the provider was sent it last, by the monotonic clock."""
    upstream: str | None = None
    model: str | None = None
    span: Span | None = None
    """Span of its trace; None if no traces are wanted."""
    has_waited: bool = False
    """True once it has waited for a summary: it is counted once."""

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
        """Log a payload that was changed, or left as it is although something was due. `seconds`: it took so long."""
        self.metrics.payloads[decision.status].inc()
        if self.span is not None:
            _describe(self.span, request, decision)
        if waited and not self.has_waited:
            self.has_waited = True
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
        """Note the provider's status. `logs_refusal`: if it is one, that is for the log at once."""
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
        """Log an error of ours that the client gets. A provider that is away, and WebSockets that clients try, are
        logged once, and then once a minute."""
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


class Refusal(Struct, frozen=True):
    """Reason of a provider not to take a payload."""

    kind: Literal["usage", "thinking", "roles", "order", "size", "other"]
    """Subject: the report of a stream's usage, signed thinking, two messages of one role in a row, another order of the
    messages, the size, or another reason."""
    status: int = 0
    """Status of a refusal for another reason, or the one that an error in the beginning of a stream stands for."""
    said: str = ""
    """Words of the provider about the order, or the status of a refusal for another reason."""
    overflow: Overflow | None = None
    limit_is_learnt: bool = False
    """True if the limit of the overflow measures later requests."""
    view: View | None = None
    """View without the refused thinking; None for the history as it came."""

    @property
    def keeps_messages(self) -> bool:
        """True if the same messages can be sent without what was refused beside them: the client never sees it."""
        return self.kind in ("usage", "thinking")


@dataclass(slots=True, eq=False)
class Call:
    """Answered call to the provider."""

    status: int
    usage: Usage | None = None

    @property
    def tokens(self) -> Tokens:
        return self.usage.tokens if self.usage else NOT_REPORTED


@dataclass(slots=True, eq=False)
class Attempt:
    """Payload for the provider, and what was observed of it."""

    request: ChatRequest
    decision: Decision
    asks_usage: bool = False
    """True if Steno asks for the stream's usage and the client does not: without it a stream teaches nothing."""
    waited_seconds: float | None = None
    """Seconds waited for a compaction; None if none was being made for it."""
    is_smaller: bool = False
    """True for a payload made smaller in place of a refused one: an empty answer to it is no matter of the window."""
    answering: UpstreamExchange = field(init=False)
    """Answer to it, once there is one."""
    refusal: Refusal | None = None
    size: int = 0
    """Bytes of the body that was sent."""
    calls: list[Call] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        return self.request.forwarded(self.decision)

    def mark_refused(self) -> None:
        """Note that a call with status 200 was as good as a refusal: another answer may go to the client."""
        self.calls[-1].status = HTTPStatus.BAD_REQUEST


@dataclass(slots=True, eq=False)
class Exchange:
    """Payloads and observations of one request: the only part of it that changes."""

    services: Services
    record: RequestRecord
    client: ClientAnswer
    caller: Caller
    body: bytes = b""
    """Body of the request, decoded."""
    encoded: tuple[Caller, bytes] | None = None
    """Sender and body as they came, if the body was encoded: they go on so if it is not changed."""
    headers: Headers = field(default_factory=list)
    """Headers about the context, for an error of Steno's own."""
    has_waited: bool = False
    """True once a summary is being made for the request."""
    stream: EarlyStream | None = None
    """Stream to the client, once it has begun before the provider's answer."""
    attempts: list[Attempt] = field(default_factory=list)
    attempt: Attempt | None = None
    """Attempt whose answer the client gets, as far as that is known."""
    recovered_from: Refusal | None = None
    """Refusal in whose place a changed payload was sent last."""
    editor: AnswerEditor | None = None
    """Reader of the answer that was relayed, once all of it has come."""
    answers: list[UpstreamExchange] = field(default_factory=list)

    def begin_attempt(self, request: ChatRequest, decision: Decision, waited_seconds: float | None = None) -> Attempt:
        """Add an attempt to send what was decided, within the limits of the output."""
        decision, wire = request.with_output_limits(decision), request.wire
        is_untouched = decision.view is None
        if is_untouched and wire.hands_off is not None and request.conversation.is_within(request.budget.limit):
            decision = replace(decision, why=(wire.hands_off,))
        # Only where nothing was seen to come unasked: what comes then is what Steno asked for, and is taken out.
        may_ask = not is_untouched and self.services.events.body and wire.answer.stream and not wire.answer.wants_usage
        model = request.format.name, wire.model
        asks_usage = may_ask and (
            request.provider.streamed_usage.find(request.tenant, model) is StreamedUsage.WHEN_ASKED
        )
        self.attempt = Attempt(request, decision, asks_usage, waited_seconds)
        self.attempts.append(self.attempt)
        return self.attempt

    async def call(
        self, provider: Provider, body: bytes, model: str | None = None, *, logs_refusal: bool = True
    ) -> UpstreamExchange:
        """Call the provider. Its answer is closed with the exchange. Raises the upstream errors."""
        self.record.goes_to(provider, model)
        caller = self.caller
        if self.encoded is not None and body == self.body:
            caller, body = self.encoded
        answering = await provider.upstream.relay(caller.head_at(provider.upstream), body)
        self.answers.append(answering)
        self.record.answered(answering, logs_refusal=logs_refusal)
        return answering

    async def close(self) -> None:
        """Stop all that is still under way, because it was served or the client left."""
        if self.stream is not None:
            await self.stream.cancel()
        for answering in reversed(self.answers):
            await answering.close()
