"""Memory of a process: the chunks of each conversation, for when the store is away, and what recall has read of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext
from sys import getsizeof
from threading import Lock
from time import monotonic

from msgspec import Struct, field
from msgspec.structs import replace

from app.compaction.chunks import SummaryChunk
from app.compaction.recall import RecallPolicy, Recollection, with_recalled
from app.compaction.request import Place, Request
from app.compaction.verify import problems
from app.compaction.view import View
from app.runtime.caches import Cache, Caches, Erased
from app.runtime.tasks import Work

CHUNK_BYTES = 2_000
"""Bytes of a chunk beside its texts."""
SECONDS = 900.0
"""Seconds after the store's answer for which its chunks are used: another process may have erased them meanwhile."""

_Key = tuple[Place, str]


class _Remembered(Struct, frozen=True):
    chunks: tuple[SummaryChunk, ...]
    until: float
    """End of their use, by the clock."""


class ChunkMemory:
    """Chunks by conversation and series. Each answer of the store takes the place of the one before, so that what was
    edited or erased is not used once the store has been asked again."""

    def __init__(self, caches: Caches, clock: Callable[[], float] = monotonic) -> None:
        self._chunks: Cache[_Key, _Remembered] = caches.cache("summaries", _held_bytes)
        self._clock = clock

    def keep(self, place: Place, series: str, chunks: Sequence[SummaryChunk]) -> None:
        """Keep the store's answer in place of an earlier one."""
        if chunks:
            self._chunks.keep((place, series), _Remembered(tuple(chunks), self._clock() + SECONDS))
        else:
            self._chunks.pop((place, series))

    def add(self, place: Place, series: str, chunk: SummaryChunk) -> None:
        """Add a chunk that was just stored."""
        held = self._chunks.get((place, series))
        self.keep(place, series, (*(held.chunks if held else ()), chunk))

    def chunks_in(self, place: Place, series: str, chain: Collection[bytes]) -> list[SummaryChunk]:
        """Return the conversation's chunks that begin and end in the chain."""
        held, digests = self._chunks.use((place, series)), frozenset(chain)
        if held is None or held.until <= self._clock():
            return []
        return [chunk for chunk in held.chunks if {chunk.from_digest, chunk.through_digest} <= digests]

    def forget(self, erased: Erased) -> None:
        """Forget an erased conversation, and what others have of its chunks."""

        def is_gone(key: _Key, held: _Remembered) -> bool:
            tenant, conversation_id = key[0]
            ids = {conversation_id, *(chunk.conversation_id for chunk in held.chunks)}
            return any(erased.covers(tenant, id_) for id_ in ids)

        self._chunks.drop(is_gone)

    def forget_chunks(self, tenant: str, ids: Collection[str]) -> None:
        """Forget all conversations of the tenant in which any of these chunks stands: the store is asked again."""
        gone = set(ids)
        self._chunks.drop(lambda key, held: key[0][0] == tenant and not gone.isdisjoint(c.id for c in held.chunks))


def _held_bytes(_: _Key, held: _Remembered) -> int:
    said = (words.text for chunk in held.chunks for words in chunk.user_words)
    texts = (*said, *(text for chunk in held.chunks for text in (chunk.text, *chunk.values, *chunk.children)))
    return CHUNK_BYTES * len(held.chunks) + sum(map(getsizeof, texts))


class _Held(Struct, frozen=True):
    recollection: Recollection
    size: int = 0
    """Size when it was last looked through. Nobody else may count: it may just be read on."""
    lock: Lock = field(default_factory=Lock)
    """Lock for several requests of one conversation that are looked through at once."""


class RecallIndexCache:
    def __init__(self, work: Work, caches: Caches) -> None:
        self._work = work
        self._held: Cache[tuple[Place, str], _Held] = caches.cache("recall", lambda _, held: held.size)
        """Indexes by conversation and model: notes have other sizes for each. One that is pushed out is read anew:
        some seconds of work for a million tokens."""

    async def recalled(self, request: Request, view: View, policy: RecallPolicy) -> View:
        """Add quotations of what the current message is about, from messages that the view leaves out."""
        place = request.place, request.model
        known = self._held.use(place)
        found, held = await self._work.do(request.tenant, lambda: _look(request, view, policy, known))
        self._held.keep(place, held)
        return found

    def forget(self, erased: Erased) -> None:
        self._held.drop(lambda key, _: erased.covers(*key[0]))


def _look(request: Request, view: View, policy: RecallPolicy, known: _Held | None) -> tuple[View, _Held]:
    conversation, budget = request.conversation, request.budget
    with known.lock if known else nullcontext():
        held = known if known and known.recollection.is_of(conversation) else _Held(Recollection(conversation))
        found = with_recalled(conversation, view, held.recollection, policy, budget, request.cost)
        held = replace(held, size=held.recollection.size)
    wrong = problems(conversation, found, budget.limit, alternates=request.policy.alternates)
    return view if wrong else found, held
