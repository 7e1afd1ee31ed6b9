"""`POST /v1/chat/completions`: read, decide, forward, relay, tell. Plain ASGI, because it is the hot path."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Any, TypeVar

import structlog
from starlette.types import Receive, Scope, Send

from app.compaction.job import Started
from app.core.reasons import Code, Reason, because
from app.core.stages.ladder import Decision
from app.errors import StenoError, UpstreamDisconnected, UpstreamUnreachable
from app.headers.relayed import CALL_MARKER, EVENT_STREAM, Headers, forwarded, media_type, returned, value_of
from app.providers.providers import Provider
from app.providers.upstream import Answering
from app.proxy.asgi import AbortedAnswer, Answer, ClientDisconnected, peer_of, read_body, until_disconnect
from app.proxy.bypass import bypassed, log_bypass, unless_told
from app.proxy.early import EarlyStream
from app.proxy.gate import CHAT_PATH, CONVERSATION, TARGET, UPSTREAM
from app.proxy.intake import Understood, model_of, read, understand
from app.proxy.observe import REFUSALS, Observation, Opened, read_first_piece, read_refusal, refusal_in
from app.proxy.passthrough import relay_raw
from app.proxy.patience import Patience
from app.proxy.record import REQUEST, Record
from app.proxy.services import Services
from app.wire.members import RawObject, TooManyValues, Unreadable, holds_more_values
from app.wire.retries import is_repeatable
from app.wire.sse import FrameSplitter, StreamEditor, event
from app.wire.streamed import LARGEST_WHOLE, MOST_RAW
from app.wire.usage import LONGEST_USAGE, window_was_full

log = structlog.get_logger("steno.chat")

A = TypeVar("A", bound=Answering)

FRAMES_AT_ONCE = 64
"""Frames of a stream that are passed on before others have their turn: one read can bring thirty thousand."""


class ChatEndpoint:
    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        limits = self._services.settings.limits
        answer = Answer(send)
        headers: Headers = list(scope["headers"])
        exchange = None
        with self._services.in_flight.counted() as count:
            try:
                tenant = self._services.tenants.tenant(headers, peer_of(scope), scope["query_string"])
                self._services.providers.named(scope[UPSTREAM])  # Before a body is taken that nobody can be sent.
                body = await read_body(receive, headers, limits.body_bytes, limits.receive_seconds, count)
                exchange = Exchange(self._services, answer, scope, headers, body, tenant)
                await until_disconnect(receive, answer, exchange.serve())
            except ClientDisconnected:
                return
            except StenoError as error:
                scope[REQUEST].failed(error)
                if answer.started:
                    raise AbortedAnswer(error.message) from error
                await answer.error(error, exchange.own_headers if exchange else [])


class Attempt:
    """How far a request is: whether a summary is being made for it, what was decided to send, and who answers it."""

    def __init__(self, *, tells: bool) -> None:
        """`tells`: whether a stream begins with the news of a summary that is being made."""
        self._tells = tells
        self._opened: list[Answering] = []
        loop = asyncio.get_running_loop()
        self.started: asyncio.Future[Started] = loop.create_future()
        self.decided: asyncio.Future[Decision] = loop.create_future()
        self.observed: list[Observation] = []
        """Its calls to the provider."""

    @property
    def is_early(self) -> bool:
        """Whether the client's stream has begun before the provider's answer."""
        return self._tells and self.started.done()

    def on_start(self, compaction: Started) -> None:
        if not self.started.done():
            self.started.set_result(compaction)

    def observe(self, services: Services, understood: Understood, decision: Decision) -> Observation:
        """What is to be sent, to be compared with its answer."""
        self.observed.append(Observation(services, understood, decision))
        return self.observed[-1]

    def decide(self, decision: Decision) -> None:
        if self.decided.done():
            self.decided = asyncio.get_running_loop().create_future()
        self.decided.set_result(decision)

    def reopen(self) -> None:
        """What was decided did not hold. A stream that has begun was told of it, and is told no more."""
        if not self.started.done():
            self.decided = asyncio.get_running_loop().create_future()

    def opened(self, answering: A) -> A:
        """An answer that has begun. Whatever becomes of it, it is closed at the end."""
        self._opened.append(answering)
        return answering

    async def end(self, obtaining: asyncio.Future[tuple[Observation, Answering]]) -> None:
        """Gives up what is still under way, and the provider's answers with it."""
        self.started.cancel()
        obtaining.cancel()
        await asyncio.wait({obtaining})
        for answering in reversed(self._opened):
            await answering.close()


