"""Asides: what the provider knows of an answer and its client does not."""

from __future__ import annotations

from collections.abc import Iterator

from app.compaction.request import ChatRequest
from app.runtime.caches import Cache, Caches
from app.wire.recall_tools import Aside


class Asides:
    """Asides by the digest of the history that was answered, until the client sends the results of its own calls.
    Forgotten where there is no more room, or at another process: the turn then goes on without."""

    def __init__(self, caches: Caches) -> None:
        self._held: Cache[tuple[str, bytes], Aside] = caches.cache("asides", lambda _, aside: aside.size)

    def keep(self, request: ChatRequest, aside: Aside) -> None:
        self._held.keep((request.tenant, request.conversation.chain.digests[-1]), aside)

    def of(self, request: ChatRequest) -> Iterator[Aside]:
        """Asides of the turn under way, in the order of the history."""
        chain, last_user = request.conversation.chain, request.conversation.transcript.last_user
        for digest in chain.digests[last_user + 1 :]:
            if (aside := self._held.use((request.tenant, digest))) is not None:
                yield aside
