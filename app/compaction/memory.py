"""Memory: the chunks this process has seen recently, for when the database is away."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from sys import getsizeof
from time import monotonic

from msgspec import Struct

from app.core.view.chunks import SummaryChunk
from app.runtime.caches import Cache, Caches
from app.runtime.erased import Erased

CHUNK_BYTES = 2_000
"""Bytes of a chunk beside its texts."""
SECONDS = 900.0
"""Seconds for which a chunk is used: of an edit elsewhere nobody hears, nor of a deletion without NOTIFY."""

Place = tuple[str, str, str]
"""Tenant, series and id."""


class _Remembered(Struct, frozen=True):
    chunk: SummaryChunk
    stored: bool
    until: float
    """End of its use, by the clock."""


class ChunkMemory:
    """Chunks by place, used only while the database does not answer: it knows what was edited and deleted."""

    def __init__(self, caches: Caches, clock: Callable[[], float] = monotonic) -> None:
        self._chunks: Cache[Place, _Remembered] = caches.cache("summaries", _held_bytes)
        self._clock = clock

    def keep(self, tenant: str, chunks: Iterable[SummaryChunk], *, stored: bool = True) -> None:
        until = self._clock() + SECONDS
        for chunk in chunks:
            self._chunks.keep((tenant, chunk.series, chunk.id), _Remembered(chunk, stored, until))

    def chunks_in(self, tenant: str, series: str, chain: Sequence[bytes]) -> list[SummaryChunk]:
        """Return the series' chunks that begin and end in the chain."""
        return [held.chunk for held in self._held_in(tenant, series, chain)]

    def take_unstored(self, tenant: str, series: str, chain: Sequence[bytes]) -> list[SummaryChunk]:
        """Take out chunks of the series that could not be stored, the oldest first."""
        taken = [held.chunk for held in self._held_in(tenant, series, chain) if not held.stored]
        for chunk in taken:
            self._chunks.pop((tenant, series, chunk.id))
        return taken

    def forget(self, erased: Erased) -> None:
        """Forget the chunks that what was erased made."""
        self._chunks.drop(lambda place, held: erased.covers(place[0], held.chunk.conversation_id))

    def forget_stored(self) -> None:
        """Forget what the database has: of an erasure nobody may have heard."""
        self._chunks.drop(lambda _, held: held.stored)

    def forget_chunks(self, tenant: str, ids: Iterable[str]) -> None:
        """Forget these chunks and every fold over any of them."""
        gone = set(ids)
        own = (held.chunk for (owner, _, _), held in self._chunks.items() if owner == tenant)
        for chunk in sorted(own, key=lambda chunk: (chunk.last_index, chunk.level)):
            if not gone.isdisjoint(chunk.children):
                gone.add(chunk.id)
        self._chunks.drop(lambda place, _: place[0] == tenant and place[2] in gone)

    def _held_in(self, tenant: str, series: str, chain: Sequence[bytes]) -> Iterator[_Remembered]:
        digests, now = frozenset(chain), self._clock()
        for (owner, kind, _), held in self._chunks.items():
            ends = {held.chunk.from_digest, held.chunk.through_digest}
            if (owner, kind) == (tenant, series) and held.until > now and ends <= digests:
                yield held


def _held_bytes(_: Place, held: _Remembered) -> int:
    chunk = held.chunk
    return CHUNK_BYTES + sum(map(getsizeof, (chunk.text, *chunk.values, *chunk.rules, *chunk.children)))
