"""Background compactions: after an answer, Steno summarises the history of the request, so that the next request need
not wait.

A background compaction has a lower trigger and a smaller target than the request (`background_budget`). A later request
uses the summary once the request's own trigger fires. There is no queue: if too many background compactions run, Steno
starts none, and tries again after the conversation's next answer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable
from itertools import pairwise
from math import inf
from time import monotonic

import structlog
from msgspec import Struct
from msgspec.structs import replace

from app.compaction.budget import background_budget, background_threshold, latest_start
from app.compaction.decision import Decision
from app.compaction.request import ChatRequest, ConversationKey
from app.compaction.summariser_client import SummaryRouting
from app.conversation.reasons import Code
from app.runtime.caches import MOST_REMEMBERED, BoundedMap, Erased
from app.runtime.tasks import OwnedTasks
from app.settings import BackgroundSettings

REMEMBERED_SECONDS = 24 * 3_600.0
LATEST_REQUESTS = 8
LATEST_SUMMARIES = 4
GROWTH_MARGIN = 1.25
"""Safety factor for the measured growth rate of a conversation, because the rate varies."""
FIRST_SUMMARY_SECONDS = 20.0
"""Assumed duration of a model's first summary call."""
LEAST_SECONDS = 0.001
"""Minimum seconds by which Steno divides the growth of a history, so that it never divides by zero."""
HOUR = 3_600.0
LIKELY_REQUESTS = 3
LIKELY_TOKENS_PER_HOUR = 10_000
"""A conversation is likely to continue if it has at least `LIKELY_REQUESTS` requests, and recently had on average at
least `LIKELY_TOKENS_PER_HOUR` prompt tokens per hour."""
PLANNED_GROWTH = 0.05
"""Minimum change of a history between two background compactions, as a share of `Budget.room`, to save reads of the
store. There is no minimum if the view exceeds `latest_start`, or if the request lacked its due summary."""
LONGEST_SECONDS = 3_600.0
"""Time limit of a background compaction."""


class Answered(Struct, frozen=True):
    at: float
    """End of the answer, in seconds of the monotonic clock."""
    history: int
    """Tokens of the client's history."""
    forwarded: int
    """Tokens of the payload."""


class RequestRate(Struct, frozen=True):
    requests: int = 0
    """Number of requests. A request with the same history size as the previous one does not count."""
    latest: tuple[Answered, ...] = ()

    def after(self, answered: Answered) -> RequestRate:
        if self.latest and self.latest[-1].history == answered.history:
            return self
        return RequestRate(self.requests + 1, (*self.latest, answered)[-LATEST_REQUESTS:])

    @property
    def is_likely_to_continue(self) -> bool:
        if self.requests < LIKELY_REQUESTS:
            return False
        hours = (self.latest[-1].at - self.latest[0].at) / HOUR
        return sum(answered.forwarded for answered in self.latest[1:]) >= LIKELY_TOKENS_PER_HOUR * hours

    def growth(self, seconds: float) -> int:
        """Return the tokens by which the history may grow in `seconds`: the average growth per second times `seconds`
        and `GROWTH_MARGIN`, plus the largest growth between two requests. For the average, a pause of more than
        `seconds` between two requests counts as `seconds`, because the client may be faster after the pause."""
        steps = [max(0, later.history - earlier.history) for earlier, later in pairwise(self.latest)]
        passed = sum(min(later.at - earlier.at, seconds) for earlier, later in pairwise(self.latest))
        return int(GROWTH_MARGIN * sum(steps) / max(passed, LEAST_SECONDS) * seconds) + max(steps, default=0)


class RequestRates:
    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._rates: BoundedMap[ConversationKey, tuple[RequestRate, float]] = BoundedMap(MOST_REMEMBERED)
        """Rate of each conversation, with the time of its latest answer."""
        self._summaries: BoundedMap[Hashable, tuple[float, ...]] = BoundedMap(MOST_REMEMBERED)

    def answered(self, key: ConversationKey, history: int, forwarded: int) -> None:
        now = self._clock()
        self._rates.keep(key, (self.of(key).after(Answered(now, history, forwarded)), now))

    def of(self, key: ConversationKey) -> RequestRate:
        rate, at = self._rates.get(key) or (RequestRate(), -inf)
        return rate if self._clock() < at + REMEMBERED_SECONDS else RequestRate()

    def forget(self, erased: Erased) -> None:
        for key in [key for key in self._rates if erased.covers(*key)]:
            del self._rates[key]

    def summarised(self, by: Hashable, seconds: float) -> None:
        """Record the duration of a summary call. `by`: upstream and model."""
        self._summaries.keep(by, (*(self._summaries.get(by) or ()), seconds)[-LATEST_SUMMARIES:])

    def summary_seconds(self, by: Hashable) -> float:
        """Return the expected duration of the next summary: the maximum of the latest durations."""
        return max(self._summaries.get(by) or (FIRST_SUMMARY_SECONDS,))


