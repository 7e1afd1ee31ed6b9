"""Native compaction: what a provider is asked for that it cannot do, done here, and given back in its own shapes.

The way of a request that has to do with it, in one line: what stands for a compaction of ours in its history is put
back (`resolved`) -> it is decided who does what is asked (`Exchange`: the provider, or we) -> all of the history
is summarised where that is due (`compacted`) -> the answer is that alone, or the provider's with it
(`ExtendedAnswer`). Between these it is a request like any other.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from time import time

from msgspec import Struct
from msgspec.structs import replace

from app.compaction.references import BrokenReference, Reference
from app.compaction.request import ChatRequest
from app.core.deciding.attempt import Compact
from app.core.reasons import Code, because, joined
from app.core.stages.ladder import Decision
from app.core.summary.beside import merged_rules
from app.core.summary.prompts import chunk_text
from app.core.view.chunks import SummaryChunk
from app.edge.asgi import ClientAnswer
from app.edge.relayed import EVENT_STREAM, Headers, media_type
from app.errors import CompactionFailed, InvalidReference, NothingToCompact, StorageUnavailable
from app.proxy.archiving import archive
from app.proxy.caller import Caller
from app.proxy.early import kept_alive
from app.proxy.intake import count, read, take_in
from app.proxy.report import seen
from app.proxy.services import Services
from app.store import StoreUnavailable
from app.store.chunks import chunks_named
from app.wire.native import AnswerExtension, MadeCompaction
from app.wire.sse import KEEP_ALIVE, frames_in
from app.wire.types import CompactionAsk, Referred, WireRequest

AWAY = "The database that holds this conversation's compaction is away. Try again in a second."
_REMEDY = "Send it as it came, with the same key, or the messages that it stands for in its place."


class Done(Struct, frozen=True):
    """Compaction of a whole history."""

    request: ChatRequest
    decision: Decision
    """Decision as if the compaction had been sent in place of the history."""
    made: MadeCompaction

    @property
    def chunks(self) -> Sequence[SummaryChunk]:
        return self.decision.view.chunks if self.decision.view else ()


async def resolved(services: Services, caller: Caller, referred: Referred) -> Sequence[SummaryChunk]:
    """Return the summaries that a reference stands for. Raises `InvalidReference`, and `StorageUnavailable`, without
    which nobody knows what was said."""
    try:
        reference = services.references.opened(referred.text, (caller.tenant,), caller.format.name)
    except BrokenReference as error:
        raise InvalidReference(f"A compaction in the history cannot be read: {error}. {_REMEDY}") from error
    try:
        chunks = await services.store.request(chunks_named, caller.tenant, reference.chunks)
    except StoreUnavailable as error:
        raise StorageUnavailable(AWAY) from error
    if not chunks or len(chunks) < len(reference.chunks):
        raise InvalidReference(f"A compaction in the history cannot be read: its summaries are deleted. {_REMEDY}")
    if referred.told is not None and referred.told != _text(chunks):
        raise InvalidReference(f"A compaction in the history cannot be read: its text was altered. {_REMEDY}")
    return chunks


class Restored(Struct, frozen=True):
    """Request whose history began with a compaction of ours, and has its summaries in that place."""

    caller: Caller
    body: bytes
    wire: WireRequest
    chunks: tuple[str, ...]
    """Ids of the summaries."""


async def restored(services: Services, caller: Caller, wire: WireRequest) -> Restored | None:
    """Restore a request; None if it has no compaction of ours. Raises what `resolved` raises, and `read`."""
    if (native := caller.format.native) is None or wire.referred is None:
        return None
    chunks = await resolved(services, caller, wire.referred)
    caller = continuing(caller, chunks[-1].conversation_id, chunks)
    body = native.resolved(wire, _text(chunks))
    return Restored(caller, body, await read(services, caller, body), ids_of(chunks))


def continuing(caller: Caller, conversation_id: str, chunks: Sequence[SummaryChunk]) -> Caller:
    """Return the caller as the one of a history that begins with these summaries of a conversation."""
    rules = tuple(merged_rules(chunk.rules for chunk in chunks))
    return replace(caller, continues=conversation_id, inherited_rules=rules)


def ids_of(chunks: Sequence[SummaryChunk]) -> tuple[str, ...]:
    return tuple(chunk.id for chunk in chunks)


def is_due(request: ChatRequest, ask: CompactionAsk) -> bool:
    """True if there is as much as a compaction is asked for. The request is counted."""
    if ask.always:
        return True
    tokens, budget = request.conversation.tokens, request.budget
    if ask.threshold is None:
        return tokens > budget.trigger.tokens
    return budget.line.reported(tokens) > ask.threshold


async def taken_in(services: Services, caller: Caller, wire: WireRequest, request_id: str) -> ChatRequest:
    """Take in and count a history that is to be compacted as a whole."""
    request = await take_in(services, wire, caller, request_id)
    await count(services, caller.tenant, request.conversation, request.prompt)
    return request


async def compacted(services: Services, caller: Caller, request: ChatRequest) -> Done:
    """Compact the whole history, but for the turn that would begin next. Raises `CompactionFailed`,
    `NothingToCompact` and `StorageUnavailable`."""
    try:
        decision = await services.compactor.decide(request, Compact())
    except StoreUnavailable as error:
        raise StorageUnavailable("The database is away, where compactions are kept. Try again in a second.") from error
    if decision.view is None and any(reason.code is Code.NOTHING_TO_SUMMARISE for reason in decision.why):
        raise NothingToCompact("There is nothing to compact: the history holds no turn.")
    if decision.view is None:
        why = decision.why or because(Code.SUMMARY_FAILED)
        raise CompactionFailed(f"The history could not be compacted: {joined(why)}.", why)
    services.store.writes.record(await request.beside(services.work.do, lambda: seen(request, decision)))
    archive(services, request)
    chunks, place = decision.view.chunks, request.conversation.chain[request.covered(decision)]
    reference = Reference(ids_of(chunks), place, int(time()))
    sealed = services.references.sealed(reference, caller.tenant, caller.format.name)
    before, after = request.conversation.tokens, sum(chunk.tokens for chunk in chunks)
    reported = request.budget.line.reported
    return Done(request, decision, MadeCompaction(sealed, _text(chunks), reported(before), reported(after)))


def _text(chunks: Sequence[SummaryChunk]) -> str:
    return "\n\n".join(map(chunk_text, chunks))


Make = Callable[[WireRequest], Awaitable[MadeCompaction | None]]


class ExtendedAnswer(ClientAnswer):
    """Provider's answer, into which a compaction of ours is put on its last step to the client."""

    def __init__(self, answer: ClientAnswer, extension: AnswerExtension, make: Make, keep_alive_seconds: float) -> None:
        self._answer = answer
        self._extension = extension
        self._make = make
        self._keep_alive_seconds = keep_alive_seconds
        self._streams = answer.started  # What has begun already is a stream of ours.

    @property
    def started(self) -> bool:  # type: ignore[override] # it is the answer's
        return self._answer.started

    @property
    def ended(self) -> bool:  # type: ignore[override]
        return self._answer.ended

    def hold_head(self) -> None:
        """Hold nothing: the piece that comes next may have to be made first."""

    async def start(self, status: int, headers: Headers) -> None:
        self._streams = status == 200 and media_type(headers) == EVENT_STREAM
        await self._answer.start(status, headers)

    async def body(self, piece: bytes) -> None:
        await self._answer.body(await self._edited(piece))

    async def end(self, piece: bytes = b"") -> None:
        await self._answer.end(await self._edited(piece))

    async def whole(self, status: int, headers: Headers, body: bytes) -> None:
        if status == 200:
            closes = self._extension.body_closes(body)
            made = await self._make(closes) if closes is not None else None
            body = self._extension.body(body, made)
        await self._answer.whole(status, headers, body)

    async def _edited(self, piece: bytes) -> bytes:
        if not self._streams or not piece:
            return piece
        edited: list[bytes] = []
        for frame in frames_in(piece):
            made = None
            if (closes := self._extension.frame_closes(frame)) is not None:
                await self._answer.body(b"".join(edited))
                edited.clear()
                say = partial(self._answer.body, KEEP_ALIVE)
                made = await kept_alive(self._make(closes), self._keep_alive_seconds, say)
            edited.append(self._extension.frame(frame, made))
        return b"".join(edited)
