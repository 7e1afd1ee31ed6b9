"""Asides: what the provider knows of an answer and its client does not."""

from __future__ import annotations

from collections.abc import Iterator

from app.compaction.request import ChatRequest
from app.runtime.caches import Cache, Caches
from app.wire.recall_tools import Aside


class Asides:
    """What the provider knows of answers and their clients do not, until these send the results of their own calls.
    Forgotten where there is no more room: the turn then goes on without."""

    def __init__(self, caches: Caches) -> None:
        self._held: Cache[tuple[str, str], Aside] = caches.cache("asides", lambda _, aside: aside.size)

    def keep(self, tenant: str, aside: Aside) -> None:
        self._held.keep((tenant, aside.call_id), aside)

    def of(self, request: ChatRequest) -> Iterator[Aside]:
        """Asides of the turn under way, in the order of the history."""
        transcript = request.conversation.transcript
        for message in transcript.messages[transcript.last_user + 1 :]:
            for call in message.calls:
                if (aside := self._held.use((request.tenant, call.id))) is not None:
                    yield aside
