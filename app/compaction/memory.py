"""Memory: the chunks of each conversation as the store last had them, for when it is away."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from sys import getsizeof
from time import monotonic

from msgspec import Struct

from app.compaction.chunks import SummaryChunk
from app.runtime.caches import Cache, Caches
from app.runtime.erased import Erased

CHUNK_BYTES = 2_000
"""Bytes of a chunk beside its texts."""
SECONDS = 900.0
"""Seconds after the store's answer for which its chunks are used: another process may have erased them meanwhile."""

Place = tuple[str, str]
"""Tenant and conversation id."""
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
