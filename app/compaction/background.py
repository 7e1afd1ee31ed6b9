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
from app.compaction.paces import Paces
from app.compaction.quotas import BackgroundRoom
from app.compaction.request import ChatRequest
from app.compaction.writing import Writing
from app.core.deciding.attempt import Ahead
from app.core.deciding.request import Place
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
    def __init__(
        self, compactor: Compactor, writing: Writing, paces: Paces, room: BackgroundRoom, tasks: OwnedTasks
    ) -> None:
        self._compactor = compactor
        self._writing = writing
        self._paces = paces
        self._tasks = tasks
        self._room = room
        self._looked: BoundedMap[Place, int] = BoundedMap(MOST_REMEMBERED)
        """Sizes of the histories when they were looked at, in tokens."""

    def consider(self, request: ChatRequest, settings: BackgroundSettings, decision: Decision) -> None:
        """Begin what is to be made for the next requests, after an answer, where it is time. Not called for
        histories that `least_remembered` leaves out. Never raises: that would close the client's connection behind a
        good answer."""
        try:
            self._consider(request, settings, decision)
        except Exception:
            log.exception(
                "a background compaction failed", request_id=request.request_id, conversation_id=request.conversation_id
            )

    def _consider(self, request: ChatRequest, settings: BackgroundSettings, decision: Decision) -> None:
        if not (settings.enabled and request.compaction and request.policy.summarises):
            return
        conversation, budget = request.conversation, request.budget
        sent = decision.view.tokens if decision.view else conversation.tokens
        self._paces.answered(request.place, conversation.tokens, sent)
        is_missed = any(reason.code is Code.SUMMARY_IN_BACKGROUND for reason in decision.why)
        if not (is_missed or sent > least_looked_at(budget)) or not self._compactor.comes_back(request):
            return
        ahead = budget_ahead(budget, conversation.transcript, self._requests_meanwhile(request))
        # What was sent without its summary may have been made small enough not to look like it.
        if is_missed or (sent > ahead.trigger.tokens and self._is_news(request)):
            self._begin(replace(request, budget=ahead), budget.target)

    def _requests_meanwhile(self, request: ChatRequest) -> int:
        first = self._writing.routes(request)[0]
        seconds = self._paces.summary_seconds((first.name, first.model))
        return requests_meanwhile(seconds, self._paces.of(request.place).seconds)

    def _is_news(self, request: ChatRequest) -> bool:
        """True if looking at the history may find something to do: each look reads the store."""
        looked = self._looked.get(request.place)
        return looked is None or abs(request.conversation.tokens - looked) >= LOOKED_AT_GROWTH * request.budget.room

    def _begin(self, request: ChatRequest, target: int) -> None:
        place = request.place
        if self._room.is_taken(place):
            return
        if not self._room.is_free(request.tenant, request.size):
            log.debug("no room for a background compaction", request_id=request.request_id, conversation_id=place[1])
            return
        self._room.take(place, request.size)
        self._looked.keep(place, request.conversation.tokens)
        # `request` is all that is kept of the request.
        ahead = replace(request, purpose="background", wait_seconds=LONGEST_SECONDS)
        work = self._tasks.start(self._make(ahead, target), f"background compaction for {request.request_id}")
        work.add_done_callback(lambda _: self._room.leave(place))

    async def _make(self, request: ChatRequest, target: int) -> None:
        try:
            await self._compactor.decide(request, Ahead(target))
        except Exception:
            log.exception(
                "a background compaction failed", request_id=request.request_id, conversation_id=request.conversation_id
            )
