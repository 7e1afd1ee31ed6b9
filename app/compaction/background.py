"""Background compaction: a summary is made after an answer, from the answered request, before a request waits for it.

`background_budget` has a trigger that fires earlier and a smaller target; the summary is made that would be due if
these were the request's own limits. A request uses it once its own trigger fires. There is no queue: where too many
compactions are under way none begins, and the next answer of the conversation tries again.
"""

from __future__ import annotations

import structlog
from msgspec.structs import replace

from app.compaction.background_budget import background_budget, background_threshold, latest_start
from app.compaction.compactor import Compactor
from app.compaction.fallback import Decision
from app.compaction.planning_request import Place
from app.compaction.quotas import BackgroundRoom
from app.compaction.request import ChatRequest
from app.compaction.request_rates import RequestRates
from app.compaction.routing import SummaryRouting
from app.conversation.reasons import Code
from app.runtime.bounded import MOST_REMEMBERED, BoundedMap
from app.runtime.owned import OwnedTasks
from app.settings import BackgroundSettings

log = structlog.get_logger("steno.compactor")

PLANNED_GROWTH = 0.05
"""Share of the room by which a history has to grow before a compaction of it is planned again: each plan reads the
store. Not where the summary has to begin now."""
LONGEST_SECONDS = 3_600.0
"""Time limit of a background compaction, which none reaches."""


class Background:
    def __init__(
        self,
        compactor: Compactor,
        routing: SummaryRouting,
        rates: RequestRates,
        room: BackgroundRoom,
        tasks: OwnedTasks,
    ) -> None:
        self._compactor = compactor
        self._routing = routing
        self._rates = rates
        self._tasks = tasks
        self._room = room
        self._planned: BoundedMap[Place, int] = BoundedMap(MOST_REMEMBERED)
        """Tokens of the histories when a compaction of them was planned."""

    def consider(self, request: ChatRequest, settings: BackgroundSettings, decision: Decision) -> None:
        """Count an answered request, and begin the compaction that the next requests need. Not called for histories
        of at most `least_counted` tokens. Never raises: that would close the client's connection behind a good
        answer."""
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
        self._rates.answered(request.place, conversation.tokens, sent)
        is_missed = any(reason.code is Code.SUMMARY_IN_BACKGROUND for reason in decision.why)
        if (
            not (is_missed or sent > background_threshold(budget))
            or not self._rates.of(request.place).is_likely_to_continue
        ):
            return
        growth = self._expected_growth(request)
        ahead = background_budget(budget, growth)
        is_urgent = is_missed or sent > latest_start(budget, growth)
        # What was sent without its summary may be shortened far below the trigger.
        if is_urgent or (sent > ahead.trigger.quiet_tokens and self._has_grown(request)):
            self._begin(replace(request, budget=ahead), budget.target)

    def _expected_growth(self, request: ChatRequest) -> int:
        """Tokens by which the history may grow while its summary is made."""
        first = self._routing.routes(request)[0]
        seconds = self._rates.summary_seconds((first.name, first.model))
        return self._rates.of(request.place).growth(seconds)

    def _has_grown(self, request: ChatRequest) -> bool:
        planned = self._planned.get(request.place)
        return planned is None or abs(request.conversation.tokens - planned) >= PLANNED_GROWTH * request.budget.room

    def _begin(self, request: ChatRequest, target: int) -> None:
        place = request.place
        if self._room.is_taken(place):
            return
        if not self._room.is_free(request.tenant, request.size):
            log.debug("no room for a background compaction", request_id=request.request_id, conversation_id=place[1])
            return
        self._room.take(place, request.size)
        self._planned.keep(place, request.conversation.tokens)
        # `request` is all that is kept of the request.
        ahead = replace(request, purpose="background", wait_seconds=LONGEST_SECONDS)
        work = self._tasks.start(self._make(ahead, target), f"background compaction for {request.request_id}")
        work.add_done_callback(lambda _: self._room.leave(place))

    async def _make(self, request: ChatRequest, target: int) -> None:
        try:
            await self._compactor.make_ahead(request, target)
        except Exception:
            log.exception(
                "a background compaction failed", request_id=request.request_id, conversation_id=request.conversation_id
            )
