"""Exchanges: the payloads, answers and log lines (docs/logs.md) of a request, and the services that requests share.

The log holds names, numbers and codes, but no text of messages and no keys.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from time import monotonic
from typing import TYPE_CHECKING, Literal

import structlog
from msgspec import Struct
from msgspec.structs import replace

from app.compaction.background import Background
from app.compaction.budget import Overflow
from app.compaction.compactor import Compactor
from app.compaction.decision import Decision
from app.compaction.request import ChatRequest
from app.compaction.view import View
from app.conversation.identity import Identity
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
from app.formats.format import WireFormat
from app.formats.reader import MessageReader
from app.formats.usage import Usage
from app.http.admission import BytesInFlight
from app.http.asgi import ClientAnswer
from app.http.connection import UpstreamExchange
from app.http.headers import Headers, value_of
from app.providers.ledger import NOT_REPORTED, Ledger
from app.providers.providers import Provider, Providers, StreamedUsage
from app.proxy.caller import Authenticator, Caller
from app.proxy.conversation_ids import Conversations
from app.proxy.request import ModelLimits
from app.runtime.bounded import Erased, LogThrottle
from app.runtime.tasks import OwnedTasks, WorkerThreads
from app.settings import EventSettings, LimitSettings
from app.store import Store
from app.telemetry.metrics import Metrics, Sampler
from app.tokens.estimator import Estimator
from app.tokens.rules import LONGEST_MODEL
from app.tokens.usage import Tokens

if TYPE_CHECKING:
    from app.proxy.reply import EarlyStream
    from app.telemetry.traces import Span, Tracer


@dataclass(slots=True)
class Services:
    providers: Providers
    model_limits: ModelLimits
    store: Store
    identity: Identity
    formats: tuple[WireFormat, ...]
    readers: Mapping[str, MessageReader]
    """Readers by format name."""
    estimator: Estimator
    compactor: Compactor
    background: Background
    ledger: Ledger
    conversations: Conversations
    tasks: OwnedTasks
    authenticator: Authenticator
    throttle: LogThrottle
    in_flight: BytesInFlight
    work: WorkerThreads
    limits: LimitSettings
    events: EventSettings
    base_model: Callable[[str], str]
    """Function that returns the model whose token rules and limits apply to a given model."""
    keeps_messages: bool
    sampler: Sampler
    tracer: Tracer | None
    """None if tracing is off."""

    async def erase(self, tenant: str) -> None:
        erased = Erased(tenant)
        self.conversations.forget(erased)
        await self.providers.calibrations.forget(tenant)
        await self.store.erase_tenant(tenant)
        # Last, because until the summaries are deleted, a request may load them again.
        self.compactor.forget(erased)

    async def delete(self, tenant: str, conversation_id: str) -> bool:
        """Delete a conversation and the summaries that were made for it. Return False if it did not exist."""
        erased = Erased(tenant, conversation_id)
        self.conversations.forget(erased)
        was_there = await self.store.delete_conversation(tenant, conversation_id)
        # Last, as in `erase`.
        self.compactor.forget(erased)
        return was_there

    @property
    def format(self) -> WireFormat:
        """Default format, for bodies at a path that belongs to no format."""
        return self.formats[0]


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
"""Reasons of decisions that are no failures: the client turned compaction off, or Steno postponed it."""
_ABOUT_PROVIDER = (UpstreamUnreachable, UpstreamTimedOut, UpstreamDisconnected)
_OF_PROVIDER = (*_ABOUT_PROVIDER, UpstreamUnreadable)


@dataclass(slots=True, eq=False)
class RequestRecord:
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
    """True to log unchanged payloads, too, at level debug."""
    arrived: float = field(default_factory=monotonic)
    """Arrival of the request's head, by the monotonic clock."""
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
    """True once the wait for a summary is in the metrics, because a request is counted once."""

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
        """Record the provider's status. `logs_refusal`: log an error status. False: the caller may log it later."""
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