@dataclass(slots=True)
class Exchange:
    """One chat request on its way to the provider and back."""

    services: Services
    answer: Answer
    scope: Scope
    headers: Headers
    body: bytes
    tenant: str
    own_headers: Headers = field(default_factory=list)
    """What our own error would say of the context."""

    @property
    def record(self) -> Record:
        record: Record = self.scope[REQUEST]
        return record

    async def serve(self) -> None:
        if value_of(self.headers, CALL_MARKER) == "summary":
            await self._relay_unread(bypassed(Reason(Code.SUMMARY_CALL)))
            return
        try:
            understood = await self._understand()
        except Unreadable as error:
            reason = Reason(error.reason)
            log_bypass(self.services.repeats, CHAT_PATH.decode(), reason)
            await self._relay_unread(bypassed(reason))
        except StenoError:
            raise
        except Exception:
            # The client's own bytes may still be good: trouble of ours fails no request that would work without us.
            log.exception("a request was not understood", request_id=self.record.request_id)
            own = [(b"x-context-status", b"full"), (b"x-context-reason", Code.INTERNAL_ERROR.encode())]
            await self._relay_unread(own)
        else:
            await self._serve(understood)

    async def _understand(self) -> Understood:
        if value_of(self.headers, b"content-encoding"):
            raise Unreadable("The body is encoded.")
        request = await read(self.services, self.tenant, self.body)
        named = self.scope[CONVERSATION], self.scope[UPSTREAM]
        return await understand(self.services, request, self.tenant, self.headers, self.record.request_id, *named)

    async def _serve(self, understood: Understood) -> None:
        attempt = Attempt(tells=understood.events != "off")
        obtaining = asyncio.ensure_future(self._obtain(understood, attempt))
        try:
            if understood.events != "off":
                first: set[asyncio.Future[Any]] = {obtaining, attempt.started}
                await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
                if attempt.started.done():
                    await self._early(understood, attempt).serve(obtaining)
                    return
            await self._answer(understood, *await obtaining)
        finally:
            await attempt.end(obtaining)
            for observed in attempt.observed:
                observed.settle()
            if attempt.decided.done() and not attempt.decided.cancelled():
                self.services.store.record(understood.seen(attempt.decided.result()))

    def _early(self, understood: Understood, attempt: Attempt) -> EarlyStream:
        return EarlyStream(
            answer=self.answer,
            understood=understood,
            started=attempt.started.result(),
            decided=attempt.decided,
            relay=self._relay_stream,
            failed=self.record.failed,
            keep_alive_seconds=self.services.settings.events.keep_alive_seconds,
            tells=self.services.settings.events.body,
        )

    async def _obtain(self, understood: Understood, attempt: Attempt) -> tuple[Observation, Answering]:
        """Decides, sends, and once more where the provider refuses the request for its size."""
        began = monotonic()
        decision = await self._decide(understood, self.services.compactor.prepare(understood.job, attempt.on_start))
        self.record.decided(understood, decision, began)
        attempt.decide(decision)
        observed = attempt.observe(self.services, understood, decision)
        # What was too short to be counted is counted while the provider works.
        counting = asyncio.ensure_future(understood.counted())
        try:
            answering = await self._forward(observed, attempt)
        finally:
            await asyncio.wait({counting})
            self.own_headers = understood.headers(decision)
        return await self._recovered(observed, answering, attempt)

    async def _decide(self, understood: Understood, preparing: Awaitable[Decision]) -> Decision:
        try:
            return await preparing
        except Exception:
            place = understood.job.conversation_id
            log.exception("a request was not prepared", request_id=self.record.request_id, conversation_id=place)
            return Decision(None, why=because(Code.INTERNAL_ERROR), failed=True)

    async def _recovered(
        self, observed: Observation, answering: Answering, attempt: Attempt
    ) -> tuple[Observation, Answering]:
        """The answer to a smaller prompt, or the one there is."""
        latest = observed
        for _ in range(self.services.settings.compaction.overflow_retries):
            if (job := latest.recovery()) is None:
                break
            attempt.reopen()
            began = monotonic()
            recovering = self.services.compactor.recover(job, attempt.on_start)
            decision = await self._decide(latest.understood, recovering)
            smaller = decision.view is not None and decision.view.tokens < latest.sent
            if not smaller:
                attempt.decide(observed.prepared)
                break
            # Why there was no summary before is still why there is none.
            why = decision.why or (() if decision.status == "summarized" else latest.prepared.why)
            decision = replace(decision, actions=(*decision.actions, "recovered"), why=why)
            self.record.decided(latest.understood, decision, began)
            attempt.decide(decision)
            latest = attempt.observe(self.services, latest.understood, decision)
            try:
                again = await self._forward(latest, attempt)
            except StenoError as error:
                self.record.failed(error)
                attempt.decide(observed.prepared)
                break
            if again.status == 200 and latest.overflow is None:
                await answering.close()
                self.own_headers = latest.understood.headers(decision)
                return latest, again
            await again.close()
            attempt.decide(observed.prepared)
        return observed, answering

    async def _answer(self, understood: Understood, observed: Observation, answering: Answering) -> None:
        """The provider's status first, then its bytes."""
        prepared = observed.prepared
        self.own_headers = understood.headers(prepared)
        if prepared.view is None and value_of(answering.headers, b"x-context-status"):
            await self._relay_as_sent(answering, [])  # Another Steno, which may have done more.
            return
        readable = answering.status == 200 and self.services.settings.events.body
        kind = media_type(answering.headers) if readable else ""
        if kind == EVENT_STREAM:
            headers = returned(answering.headers, self.own_headers, body_changed=True)
            await self.answer.start(answering.status, headers)
            await self._relay_stream(answering, understood.stream_editor(prepared, observed.asks_usage), observed)
        elif kind == "application/json":
            await self._relay_plain(answering, understood.status_members(prepared), observed)
        else:
            await self._relay_as_sent(answering, self.own_headers)

    async def _forward(self, observed: Observation, attempt: Attempt) -> Answering:
        """The provider's answer. Once the client's stream has begun no SDK repeats a request: then we do, as it would.

        Raises the upstream errors.
        """
        patience = Patience(observed.understood.job.wait_seconds)
        while True:
            try:
                answering = await self._ask(observed, attempt)
            except UpstreamUnreachable:  # Nobody has seen the request.
                if not attempt.is_early or (pause := patience.pause()) is None:
                    raise
            else:
                status, headers = answering.status, answering.headers
                is_final = status == 200 or observed.overflow is not None or not is_repeatable(status, headers)
                if is_final or not attempt.is_early or (pause := patience.pause(headers)) is None:
                    return answering
                await answering.close()
                request_id = self.record.request_id
                log.info("asked once more", request_id=request_id, status=status, seconds=round(pause, 3))
            await asyncio.sleep(pause)

    async def _ask(self, observed: Observation, attempt: Attempt) -> Answering:
        """An answer. A refusal is read first; where it is the question for the usage, it is not asked."""
        answering = await self._send_observed(observed, attempt)
        if answering.status in REFUSALS:
            refused = await read_refusal(answering)
            if not await observed.refused(refused):
                return refused
            await refused.close()
            return await self._send_observed(observed, attempt)
        if media_type(answering.headers) == EVENT_STREAM and observed.could_overflow:
            opened = attempt.opened(await read_first_piece(answering))
            if error := refusal_in(opened.read):
                await observed.refusal(answering.status, answering.headers, error, first_frame=True)
            return opened
        return answering

    async def _send_observed(self, observed: Observation, attempt: Attempt) -> Answering:
        understood = observed.understood
        body = await understood.beside(observed.body)
        answering = attempt.opened(await self._send(body, understood.provider, understood.job.model))
        observed.answered(answering.status)
        return answering

    async def _send(self, body: bytes, provider: Provider, model: str | None = None) -> Answering:
        headers = forwarded(self.headers, read_here=True)
        self.record.goes_to(provider, model)
        answering = await provider.upstream.relay(b"POST", self.scope[TARGET], headers, body)
        self.record.answered(answering)
        return answering

    async def _relay_unread(self, own: Headers) -> None:
        """For the provider to judge, or another Steno's own call: nothing is looked at."""
        self.own_headers = own
        answering = await self._send(self.body, await self._provider())
        try:
            await self._relay_as_sent(answering, unless_told(own, list(answering.headers)))
        finally:
            await answering.close()

    async def _provider(self) -> Provider:
        """Where a body goes that was not understood: its model may still be readable."""
        model = await model_of(self.services, self.tenant, self.body)
        return self.services.providers.of(model, self.scope[UPSTREAM])

    async def _relay_as_sent(self, answering: Answering, own: Headers) -> None:
        """Nothing is added to the body, but a stream that is cut still ends with an error."""
        if answering.status == 200 and media_type(answering.headers) == EVENT_STREAM:
            await self.answer.start(answering.status, returned(answering.headers, own, body_changed=True))
            await self._relay_stream(answering, StreamEditor(b"", b""))
        else:
            await relay_raw(answering, self.answer, own, self.record)

    async def _relay_plain(self, answering: Answering, members: bytes, observed: Observation) -> None:
        """With our members, but for an answer too large to be held: it passes as it comes."""
        body, chunks = bytearray(), answering.chunks()
        async for chunk in chunks:
            body += chunk
            if len(body) > LARGEST_WHOLE:
                opened = Opened(answering, chunks, bytes(body))
                await relay_raw(opened, self.answer, self.own_headers, self.record)
                return
        await self._relay_whole(answering, bytes(body), members, observed)

    async def _relay_whole(self, answering: Answering, body: bytes, members: bytes, observed: Observation) -> None:
        with suppress(Unreadable):
            if holds_more_values(body, MOST_RAW):
                raise TooManyValues
            completion = RawObject(body)
            usage = completion.value("usage") if len(completion.raw("usage") or b"") <= LONGEST_USAGE else None
            observed.usage(usage, streamed=False)
            if window_was_full(completion.raw("choices")):
                observed.window_full(usage, len(body))
            body = completion.with_status(members)
        await self.answer.whole(
            answering.status, returned(answering.headers, self.own_headers, body_changed=True), body
        )

    async def _relay_stream(
        self, answering: Answering, editor: StreamEditor, observed: Observation | None = None
    ) -> None:
        """Frames as they arrive. A stream that breaks off ends with an error frame, never cleanly."""
        splitter = FrameSplitter()
        broken: StenoError | None = None
        try:
            async for chunk in answering.chunks():
                frames = splitter.feed(chunk)
                for start in range(0, len(frames), FRAMES_AT_ONCE):
                    if start:
                        await asyncio.sleep(0)
                    await self.answer.body(b"".join(map(editor.edit, frames[start : start + FRAMES_AT_ONCE])))
        except StenoError as error:
            broken = error
        rest = editor.edit(splitter.flush())
        if observed is not None:
            streamed = media_type(answering.headers) == EVENT_STREAM
            observed.usage(editor.usage, whole=editor.complete and not editor.failed, streamed=streamed)
            if editor.window_full:
                observed.window_full(editor.usage, editor.text_bytes)
        if editor.complete:
            await self.answer.end(rest)
            return
        broken = broken or UpstreamDisconnected("The provider's stream ended in the middle of the answer.")
        self.record.cut(broken)
        # What is left of a frame is dropped, and a part of it that was passed on is ended: the error must stand in a
        # frame of its own.
        await self.answer.end((b"\n\n" if splitter.overran else b"") + event(broken.envelope))
