"""Asking: a request for its provider's own compaction. The provider answers it if it can, else we do."""

from __future__ import annotations

from collections.abc import AsyncIterator
from time import monotonic

import structlog
from msgspec.structs import replace

from app.compaction.request import ChatRequest
from app.core.reasons import Code, Reason, Reasons, because
from app.edge.relayed import Headers
from app.edge.upstream import UpstreamAnswer
from app.errors import CompactionFailed, NothingToCompact, StenoError, StorageUnavailable
from app.providers.providers import Ability, Provider
from app.proxy.exchange import Exchange
from app.proxy.native import Done, ExtendedAnswer, compacted, continuing, ids_of, is_due, taken_in
from app.proxy.peeking import read_whole
from app.proxy.report import bypassed, context_headers, editor_of, unless_told
from app.wire.answers import AnswerEditor
from app.wire.native import MadeCompaction, NativeCompaction
from app.wire.paths import path_of
from app.wire.sse import frames_in
from app.wire.types import CompactionAsk, Place, WireRequest

log = structlog.get_logger("steno.native")

JSON: Headers = [(b"content-type", b"application/json")]


class Asking(Exchange):
    """Chat request that may ask for a compaction."""

    __slots__ = ()

    def _asked(self, wire: WireRequest) -> CompactionAsk | None:
        return wire.asks

    async def _hand_off(self, wire: WireRequest, reason: Reason) -> None:
        asked, native, caller = self._asked(wire), self.caller.format.native, self.caller
        if asked is None or native is None:
            await self._bypass(reason, wire.untouched)
            return
        provider = self._asked_of(wire)
        knows = provider.has(Ability.COMPACTION, caller.format.name, wire.model, caller.tenant)
        if knows is not False and await self._answered(wire, provider, native):
            return
        if (request := await self._taken_over(wire, asked, native)) is None:
            return
        if asked.place is Place.LAST:
            await self._serve_with_last(request, asked, native)
        else:
            await self._serve_compacted(wire, request, asked, native)

    async def _if_too_large(self, wire: WireRequest, handed_off: Reason) -> ChatRequest | None:
        """Return None, too, if it is not known that the provider does what is asked: then that is found out first."""
        if self._asked(wire) is None:
            return await super()._if_too_large(wire, handed_off)
        caller = self.caller
        knows = self._asked_of(wire).has(Ability.COMPACTION, caller.format.name, wire.model, caller.tenant)
        return await super()._if_too_large(wire, handed_off) if knows else None

    def _asked_of(self, wire: WireRequest) -> Provider:
        caller = self.caller
        return self.services.providers.of(wire.model, caller.format.name, caller.tenant, caller.upstream)

    async def _answered(self, wire: WireRequest, provider: Provider, native: NativeCompaction) -> bool:
        """Pass on the provider's answer if it knew what was asked; returns whether it did. What it refuses for
        another reason is served as what it knows."""
        answering: UpstreamAnswer = await self._forwarding.send(wire.untouched, provider, wire.model)
        reason, whose = Reason(Code.NATIVE_COMPACTION), (self.caller.format.name, wire.model, self.caller.tenant)
        try:
            if answering.status < 400:
                provider.showed(Ability.COMPACTION, *whose, knows=True)
            elif provider.settings.native_compaction is None:
                answering = refused = await read_whole(answering)
                if native.refused_in(refused.status, refused.read, self.caller.target.partition(b"?")[0]):
                    provider.showed(Ability.COMPACTION, *whose, knows=False)
                    return False
                if (request := await self._too_long(wire, reason)) is not None:
                    await self._serve(request)
                    return True
            self._tell_bypass(reason)
            self._note_headers(bypassed(reason))
            told = unless_told(self.own_headers, list(answering.headers))
            await self._pass_on(answering, told, provider, wire.model, wire.untouched)
        finally:
            await answering.close()
        return True

    async def _too_long(self, wire: WireRequest, reason: Reason) -> ChatRequest | None:
        """Take in a refused request, if it does not fit; None, too, if it cannot be read: the refusal is its answer."""
        found = await self._understood(super()._if_too_large(wire, reason))
        return None if isinstance(found, Reason) else found

    async def _taken_over(
        self, wire: WireRequest, asked: CompactionAsk, native: NativeCompaction
    ) -> ChatRequest | None:
        """Return the request by which we do it. None if the provider answered it as it came: because we are not to do
        it, or cannot read what is to be compacted."""
        caller, body = self.caller, self.body
        found = await self._understood(self._asked_history(wire, asked, native))
        if isinstance(found, ChatRequest) and found.compaction and found.policy.summarises:
            return found
        self.caller, self.body = caller, body
        await self._bypass(found if isinstance(found, Reason) else Reason(Code.NATIVE_COMPACTION), wire.untouched)
        return None

    async def _asked_history(self, wire: WireRequest, asked: CompactionAsk, native: NativeCompaction) -> ChatRequest:
        """Take in the history that is to be compacted."""
        self.caller = replace(self.caller, headers=list(native.headers(self.caller.headers)))
        if asked.place is Place.LAST:
            self.body = native.unasked(wire)
            history = (await self._read()).asking(threshold=asked.threshold)
        else:
            history = native.closed(wire).asking(focus=asked.focus or None)
        return await taken_in(self.services, self.caller, history, self.record.request_id)

    async def _serve_with_last(self, request: ChatRequest, asked: CompactionAsk, native: NativeCompaction) -> None:
        """Serve the provider's answer, and behind it a compaction of all, if there is as much as was asked for."""
        if is_due(request, asked):
            extension = native.extension(await self._read(), None)
            self.answer = ExtendedAnswer(self.answer, extension, self._made_behind, self._keep_alive_seconds)
        await self._serve(replace(request, referred=self.referred))

    async def _serve_compacted(
        self, wire: WireRequest, request: ChatRequest, asked: CompactionAsk, native: NativeCompaction
    ) -> None:
        """Serve a compaction of all that came: alone, or before the provider's answer to what it says."""
        if not is_due(request, asked):
            await self._serve_unasked(wire, native)
            return
        try:
            await self._serve_due(wire, request, asked, native)
        except StenoError as error:
            if not self.has_begun or self.answer.ended:
                raise
            self.record.failed(error)
            await self.answer.end(self.caller.format.answers.error_frame(error))

    async def _serve_due(
        self, wire: WireRequest, request: ChatRequest, asked: CompactionAsk, native: NativeCompaction
    ) -> None:
        making = self._compacted(request)
        try:
            done = await (
                self._kept_alive(request, making) if wire.answer.stream and request.events != "off" else making
            )
        except (CompactionFailed, NothingToCompact, StorageUnavailable) as error:
            if asked.always:  # There is nothing else to answer with.
                raise
            log.warning("a compaction was left out", request_id=self.record.request_id, reason=error.message)
            self.left_out = _why(error)
            await self._serve_unasked(wire, native)
            return
        if asked.place is Place.ALONE:
            await self._answer_alone(wire, done, native)
            return
        self.caller = continuing(self.caller, request.conversation_id, done.chunks)
        self.body, self.referred = native.compacted(wire, done.made.text), ids_of(done.chunks)
        plain = await self._read()
        extension = native.extension(plain, done.made)
        self.answer = ExtendedAnswer(self.answer, extension, self._made_behind, self._keep_alive_seconds)
        await self._serve(await self._take_in(plain))

    async def _serve_unasked(self, wire: WireRequest, native: NativeCompaction) -> None:
        """Serve it as a request that asks for no compaction."""
        self.body = native.unasked(wire)
        await self._serve(await self._take_in(await self._read()))

    async def _compacted(self, request: ChatRequest) -> Done:
        """Compact. Raises what `compacted` raises."""
        began = monotonic()
        done = await compacted(self.services, self.caller, replace(request, referred=self.referred))
        self.record.decided(done.request, done.decision, began, waited=True)
        return done

    async def _made_behind(self, closed: WireRequest) -> MadeCompaction | None:
        """Compact behind an answer; None if that fails: the answer is good without."""
        try:
            request = await taken_in(self.services, self.caller, closed, self.record.request_id)
            return (await self._compacted(request)).made
        except StenoError as error:
            log.warning("a compaction was left out", request_id=self.record.request_id, reason=error.message)
        except Exception:
            log.exception("a compaction was not made", request_id=self.record.request_id)
        return None

    async def _answer_alone(self, wire: WireRequest, done: Done, native: NativeCompaction) -> None:
        # The client's messages, with its reference: the summaries in its place are none of the user's.
        body = native.alone(self.sent or wire, done.made, path_of(self.caller.target))
        if wire.answer.stream:
            if not self.has_begun:
                await self._begin(done.request, done.decision)
            await self._stream_alone(wire, body, done)
        else:
            own = context_headers(done.request, done.decision)
            await self.answer.whole(200, [*JSON, *own], self._editor(done).whole(body))

    async def _stream_alone(self, wire: WireRequest, body: bytes, done: Done) -> None:
        spoken, editor = self.caller.format, self._editor(done)
        async for frames in spoken.answers.as_stream(wire, _at_once(body), is_stream=False, headers=JSON):
            await self.answer.body(b"".join(map(editor.edit, frames_in(frames))))
        await self.answer.end()

    def _editor(self, done: Done) -> AnswerEditor:
        return editor_of(done.request, done.decision, False, reports=self.services.events.body)


def _why(error: CompactionFailed | NothingToCompact | StorageUnavailable) -> Reasons:
    if isinstance(error, CompactionFailed):
        why: Reasons = error.why
        return why
    return because(Code.NOTHING_TO_SUMMARISE if isinstance(error, NothingToCompact) else Code.STORAGE)


async def _at_once(body: bytes) -> AsyncIterator[bytes]:
    yield body


class AskingAtPath(Asking):
    """Request to a path where nothing but a compaction is asked for."""

    __slots__ = ()

    def _hands_off(self, wire: WireRequest) -> Reason:
        return wire.hands_off or Reason(Code.NATIVE_COMPACTION)

    def _asked(self, wire: WireRequest) -> CompactionAsk | None:
        """Return the compaction asked for; None if the provider keeps what is to be compacted."""
        is_ours = self._hands_off(wire).code in (Code.NATIVE_COMPACTION, Code.CLIENT_COMPACTION)
        return CompactionAsk(Place.ALONE, always=True) if is_ours else None