class BackgroundRoom:
    """Limits on the running background compactions, for all tenants together and for each tenant: their number, and the
    bytes of their histories. Each tenant's limit of bytes is half of `body_bytes`."""

    def __init__(self, compactions: int = 16, per_tenant: int = 8, body_bytes: int = 64_000_000) -> None:
        self._compactions = compactions
        self._per_tenant = per_tenant
        self._body_bytes = body_bytes
        self.taken: dict[ConversationKey, int] = {}
        """Bytes of the history of each conversation with a running background compaction."""

    def is_free(self, tenant: str, size: int) -> bool:
        own = [held for (owner, _), held in self.taken.items() if owner == tenant]
        return (
            len(self.taken) < self._compactions
            and len(own) < self._per_tenant
            and sum(self.taken.values()) + size <= self._body_bytes
            and sum(own) + size <= self._body_bytes / 2
        )


log = structlog.get_logger("steno.compactor")


class Background:
    def __init__(
        self,
        make_ahead: Callable[[ChatRequest, int], Awaitable[None]],
        routing: SummaryRouting,
        rates: RequestRates,
        room: BackgroundRoom,
        tasks: OwnedTasks,
    ) -> None:
        self._make_ahead = make_ahead
        self._routing = routing
        self._rates = rates
        self._tasks = tasks
        self._room = room
        self._planned: BoundedMap[ConversationKey, int] = BoundedMap(MOST_REMEMBERED)
        """Tokens of each history when its latest background compaction was planned."""

    def consider(self, request: ChatRequest, settings: BackgroundSettings, decision: Decision) -> None:
        """Record an answered request, and start a compaction if later requests will need one. Never raise: an error
        would close the client's connection. The caller skips small histories: see `least_counted`."""
        try:
            if not (settings.enabled and request.may_compact and request.policy.summarises):
                return
            conversation, budget = request.conversation, request.budget
            sent = decision.view.tokens if decision.view else conversation.tokens
            self._rates.answered(request.conversation_key, conversation.tokens, sent)
            is_missed = any(reason.code is Code.SUMMARY_IN_BACKGROUND for reason in decision.why)
            is_due = is_missed or sent > background_threshold(budget)
            if not (is_due and self._rates.of(request.conversation_key).is_likely_to_continue):
                return
            # The history may grow while its summary is made.
            first = self._routing.routes(request)[0]
            seconds = self._rates.summary_seconds((first.provider.name, first.model))
            growth = self._rates.of(request.conversation_key).growth(seconds)
            ahead = background_budget(budget, growth)
            is_urgent = is_missed or sent > latest_start(budget, growth)
            # An urgent compaction ignores the trigger, because this payload may be far below the trigger.
            planned = self._planned.get(request.conversation_key)
            has_grown = planned is None or abs(conversation.tokens - planned) >= PLANNED_GROWTH * budget.room
            if is_urgent or (sent > ahead.trigger.quiet_tokens and has_grown):
                self._begin(replace(request, budget=ahead), budget.target)
        except Exception:
            log.exception(
                "a background compaction failed", request_id=request.request_id, conversation_id=request.conversation_id
            )

    def _begin(self, request: ChatRequest, target: int) -> None:
        key = request.conversation_key
        if key in self._room.taken:
            return
        if not self._room.is_free(request.tenant, request.size):
            log.debug("no room for a background compaction", request_id=request.request_id, conversation_id=key[1])
            return
        self._room.taken[key] = request.size
        self._planned.keep(key, request.conversation.tokens)
        ahead = replace(request, purpose="background", wait_seconds=LONGEST_SECONDS)
        work = self._tasks.start(self._run(ahead, target), f"background compaction for {request.request_id}")
        work.add_done_callback(lambda _: self._room.taken.pop(key))

    async def _run(self, request: ChatRequest, target: int) -> None:
        try:
            await self._make_ahead(request, target)
        except Exception:
            log.exception(
                "a background compaction failed", request_id=request.request_id, conversation_id=request.conversation_id
            )
