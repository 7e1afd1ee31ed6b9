"""Asides: what the provider knows of an answer and its client does not; in the store for as long as a turn may run, and
in memory as far as this process answered, or looked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
from msgspec import Struct

from app.compaction.request import ChatRequest
from app.core.history.messages import Kind
from app.core.history.secrets import Scrub
from app.runtime.caches import Cache, Caches
from app.runtime.erased import Erased
from app.store import Store, StoreUnavailable
from app.store.places import asides_at, keep_aside
from app.wire.recall_tools import Aside

LARGEST_STORED = 1 << 20
"""Bytes of an aside that is stored: a larger one is this process's own."""


class _Held(Struct, frozen=True):
    conversation_id: str
    aside: Aside | None
    """None where it is known that there is none."""


class Asides:
    """Asides by the digest of the history that was answered, until the client sends the results of its own calls. Where
    one is forgotten, the turn goes on without it."""

    def __init__(self, store: Store, caches: Caches, scrub: Scrub) -> None:
        """`scrub`: what is stored of a text."""
        self._store = store
        self._scrub = scrub
        self._held: Cache[tuple[str, bytes], _Held] = caches.cache(
            "asides", lambda _, held: held.aside.size if held.aside else 0
        )

    async def keep(self, request: ChatRequest, aside: Aside | None) -> None:
        """Keep the aside of the answer to a request; None if it has none, for which nobody then has to look."""
        place = request.conversation.chain.digests[-1]
        if aside is not None or (request.tenant, place) not in self._held:
            self._remember(request, place, aside)
        if aside is None or aside.size > LARGEST_STORED:
            return
        try:
            text = msgspec.json.encode(aside).decode()
            if self._scrub(text) != text:  # Without its secrets it would not be what the provider said.
                return
            await self._store.request_change(keep_aside, request.tenant, place, text, request.conversation_id)
        except StoreUnavailable:
            return  # This process knows it.

    async def of(self, request: ChatRequest) -> Sequence[Aside]:
        """Asides of the turn under way, in the order of the history. The store is asked for places that nobody answered
        here."""
        places = list(_answered(request))
        held = {place: self._held.use((request.tenant, place)) for place in places}
        unknown = [place for place in places if held[place] is None]
        try:
            stored = await self._store.request(asides_at, request.tenant, unknown) if unknown else {}
            for place in unknown:
                aside = msgspec.json.decode(stored[place], type=Aside) if place in stored else None
                held[place] = self._remember(request, place, aside)
        except (StoreUnavailable, msgspec.DecodeError):
            pass  # The turn goes on with what this process knows.
        return [found.aside for place in places if (found := held[place]) is not None and found.aside is not None]

    def forget(self, erased: Erased) -> None:
        self._held.drop(lambda key, held: erased.covers(key[0], held.conversation_id))

    def _remember(self, request: ChatRequest, place: bytes, aside: Aside | None) -> _Held:
        held = _Held(request.conversation_id, aside)
        self._held.keep((request.tenant, place), held)
        return held


def _answered(request: ChatRequest) -> Iterator[bytes]:
    """The places in the turn under way at which the model answered."""
    chain, transcript = request.conversation.chain, request.conversation.transcript
    for place in range(transcript.last_user + 1, len(transcript)):
        if transcript.messages[place].kind is Kind.ASSISTANT and (
            place == 0 or transcript.messages[place - 1].kind is not Kind.ASSISTANT
        ):
            yield chain.digests[place]
