"""The way of one chat request: taken in, decided, forwarded, relayed, learnt from; and sent once more, smaller or a
step lower, where its provider refuses it. Plain ASGI: it is the hot path."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import Any, ClassVar, TypeVar

import structlog
from msgspec.structs import replace
from starlette.types import Receive, Scope, Send

from app.compaction.budget import Recovery
from app.compaction.compactor import untouched
from app.compaction.fallback import UNTOUCHED, Decision, capped
from app.compaction.request import ChatRequest
from app.conversation.reasons import Code, Reason, because
from app.errors import StenoError
from app.formats.paths import path_of
from app.formats.raw_json import Unreadable
from app.formats.refusals import demands_alternation
from app.formats.requests import WireRequest
from app.http import own_headers
from app.http.asgi import (
    CONNECTION,
    SIGNATURE,
    AbortedAnswer,
    ClientAnswer,
    ClientDisconnected,
    Connection,
    Signature,
    body_here,
    peer_of,
    read_body,
    until_disconnect,
)
from app.http.relayed import EVENT_STREAM, Headers, media_type, value_of
from app.http.upstream import UpstreamAnswer
from app.providers.providers import Provider
from app.proxy.caller import Caller
from app.proxy.decoding import Encoded
from app.proxy.early import EarlyStream, keep_alive_seconds
from app.proxy.forwarding import Forwarding
from app.proxy.gate import CONVERSATION, FORMAT, TARGET, UPSTREAM
from app.proxy.learning import AnsweredCall, Observation, enter_unread
from app.proxy.milestones import Milestones
from app.proxy.record import REQUEST, RequestRecord
from app.proxy.relaying import Relay
from app.proxy.report import bypassed, context_headers, editor_of, latest_history, log_bypass, seen, unless_told, unread
from app.proxy.request import count_meanwhile, model_in, parse_request, plain_body, split_body
from app.proxy.services import Services
from app.telemetry.spans import Tracer

log = structlog.get_logger("steno.chat")

T = TypeVar("T")

INTERNAL_ERROR = "internal_error"
"""Reason for a failure of our own code; the log has the rest."""

Obtained = tuple[Observation, UpstreamAnswer]
"""Observation of what was sent, and its answer."""


class ChatEndpoint:
    def __init__(self, services: Services, exchange: type[Exchange] | None = None) -> None:
        """Serve with `exchange`, if requests are not simply answered."""
        self._services = services
        self._exchange = exchange or Exchange

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the first request with its head; those after it are let in as it is."""
        record, signature = scope[REQUEST], scope[SIGNATURE]
        try:
            caller = self._caller(scope)  # Before a body is taken for nobody.
        except StenoError as error:
            record.failed(error)
            await ClientAnswer(send, signature).error(error, body=scope[FORMAT].answers.error(error))
            return
        await self.serve(caller, record, signature, scope, receive, send)

    async def serve(
        self, caller: Caller, record: RequestRecord, signature: Signature, scope: Scope, receive: Receive, send: Send
    ) -> None:
        services, limits = self._services, self._services.limits
        connection: Connection | None = scope.get(CONNECTION)
        answer = ClientAnswer(send, signature, connection)
        if services.tracer is not None:
            caller = _traced(services.tracer, caller, record)
        exchange = None
        with services.in_flight.counted() as count:
            try:
                at_most = limits.largest_body
                body = body_here(connection, at_most, count)
                if body is None:
                    body = await read_body(receive, scope["headers"], at_most, limits.receive_seconds, count)
                encoded = None
                if caller.encodes_bodies:
                    plain = await plain_body(body, caller.headers, at_most, count, services.work, caller.tenant)
                    if plain is not None:
                        encoded = Encoded(caller, body, plain)
                        caller, body = caller.with_plain_body(), plain
                exchange = self._exchange(services, answer, caller, record, body, encoded)
                await until_disconnect(receive, answer, exchange.serve(), connection=connection)
            except ClientDisconnected:
                return
            except StenoError as error:
                record.failed(error)
                if answer.started:
                    raise AbortedAnswer(error.message) from error
                own_headers = exchange.own_headers if exchange else []
                await answer.error(error, own_headers, caller.format.answers.error(error))

    def _caller(self, scope: Scope) -> Caller:
        """Read the caller from the head. Raises `MissingCredentials` and `InvalidCredentials`."""
        headers, format_, upstream = list(scope["headers"]), scope[FORMAT], scope[UPSTREAM]
        tenant = self._services.authenticator.identify(headers, peer_of(scope), scope["query_string"]).tenant
        return Caller(tenant, headers, format_, scope[CONVERSATION], upstream, scope[TARGET])


