"""Memory: the chunks this process has seen of late, for when the database is away."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from time import monotonic

from app.core.chunks import SummaryChunk

MOST_REMEMBERED = 2_000
"""Chunks of about 2 kB."""
SECONDS = 900.0
"""An edit or a deletion elsewhere is not heard of: what is older is not used any more."""

Place = tuple[str, str, str]
"""Tenant, series and id."""


class ChunkMemory:
    """Never asked while the database answers: that knows what was edited and deleted."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._chunks: OrderedDict[Place, tuple[SummaryChunk, float]] = OrderedDict()

    def keep(self, tenant: str, chunks: Iterable[SummaryChunk]) -> None:
        until = self._clock() + SECONDS
        for chunk in chunks:
            place = (tenant, chunk.series, chunk.id)
            self._chunks[place] = (chunk, until)
            self._chunks.move_to_end(place)
        while len(self._chunks) > MOST_REMEMBERED:
            self._chunks.popitem(last=False)

    def chunks_in(self, tenant: str, series: str, chain: Sequence[bytes]) -> list[SummaryChunk]:
        """The series' chunks that begin and end in the chain."""
        digests, now = frozenset(chain), self._clock()
        return [
            chunk
            for (owner, kind, _), (chunk, until) in self._chunks.items()
            if (owner, kind) == (tenant, series)
            and until > now
            and chunk.from_digest in digests
            and chunk.through_digest in digests
        ]

    def forget(self, tenant: str, conversation_id: str) -> None:
        """What a conversation made that is to be deleted."""
        gone = [
            place
            for place, (chunk, _) in self._chunks.items()
            if place[0] == tenant and chunk.conversation_id == conversation_id
        ]
        for place in gone:
            del self._chunks[place]
