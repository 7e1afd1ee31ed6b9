"""Prints of sent payloads (`core/view/ties`): in the store, and in memory as far as this process sent them."""

from __future__ import annotations

from collections.abc import Sequence

from app.core.deciding.request import Request
from app.core.view.ties import Prints
from app.runtime.caches import Cache, Caches
from app.store import Store, StoreUnavailable
from app.store.places import keep_print, prints_at

PRINT_BYTES = 150
"""Bytes of a print in a set, with a place beside it."""


class SentPrints:
    def __init__(self, store: Store, caches: Caches) -> None:
        self._store = store
        self._own: Cache[tuple[str, bytes], frozenset[bytes]] = caches.cache(
            "prints", lambda _, prints: PRINT_BYTES * (2 + len(prints))
        )

    async def at(self, request: Request, places: Sequence[bytes]) -> Prints:
        """Return the prints of these places; those of this process alone if the store is away."""
        own = {place: prints for place in places if (prints := self._own.get((request.tenant, place))) is not None}
        try:
            stored = await self._store.request(prints_at, request.tenant, places)
        except StoreUnavailable:
            return own
        return {place: own.get(place, frozenset()) | stored.get(place, frozenset()) for place in (*own, *stored)}

    async def keep(self, request: Request, place: bytes, print_: bytes) -> None:
        key = request.tenant, place
        self._own.keep(key, (self._own.get(key) or frozenset()) | {print_})
        try:
            await self._store.request_change(keep_print, request.tenant, place, print_, request.conversation_id)
        except StoreUnavailable:
            return  # This process knows it.