def _traced(tracer: Tracer, caller: Caller, record: RequestRecord) -> Caller:
    """Put the request's span in place of the client's own: whatever is sent for it continues from there."""
    record.span = tracer.begins(caller.target, caller.headers)
    record.span.says("steno.request.id", record.request_id)
    return replace(caller, headers=record.span.parent_of(caller.headers))


@dataclass(slots=True)
class Exchange:
    """Chat request on its way to the provider and back."""

    remembers: ClassVar[bool] = True
    """True if the next request of its conversation is recognised by it."""

    services: Services
    answer: ClientAnswer
    caller: Caller
    record: RequestRecord
    body: bytes
    encoded: Encoded | None = None
    """The request as it came, if it was decoded."""
    own_headers: Headers = field(default_factory=list)
    """Headers about the context, also for an error of our own."""

    async def serve(self) -> None:
        if self.caller.asks_for_summary:
            await self._relay_unread(bypassed(Reason(Code.SUMMARY_CALL)), self.body)
            return
        match await self._understood(self._read_in()):
            case Reason(code=Code.INTERNAL_ERROR):
                await self._relay_unread(unread("full", Code.INTERNAL_ERROR), self.body)
            case Reason() as reason:
                await self._bypass(reason, self.body)
            case (_, _, ChatRequest() as request):
                await self._serve(request)
            case (wire, Reason() as handed_off, None):
                await self._bypass(handed_off, wire.untouched)

    async def _understood(self, work: Awaitable[T]) -> T | Reason:
        """Return the result of work on the request, or the reason why it cannot be understood."""
        try:
            return await work
        except Unreadable as error:
            return Reason(error.reason)
        except StenoError:
            raise
        except Exception:
            # The client's own bytes may still be good: trouble of ours fails no request that would work without us.
            log.exception("a request was not understood", request_id=self.record.request_id)
            return Reason(Code.INTERNAL_ERROR)

    async def _read_in(self) -> tuple[WireRequest, Reason | None, ChatRequest | None]:
        wire = await self._read()
        handed_off = wire.hands_off
        request = await (self._take_in(wire) if handed_off is None else self._if_too_large(wire, handed_off))
        return wire, handed_off, request

    async def _if_too_large(self, wire: WireRequest, handed_off: Reason) -> ChatRequest | None:
        """Take in a request by which its history is compacted elsewhere; None if it can pass whole.

        Where it would overflow it is still compacted, or the client could not go on at all. Where it holds signed
        thinking, which may be refused after earlier compactions, it is sent as a request that is not compacted.
        """
        if not _passes_where_it_fits(handed_off):
            return None
        request = await self._take_in(wire)
        if not request.conversation.is_within(request.budget.limit):
            return request
        return replace(request, compaction=False) if request.conversation.history.holds_signed_thinking else None

    def _take_in(self, wire: WireRequest) -> Coroutine[Any, Any, ChatRequest]:
        return parse_request(self.services, wire, self.caller, self.record.request_id, remember=self.remembers)

    def _read(self) -> Coroutine[Any, Any, WireRequest]:
        if self.caller.encodes_bodies:
            raise Unreadable("The body is encoded in a way that cannot be undone.")
        return split_body(self.services, self.caller, self.body)

    async def _bypass(self, reason: Reason, body: bytes) -> None:
        self._tell_bypass(reason)
        await self._relay_unread(bypassed(reason), body)

    def _tell_bypass(self, reason: Reason) -> None:
        log_bypass(self.services.repeats, path_of(self.caller.target).decode("latin-1"), reason)

    async def _serve(self, request: ChatRequest) -> None:
        milestones = Milestones(reports=request.events != "off")
        try:
            decision = self._at_once(request)
            if decision is None:
                obtaining = self._obtain(request, milestones)
            else:
                observed = self._decided(request, decision, None, milestones)
                answering = await self._ask(observed, milestones)
                if (again := self._again(observed, answering, milestones)) is None:
                    await self._answer(observed, answering)
                    return
                obtaining = again
            if request.events == "off":
                await self._answer(*await obtaining)
            else:
                await self._stream(request, milestones, obtaining)
        finally:
            try:
                await milestones.close()
            finally:
                self._over(request, milestones)

    def _over(self, request: ChatRequest, milestones: Milestones) -> None:
        if self.record.span is not None and milestones.observed:
            self.record.span.used(milestones.observed[-1].reported)
        self.services.store.writes.soon(partial(_note, self.services, request, milestones))
        bound, measure = request.conversation.bound, request.measure
        if (bound is None or bound > measure.least_counted) and (decision := milestones.decision) is not None:
            self.services.background.consider(request, measure.rules.compaction.background, decision)

    async def _stream(self, request: ChatRequest, milestones: Milestones, work: Coroutine[Any, Any, Obtained]) -> None:
        """Answer with a stream: it begins with the provider's answer, or with the news that a summary is being made."""
        obtaining, beginning = asyncio.ensure_future(work), asyncio.ensure_future(milestones.started())
        try:
            first: set[asyncio.Future[Any]] = {obtaining, beginning}
            await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
            if milestones.is_early:
                reports, seconds = self.services.events.body, keep_alive_seconds(self.caller)
                await EarlyStream(self._relay, request, milestones, reports, seconds).serve(obtaining)
            else:
                await self._answer(*await obtaining)
        finally:
            obtaining.cancel()
            beginning.cancel()
            await asyncio.wait({obtaining, beginning})

    async def _obtain(self, request: ChatRequest, milestones: Milestones) -> Obtained:
        """Decide and send, and once more if the provider refuses the request for its size, or for its shape."""
        began = monotonic()
        self.services.store.writes.catch_up()
        preparing = self.services.compactor.for_request(request, milestones.on_start, may_postpone=True).prepare()
        decision = await self._decide(request, preparing)
        observed = self._decided(request, decision, began, milestones)
        answering = await self._ask(observed, milestones)
        again = self._again(observed, answering, milestones)
        return (observed, answering) if again is None else await again

    def _again(
        self, observed: Observation, answering: UpstreamAnswer, milestones: Milestones
    ) -> Coroutine[Any, Any, Obtained] | None:
        """Obtain the answer to what is sent in place of what was refused; None if the refusal is the answer."""
        if milestones.is_resent:
            return None
        if observed.misshapen is not None:
            return self._stepped_down(observed, answering, observed.misshapen, milestones)
        recovery = observed.recovery()
        return None if recovery is None else self._recovered(observed, answering, recovery, milestones)

    async def _ask(self, observed: Observation, milestones: Milestones) -> UpstreamAnswer:
        """Send what was decided. Text too short to be counted before is counted while the provider works."""
        request = observed.request
        counting = count_meanwhile(self.services, request)
        try:
            return await self._forwarding.obtain(observed, milestones)
        finally:
            if counting is not None:
                await asyncio.wait({counting})
            self.own_headers = context_headers(request, observed.decision)

    def _at_once(self, request: ChatRequest) -> Decision | None:
        """Decide without the store: the client's bytes go as they are; None if more is to be decided."""
        if request.thinking_from:
            return None
        if request.is_left_alone:
            return UNTOUCHED
        with suppress(Exception):  # What is wrong is met again by whoever decides it, and reported there.
            return untouched(request)
        return None

    async def _decide(self, request: ChatRequest, deciding: Awaitable[Decision]) -> Decision:
        try:
            return await deciding
        except Exception:
            place = request.conversation_id
            log.exception("a request was not prepared", request_id=self.record.request_id, conversation_id=place)
            return Decision(None, why=because(Code.INTERNAL_ERROR), failed=True)

    def _decided(
        self, request: ChatRequest, decision: Decision, began: float | None, milestones: Milestones
    ) -> Observation:
        """Log a decision, and begin to observe it. `began` is the monotonic clock's; None if it took no time."""
        waited = round(monotonic() - began, 3) if began is not None and milestones.has_begun else None
        observed = self._observed(request, decision, waited, milestones)
        self.record.decided(request, observed.decision, began, waited=milestones.has_begun)
        return observed

    def _observed(
        self, request: ChatRequest, decision: Decision, waited: float | None, milestones: Milestones
    ) -> Observation:
        decision = request.with_output_limits(decision)
        fits = request.conversation.is_within(request.budget.limit)
        if fits and request.wire.hands_off is not None and decision.view is None:
            decision = replace(decision, why=(request.wire.hands_off,))
        milestones.decide(decision)
        return milestones.observe(Observation(self.services, request, decision, waited))

    async def _recovered(
        self, observed: Observation, answering: UpstreamAnswer, recovery: Recovery, milestones: Milestones
    ) -> Obtained:
        """Return the answer to a lower output cap or a smaller prompt, or the one there is."""
        milestones.reopen()
        began, request = monotonic(), observed.request
        decision = replace(observed.decision, output_cap=None)
        if recovery.budget is not None:
            # The settings of summaries are then worked out anew: a learnt window is the summariser's, too, where it is
            # the same model.
            # What was thought in this turn would be bound to what is now made smaller, and this try is the last one.
            smaller = replace(request, budget=recovery.budget, thinking_from=len(request.conversation.transcript))
            decision = await self._decide(
                request, self.services.compactor.for_request(smaller, milestones.on_start).recover()
            )
            if decision.view is None or decision.view.tokens >= observed.sent:
                milestones.decide(observed.decision)
                return observed, answering
            # Why there was no summary before is still why there is none.
            why = decision.why or (() if decision.status == "summarized" else observed.decision.why)
            decision = replace(decision, why=why)
        if (cap := recovery.output_cap or observed.decision.output_cap) is not None:
            decision = capped(decision, cap)
        decision = replace(decision, actions=(*decision.actions, "recovered"))
        recovered = self._decided(request, decision, began, milestones)
        recovered.is_smaller = recovery.budget is not None
        latest = await self._replaced(observed, answering, recovered, milestones)
        if latest[0] is recovered:
            observed.replaced()
            if recovered.is_smaller:
                observed.confirmed()
            else:
                request.provider.adds_output.saw(request.tenant, (request.format.name, request.model), True)
        return latest

    async def _stepped_down(
        self, observed: Observation, answering: UpstreamAnswer, said: str, milestones: Milestones
    ) -> Obtained:
        """Return the answer to the payload with alternating roles, where those are demanded, or to one a step lower;
        else the refusal there is. `said`: the provider's words. Only an answer shows that the refused view was at
        fault: what is wrong with the client's own messages is refused on every step."""
        request, refused = observed.request, observed.decision
        merges = False
        if demands_alternation(said) and not request.policy.alternates:
            request.provider.learn_alternation(request.format.name, request.model, request.tenant)
            request = replace(request, policy=replace(request.policy, alternates=True))
            merges = True
        milestones.reopen()
        preparation = self.services.compactor.for_request(request)
        decide = preparation.merge_roles if merges else preparation.step_down
        decision = await self._decide(request, decide(refused, said))
        if decision is refused:
            milestones.decide(refused)
            return observed, answering
        lower = self._observed(request, decision, None, milestones)
        latest, again = await self._replaced(observed, answering, lower, milestones)
        if latest is not lower or again.status != 200 or lower.is_refused:
            why = tuple(reason for reason in lower.decision.why if reason.code is not Code.PAYLOAD_REFUSED)
            lower.decision = replace(lower.decision, why=why)
        elif decision.status != refused.status:  # Merged roles are no step down.
            self.services.compactor.shape_refused(request, refused.status, because(Code.PAYLOAD_REFUSED, said))
        self.record.decided(request, lower.decision, None, waited=milestones.has_begun)
        if latest is lower:
            self.own_headers = context_headers(request, lower.decision)
            milestones.decide(lower.decision)
        return latest, again

    async def _replaced(
        self, observed: Observation, answering: UpstreamAnswer, latest: Observation, milestones: Milestones
    ) -> Obtained:
        """Send another payload in place of a refused one. Return its answer, or the refusal if that stays the answer. A
        refusal of the client's own bytes is for the client in any case."""
        milestones.is_resent = True
        try:
            again = await self._forwarding.obtain(latest, milestones)
        except StenoError as error:
            self.record.failed(error)
        else:
            goes_whole = latest.decision.view is None and observed.decision.view is not None
            if (again.status == 200 and latest.overflow is None) or goes_whole:
                await answering.close()
                self.own_headers = context_headers(observed.request, latest.decision)
                return latest, again
            await again.close()
        milestones.decide(observed.decision)
        return observed, answering

    async def _answer(self, observed: Observation, answering: UpstreamAnswer) -> None:
        """Send the provider's status first, then its bytes."""
        request, decision, own = observed.request, observed.decision, self.own_headers
        if decision.view is None and value_of(answering.headers, own_headers.STATUS):
            await self._relay.as_sent(answering, [])  # Another Steno, which may have done more.
            return
        reports = self.services.events.body
        kind = media_type(answering.headers) if answering.status == 200 and reports else ""
        if kind == EVENT_STREAM:
            await self._relay.start(answering, own)
            editor = editor_of(request, decision, observed.asks_usage, reports=reports)
            await self._relay.stream(answering, editor, observed)
        elif kind == "application/json":
            editor = editor_of(request, decision, observed.asks_usage, reports=reports)
            await self._relay.plain(answering, own, editor, observed)
        else:
            await self._relay.as_sent(answering, own)

    async def _relay_unread(self, own: Headers, body: bytes) -> None:
        """Relay a body unread, for the provider to judge, or another Steno's own call: nothing more is looked at."""
        self._note_headers(own)
        services, caller = self.services, self.caller
        model = await model_in(services, caller, self.body)  # It may be readable where the rest is not.
        provider = services.providers.of(model, caller.format.name, caller.tenant, caller.upstream)
        answering = await self._forwarding.send(body, provider)
        try:
            await self._pass_on(answering, unless_told(own, list(answering.headers)), provider, model, body)
        finally:
            await answering.close()

    async def _pass_on(
        self, answering: UpstreamAnswer, own: Headers, provider: Provider, model: str, body: bytes
    ) -> None:
        """Pass on the answer to a request that passed as it came, and enter it into the ledger, also where the client
        leaves. Nobody knows its conversation."""
        reader = self.caller.format.answers.editor() if self.remembers else None
        try:
            await self._relay.as_sent(answering, own, reader)
        finally:
            if reader is not None:
                call = AnsweredCall(answering.status, reader.usage if reader.ended else None)
                status = dict(self.own_headers)[own_headers.STATUS].decode()
                enter_unread(self.services, self.caller, self.record.request_id, provider, model, call, status, body)

    def _note_headers(self, own: Headers) -> None:
        self.own_headers = own
        self.record.metrics.payload(dict(own)[own_headers.STATUS].decode())

    @property
    def _forwarding(self) -> Forwarding:
        return Forwarding(self.services, self.caller, self.record, self.encoded)

    @property
    def _relay(self) -> Relay:
        return Relay(self.answer, self.record, self.caller.format)


def _note(services: Services, request: ChatRequest, milestones: Milestones) -> None:
    """Keep what is left of a request that is over: the cost of its calls, and its context."""
    for observation in milestones.observed:
        observation.settle()
    if (decision := milestones.decision) is not None:
        services.store.writes.record(seen(request, decision))
        if services.keeps_messages:
            services.store.writes.record_history(latest_history(request))


def _passes_where_it_fits(handed_off: Reason) -> bool:
    """True if somebody else is about to compact the history. Behind our summaries a client sees small prompts only:
    when it turns to that, its history may have outgrown every window."""
    return handed_off.code in (Code.CLIENT_COMPACTION, Code.NATIVE_COMPACTION)
