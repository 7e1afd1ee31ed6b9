"""Ties: what is sent is made such that its provider takes the thoughts in it (`core/view/ties`)."""

from __future__ import annotations

from dataclasses import replace

from app.compaction.job import Job
from app.core.stages.ladder import Decision
from app.core.view.ties import Prints, tie, tied_places
from app.memory.bounded import MOST_REMEMBERED, BoundedMap
from app.store import Store, StoreUnavailable
from app.tasks.threads import Work


class Ties:
    """The prints of what was sent: in the store, and in memory as far as this process sent it."""

    def __init__(self, store: Store, work: Work) -> None:
        self._store = store
        self._work = work
        self._own: BoundedMap[tuple[str, bytes], frozenset[bytes]] = BoundedMap(MOST_REMEMBERED)

    async def tied(self, job: Job, decision: Decision, *, keep: bool = True) -> Decision:
        """The decision with the thoughts that fit. Its print is kept before anything is sent: another process may have
        the next request. `keep=False` is for a dry run."""
        conversation, view = job.conversation, decision.view
        if not conversation.history.holds_ties and (view is None or not job.ties):
            return decision
        prints = await self._prints(job)
        now, news = await job.beside(self._work, lambda: tie(conversation, view, prints, job.cost, thinks=job.ties))
        place = conversation.chain.digests[-1]
        if keep and job.ties and news is not None and news not in prints.get(place, ()):
            await self._keep(job, place, news)
        if now is view or now is None:
            return decision
        return replace(decision, view=now, actions=now.actions)

    async def _prints(self, job: Job) -> Prints:
        places = tied_places(job.conversation)
        own = {place: prints for place in places if (prints := self._own.get((job.tenant, place))) is not None}
        try:
            return {**own, **await self._store.prints_at(job.tenant, places)}
        except StoreUnavailable:
            return own

    async def _keep(self, job: Job, place: bytes, print_: bytes) -> None:
        key = job.tenant, place
        self._own.keep(key, (self._own.get(key) or frozenset()) | {print_})
        try:
            await self._store.keep_print(job.tenant, place, print_, job.conversation_id)
        except StoreUnavailable:
            return  # This process knows it.
