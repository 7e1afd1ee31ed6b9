"""Background compaction: made after an answer, from the request that was answered, before anybody has to wait for it.

When it begins and how much it stands for is for core to say (`core/limits/ahead`): `budget_ahead` has a trigger that
fires earlier and a smaller target, and what is made is what would be due if that were the request's own. The reading
rule does the rest: a chunk that is made ahead waits until a request fires the trigger. There is no queue. What finds no
room is not made, and the next answer of the conversation asks again; until then its requests go on without, and wait
only where they would not fit well any more.
"""

from __future__ import annotations

import structlog
from msgspec.structs import replace

from app.compaction.compactor import Compactor
from app.compaction.job import Job, Place
from app.compaction.paces import Paces
from app.compaction.quotas import BackgroundRoom
from app.core.limits.ahead import budget_ahead, least_looked_at, requests_meanwhile
from app.core.reasons import Code
from app.core.stages.ladder import Decision
from app.runtime.bounded import MOST_REMEMBERED, BoundedMap
from app.runtime.owned import OwnedTasks
from app.settings import BackgroundSettings

log = structlog.get_logger("steno.compactor")

LOOKED_AT_GROWTH = 0.05
"""Share of the limit by which a history has to grow before it is looked at again, if nothing was due for it."""
LONGEST_SECONDS = 3_600.0
"""Time limit of a background compaction in seconds. Nobody waits for it; none takes as long."""


class Background:
    def __init__(self, compactor: Compactor, paces: Paces, room: BackgroundRoom, tasks: OwnedTasks) -> None:
        self._compactor = compactor
        self._paces = paces
        self._tasks = tasks
        self._room = room
        self._looked: BoundedMap[Place, int] = BoundedMap(MOST_REMEMBERED)
        """Sizes of the histories when they were looked at, in tokens."""

    def consider(self, job: Job, settings: BackgroundSettings, decision: Decision) -> None:
        """Begin what is to be made for the next requests, after an answer, where it is time. Not called for
        histories that `least_remembered` leaves out. Never raises: that would close the client's connection behind a
        good answer."""
        try:
            self._consider(job, settings, decision)
        except Exception:
            log.exception(
                "a background compaction failed", request_id=job.request_id, conversation_id=job.conversation_id
            )

    def _consider(self, job: Job, settings: BackgroundSettings, decision: Decision) -> None:
        if not (settings.enabled and job.compaction and job.policy.summarises):
            return
        conversation, budget = job.conversation, job.budget
        sent = decision.view.tokens if decision.view else conversation.tokens
        self._paces.answered(job.place, conversation.tokens, sent)
        is_missed = any(reason.code is Code.SUMMARY_IN_BACKGROUND for reason in decision.why)
        if not (is_missed or sent > least_looked_at(budget)) or not self._compactor.comes_back(job):
            return
        ahead = budget_ahead(budget, conversation.transcript, self._requests_meanwhile(job))
        # What was sent without its summary may have been made small enough not to look like it.
        if is_missed or (sent > ahead.trigger.tokens and self._is_news(job)):
            self._begin(replace(job, budget=ahead), budget.target)

    def _requests_meanwhile(self, job: Job) -> int:
        first = job.routes[0]
        seconds = self._paces.summary_seconds((first.name, first.model))
        return requests_meanwhile(seconds, self._paces.of(job.place).seconds)

    def _is_news(self, job: Job) -> bool:
        """True if looking at the history may find something to do: each look reads the store."""
        looked = self._looked.get(job.place)
        return looked is None or abs(job.conversation.tokens - looked) >= LOOKED_AT_GROWTH * job.budget.limit

    def _begin(self, job: Job, target: int) -> None:
        place = job.place
        if self._room.is_taken(place):
            return
        if not self._room.is_free(job.tenant, job.size):
            log.debug("no room for a background compaction", request_id=job.request_id, conversation_id=place[1])
            return
        self._room.take(place, job.size)
        self._looked.keep(place, job.conversation.tokens)
        # `job` is all that is kept of the request.
        ahead = replace(job, purpose="background", wait_seconds=LONGEST_SECONDS)
        work = self._tasks.start(self._make(ahead, target), f"background compaction for {job.request_id}")
        work.add_done_callback(lambda _: self._room.leave(place))

    async def _make(self, job: Job, target: int) -> None:
        try:
            await self._compactor.make_ahead(job, target)
        except Exception:
            log.exception(
                "a background compaction failed", request_id=job.request_id, conversation_id=job.conversation_id
            )
