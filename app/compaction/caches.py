"""Caches: chunks, which Steno uses while the store is unavailable, and recall indexes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext
from sys import getsizeof
from threading import Lock
from time import monotonic

from msgspec import Struct, field
from msgspec.structs import replace

from app.compaction.chunks import SummaryChunk
from app.compaction.recall import Recollection, with_recalled
from app.compaction.request import ChatRequest, ConversationKey
from app.compaction.verify import problems
from app.compaction.view import View
from app.runtime.caches import Cache, Caches, Erased
from app.runtime.tasks import WorkerThreads

CHUNK_BYTES = 2_000
"""Estimated bytes of a chunk without its texts."""
SECONDS = 900.0
"""Maximum age of cached chunks in seconds: another process may have erased the chunks from the store."""
_Key = tuple[ConversationKey, str]


class _Remembered(Struct, frozen=True):
    chunks: tuple[SummaryChunk, ...]
    until: float
    """Expiry time by the cache's clock."""


class ChunkMemory:
    """Cache of chunks by conversation and series. Each read of the store replaces a conversation's chunks, so that
    edited and erased chunks disappear."""

    def __init__(self, caches: Caches, clock: Callable[[], float] = monotonic) -> None:
        self._chunks: Cache[_Key, _Remembered] = Cache(caches, "summaries", _held_bytes)
        self._clock = clock

    def keep(self, key: ConversationKey, series: str, chunks: Sequence[SummaryChunk]) -> None:
        """Replace the cached chunks by `chunks`, as read from the store."""
        if chunks:
            self._chunks.keep((key, series), _Remembered(tuple(chunks), self._clock() + SECONDS))
        else:
            self._chunks.pop((key, series))

    def add(self, key: ConversationKey, series: str, chunk: SummaryChunk) -> None:
        held = self._chunks.get((key, series))
        self.keep(key, series, (*(held.chunks if held else ()), chunk))

    def chunks_in(self, key: ConversationKey, series: str, chain: Collection[bytes]) -> list[SummaryChunk]:
        held, digests = self._chunks.use((key, series)), frozenset(chain)
        if held is None or held.until <= self._clock():
            return []
        return [chunk for chunk in held.chunks if {chunk.from_digest, chunk.through_digest} <= digests]

    def forget(self, erased: Erased) -> None:
        """Forget an erased conversation, and all conversations that use its chunks."""

        def is_gone(key: _Key, held: _Remembered) -> bool:
            tenant, conversation_id = key[0]
            ids = {conversation_id, *(chunk.conversation_id for chunk in held.chunks)}
            return any(erased.covers(tenant, id_) for id_ in ids)

        self._chunks.drop(is_gone)

    def forget_chunks(self, tenant: str, ids: Collection[str]) -> None:
        """Forget all conversations of the tenant that use one of these edited or deleted chunks. Other processes
        learn of the change when they next read such a conversation from the store."""
        gone = set(ids)
        self._chunks.drop(lambda key, held: key[0][0] == tenant and not gone.isdisjoint(c.id for c in held.chunks))


def _held_bytes(_: _Key, held: _Remembered) -> int:
    said = (words.text for chunk in held.chunks for words in chunk.user_words)
    texts = (*said, *(text for chunk in held.chunks for text in (chunk.text, *chunk.values, *chunk.children)))
    return CHUNK_BYTES * len(held.chunks) + sum(map(getsizeof, texts))


class _Held(Struct, frozen=True):
    recollection: Recollection
    size: int = 0
    """Estimated bytes of the index after its last search. A thread computes this number only under the lock, because
    another thread may extend the index."""
    lock: Lock = field(default_factory=Lock)
    """Lock that allows one search at a time."""


class RecallIndexCache:
    def __init__(self, work: WorkerThreads, caches: Caches) -> None:
        self._work = work
        self._held: Cache[tuple[ConversationKey, str], _Held] = Cache(caches, "recall", lambda _, held: held.size)
        """Indexes by conversation and model, because token counts differ between models. Rebuilding an evicted index
        takes seconds for a million tokens."""

    async def recalled(self, request: ChatRequest, view: View) -> View:
        """Return the view with quotations: passages of omitted messages that match the last user message."""
        key = request.conversation_key, request.model
        known = self._held.use(key)
        found, held = await self._work.do(request.tenant, lambda: _look(request, view, known))
        self._held.keep(key, held)
        return found

    def forget(self, erased: Erased) -> None:
        self._held.drop(lambda key, _: erased.covers(*key[0]))


def _look(request: ChatRequest, view: View, known: _Held | None) -> tuple[View, _Held]:
    conversation, budget = request.conversation, request.budget
    with known.lock if known else nullcontext():
        held = known if known and known.recollection.is_of(conversation) else _Held(Recollection(conversation))
        found = with_recalled(conversation, view, held.recollection, budget, request.cost)
        held = replace(held, size=held.recollection.size)
    wrong = problems(conversation, found, budget.limit, alternates=request.policy.alternates)
    return view if wrong else found, held
