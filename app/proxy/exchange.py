"""Exchanges: the payloads and answers of a request, and the services that requests share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Literal

from msgspec import Struct
from msgspec.structs import replace

from app.compaction.background import Background
from app.compaction.compactor import Compactor
from app.compaction.decision import Decision
from app.compaction.overflow import Overflow
from app.compaction.request import ChatRequest
from app.compaction.view import View
from app.conversation.identity import Identity
from app.formats.answers import AnswerEditor
from app.formats.format import WireFormat
from app.formats.reader import MessageReader
from app.formats.usage import Usage
from app.http.admission import BytesInFlight
from app.http.asgi import ClientAnswer
from app.http.connection import UpstreamExchange
from app.http.headers import Headers
from app.providers.ledger import NOT_REPORTED, Ledger
from app.providers.providers import Provider, Providers, StreamedUsage
from app.proxy.caller import Authenticator, Caller
from app.proxy.conversation_ids import Conversations
from app.proxy.request import ModelLimits
from app.proxy.request_log import RequestRecord
from app.runtime.caches import Erased, LogThrottle
from app.runtime.tasks import OwnedTasks, WorkerThreads
from app.settings import EventSettings, LimitSettings
from app.store import Store
from app.telemetry.metrics import Sampler
from app.tokens.costs import Tokens
from app.tokens.estimator import Estimator

if TYPE_CHECKING:
    from app.proxy.early_stream import EarlyStream
    from app.telemetry.traces import Tracer


@dataclass(slots=True)
class Services:
    providers: Providers
    model_limits: ModelLimits
    store: Store
    identity: Identity
    formats: tuple[WireFormat, ...]
    readers: Mapping[str, MessageReader]
    """Readers of messages, by the name of the format."""
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
        # This comes last: until the summaries are deleted, a request may load them again.
        self.compactor.forget(erased)

    async def delete(self, tenant: str, conversation_id: str) -> bool:
        """Delete a conversation and the summaries that were made for it. Return False if there was no conversation."""
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


class Refusal(Struct, frozen=True):
    """Provider's reason to refuse a payload."""

    kind: Literal["usage", "thinking", "roles", "order", "size", "other"]
    """Refused part: usage in streams, signed thinking, two messages of one role in a row, another fault in the order of
    the messages, the size, or something else."""
    status: int = 0
    """Status of a refusal of kind `other`, from the HTTP answer or the first frame of a stream; 0 for other kinds."""
    said: str = ""
    """The provider's message about roles or order. For kind `other`: a sentence with the status."""
    overflow: Overflow | None = None
    limit_is_learnt: bool = False
    """True if Steno has learnt the overflow's limit for later requests."""
    view: View | None = None
    """View without thinking, to send after a refusal of thinking; None to send the client's history unchanged."""

    @property
    def keeps_messages(self) -> bool:
        """True if the same messages can be sent without the refused part. Then the client never sees the refusal."""
        return self.kind in ("usage", "thinking")


class Call(Struct, eq=False):
    """Answered call to the provider."""

    status: int
    usage: Usage | None = None

    @property
    def tokens(self) -> Tokens:
        return self.usage.tokens if self.usage else NOT_REPORTED


@dataclass(slots=True, eq=False)
class Attempt:
    """Payload for the provider, and the provider's answers."""

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
        """Record the latest call as refused, although its answer has status 200: the answer is an error, or empty."""
        self.calls[-1].status = HTTPStatus.BAD_REQUEST


class Exchange(Struct, eq=False):
    """Mutable state of one request: its attempts, answers and stream."""

    services: Services
    record: RequestRecord
    client: ClientAnswer
    caller: Caller
    body: bytes = b""
    """Body of the request, decoded."""
    encoded: tuple[Caller, bytes] | None = None
    """Caller and body as they arrived, if the body was encoded. Steno forwards an unchanged body in this form."""
    headers: Headers = []
    """Headers about the context, to send with an error of Steno's own."""
    waits_for_summary: bool = False
    """True once a summary is being made for the request."""
    stream: EarlyStream | None = None
    """Stream that began before the provider's answer."""
    attempts: list[Attempt] = []
    attempt: Attempt | None = None
    """Latest attempt; at the end, the attempt whose answer the client gets."""
    recovered_from: Refusal | None = None
    """Refusal that led to the latest changed payload."""
    editor: AnswerEditor | None = None
    """Editor that has read the relayed answer; None until the answer has ended."""
    answers: list[UpstreamExchange] = []

    def begin_attempt(self, request: ChatRequest, decision: Decision, waited_seconds: float | None = None) -> Attempt:
        """Limit the decision's output with `with_output_limits`, and add an attempt. If the payload is unchanged
        because the client or the provider manages the history, the decision's reason becomes `wire.hands_off`."""
        decision, wire = request.with_output_limits(decision), request.wire
        is_untouched = decision.view is None
        if is_untouched and wire.hands_off is not None and request.conversation.is_within(request.budget.limit):
            decision = replace(decision, why=(wire.hands_off,))
        # Some models report the usage of a stream only on request. Steno removes usage that only it requested.
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