class Refusal(Struct, frozen=True):
    """Provider's reason to refuse a payload."""

    kind: Literal["usage", "thinking", "roles", "order", "size", "other"]
    """Refused part: usage in streams, signed thinking, two messages of one role in a row, another order of the
    messages, the size, or something else."""
    status: int = 0
    """Status of a refusal of kind `other`, even if only the first frame of a stream names it; 0 for other kinds."""
    said: str = ""
    """The provider's message about roles or order; a sentence with the status for kind `other`."""
    overflow: Overflow | None = None
    limit_is_learnt: bool = False
    """True if Steno has learnt the overflow's limit for later requests."""
    view: View | None = None
    """View without the refused thinking; None for the unchanged history."""

    @property
    def keeps_messages(self) -> bool:
        """True if the same messages can be sent without the refused part. Then the client never sees the refusal."""
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
    """Payload for the provider, and its answers."""

    request: ChatRequest
    decision: Decision
    asks_usage: bool = False
    """True if Steno asks for the stream's usage although the client does not, so that Steno learns token counts."""
    waited_seconds: float | None = None
    """Seconds waited for a compaction; None if the request waited for none."""
    is_smaller: bool = False
    """True if Steno made the prompt smaller after a refusal. Then Steno learns no window from an empty answer."""
    answering: UpstreamExchange = field(init=False)
    """Latest answer; not set before the first answer."""
    refusal: Refusal | None = None
    size: int = 0
    """Bytes of the body that was sent."""
    calls: list[Call] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        return self.request.forwarded(self.decision)

    def mark_refused(self) -> None:
        """Record the latest call as refused. Its status is 200, but its answer is an error, or empty."""
        self.calls[-1].status = HTTPStatus.BAD_REQUEST


@dataclass(slots=True, eq=False)
class Exchange:
    """Mutable state of one request: its attempts, answers and stream."""

    services: Services
    record: RequestRecord
    client: ClientAnswer
    caller: Caller
    body: bytes = b""
    """Body of the request, decoded."""
    encoded: tuple[Caller, bytes] | None = None
    """Caller and body as they arrived, if the body was encoded. Steno forwards an unchanged body in this form."""
    headers: Headers = field(default_factory=list)
    """Headers about the context, for an error of Steno's own."""
    waits_for_summary: bool = False
    """True once a summary is being made for the request."""
    stream: EarlyStream | None = None
    """Stream that began before the provider's answer."""
    attempts: list[Attempt] = field(default_factory=list)
    attempt: Attempt | None = None
    """Latest attempt; at the end, the attempt whose answer the client gets."""
    recovered_from: Refusal | None = None
    """Refusal that led to the latest changed payload."""
    editor: AnswerEditor | None = None
    """Reader of the relayed answer, set once the answer has ended."""
    answers: list[UpstreamExchange] = field(default_factory=list)

    def begin_attempt(self, request: ChatRequest, decision: Decision, waited_seconds: float | None = None) -> Attempt:
        """Add an attempt with the decision's payload. Add the output limits to the decision, and for an unchanged
        request the reason why Steno does not compact it."""
        decision, wire = request.with_output_limits(decision), request.wire
        is_untouched = decision.view is None
        if is_untouched and wire.hands_off is not None and request.conversation.is_within(request.budget.limit):
            decision = replace(decision, why=(wire.hands_off,))
        # Ask only models that report usage only if asked. Steno removes the usage from the client's answer.
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
        """Call the provider. `close` closes the answer at the end. Raises the upstream errors."""
        self.record.goes_to(provider, model)
        caller = self.caller
        if self.encoded is not None and body == self.body:
            caller, body = self.encoded
        answering = await provider.upstream.relay(caller.head_at(provider.upstream), body)
        self.answers.append(answering)
        self.record.answered(answering, logs_refusal=logs_refusal)
        return answering

    async def close(self) -> None:
        """Stop the stream and close all answers, at the end of the request or if the client disconnects."""
        if self.stream is not None:
            await self.stream.cancel()
        for answering in reversed(self.answers):
            await answering.close()
