"""Ties: a payload is made such that its provider takes the thoughts in it (`core/view/ties`)."""

from __future__ import annotations

from msgspec.structs import replace

from app.compaction.job import Job
from app.core.stages.ladder import Decision
from app.core.view.ties import Prints, Tied, tie, tie_refused, tied_places
from app.runtime.caches import Cache, Caches
from app.runtime.threads import Work
from app.store import Store, StoreUnavailable
from app.store.places import keep_print, prints_at

PRINT_BYTES = 150
"""Bytes of a print in a set, with a place beside it."""


class Ties:
    """Prints of sent payloads: in the store, and in memory as far as this process sent them."""

    def __init__(self, store: Store, work: Work, caches: Caches) -> None:
        self._store = store
        self._work = work
        self._own: Cache[tuple[str, bytes], frozenset[bytes]] = caches.cache(
            "prints", lambda _, prints: PRINT_BYTES * (2 + len(prints))
        )

    async def tied(self, job: Job, decision: Decision, *, keep: bool = True) -> Decision:
        """Return the decision with the thoughts that fit. Its print is kept before anything is sent: another process
        may have the next request. `keep=False` is for a dry run."""
        conversation, view = job.conversation, decision.view
        if not conversation.history.holds_ties and (view is None or not job.ties):
            return decision
        prints = await self._prints(job)
        found = await job.beside(self._work, lambda: tie(conversation, view, prints, job.cost, thinks=job.ties))
        return await self._decided(job, decision, found, keep=keep)

    async def refused(self, job: Job, decision: Decision) -> Decision:
        """Return the decision after its provider refused thoughts in it: later requests are sent likewise at once."""
        conversation, view = job.conversation, decision.view
        found = await job.beside(self._work, lambda: tie_refused(conversation, view, job.cost, thinks=job.ties))
        return await self._decided(job, decision, found)

    async def _decided(self, job: Job, decision: Decision, found: Tied, *, keep: bool = True) -> Decision:
        for place, print_ in found.news if keep else ():
            await self._keep(job, place, print_)
        if found.view is decision.view or found.view is None:
            return decision
        return replace(decision, view=found.view, actions=found.view.actions)

    async def _prints(self, job: Job) -> Prints:
        places = tied_places(job.conversation)
        own = {place: prints for place in places if (prints := self._own.get((job.tenant, place))) is not None}
        try:
            stored = await self._store.request(prints_at, job.tenant, places)
        except StoreUnavailable:
            return own
        return {place: own.get(place, frozenset()) | stored.get(place, frozenset()) for place in (*own, *stored)}

    async def _keep(self, job: Job, place: bytes, print_: bytes) -> None:
        key = job.tenant, place
        self._own.keep(key, (self._own.get(key) or frozenset()) | {print_})
        try:
            await self._store.request_change(keep_print, job.tenant, place, print_, job.conversation_id)
        except StoreUnavailable:
            return  # This process knows it.
