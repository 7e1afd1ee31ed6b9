"""Compactions under way, and those in the background: a summary is made after an answer, from the answered request,
before a request waits for it.

`background_budget` has a trigger that fires earlier and a smaller target; the summary is made that would be due if
these were the request's own limits. A request uses it once its own trigger fires. There is no queue: where too many
compactions are under way none begins, and the next answer of the conversation tries again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from math import inf
from time import monotonic

import structlog
from msgspec import Struct
from msgspec.structs import replace

from app.compaction.budget import background_budget, background_threshold, latest_start
from app.compaction.fallback import Decision
from app.compaction.request import ChatRequest, ConversationKey
from app.compaction.summariser_client import SummaryRouting
from app.conversation.reasons import Code
from app.runtime.bounded import MOST_REMEMBERED, BoundedMap
from app.runtime.caches import Erased
from app.runtime.tasks import OwnedTasks
from app.settings import BackgroundSettings


class RunningCompactions:
    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._running: dict[ConversationKey, list[tuple[int, bool, float]]] = {}
        """Compactions of each conversation, the oldest first: how many messages are summarised, whether it is made for
        later requests alone, and when it began, in seconds."""

    @contextmanager
    def during(self, key: ConversationKey, messages: int, *, ahead: bool) -> Iterator[None]:
        """Show a compaction from its start to its end, whatever comes of it."""
        running = messages, ahead, self._clock()
        self._running.setdefault(key, []).append(running)
        try:
            yield
        finally:
            self._running[key].remove(running)
            if not self._running[key]:
                del self._running[key]

    def told(self, key: ConversationKey) -> tuple[int, float, bool] | None:
        """Return what the inspector shows: how many messages are being summarised, and of the oldest compaction for how
        many seconds, and whether it is made ahead. None if there is none."""
        if not (running := self._running.get(key)):
            return None
        _, ahead, began = running[0]
        return sum(messages for messages, _, _ in running), round(self._clock() - began, 1), ahead


REMEMBERED_SECONDS = 24 * 3_600.0
LATEST_REQUESTS = 8
LATEST_SUMMARIES = 4
GROWTH_MARGIN = 1.25
"""Times the latest pace: it varies."""
FIRST_SUMMARY_SECONDS = 20.0
"""Seconds that a summary is expected to take before one was seen."""
LEAST_SECONDS = 0.001
"""Seconds that pass at least between two requests, for a rate."""
HOUR = 3_600.0
LIKELY_REQUESTS = 3
LIKELY_TOKENS_PER_HOUR = 10_000
"""Requests, and prompt tokens an hour, from which on a conversation is likely to continue."""
PLANNED_GROWTH = 0.05
"""Share of the room by which a history has to grow before a compaction of it is planned again: each plan reads the
store. Not where the summary has to begin now."""
LONGEST_SECONDS = 3_600.0
"""Time limit of a background compaction, which none reaches."""


class Answered(Struct, frozen=True):
    at: float
    """End of the answer, by the monotonic clock."""
    history: int
    """Tokens of the client's history."""
    forwarded: int
    """Tokens of the payload."""


class RequestRate(Struct, frozen=True):
    requests: int = 0
    """Number of requests in all; a repeated one counts once."""
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
        """Tokens by which the history may grow in so many seconds: at the pace of the latest requests with a margin,
        and by one more as large as the largest of them. A pause longer than `seconds` counts as that long, since the
        client may be faster after it."""
        steps = [max(0, later.history - earlier.history) for earlier, later in pairwise(self.latest)]
        passed = sum(min(later.at - earlier.at, seconds) for earlier, later in pairwise(self.latest))
        return int(GROWTH_MARGIN * sum(steps) / max(passed, LEAST_SECONDS) * seconds) + max(steps, default=0)


class RequestRates:
    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._rates: BoundedMap[ConversationKey, tuple[RequestRate, float]] = BoundedMap(MOST_REMEMBERED)
        """Rates by conversation, with the time of the latest answer."""
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
        """Record the seconds of a summary call; `by`: upstream and model."""
        self._summaries.keep(by, (*(self._summaries.get(by) or ()), seconds)[-LATEST_SUMMARIES:])

    def summary_seconds(self, by: Hashable) -> float:
        """Seconds that the next summary may take: as long as the longest of the latest."""
        return max(self._summaries.get(by) or (FIRST_SUMMARY_SECONDS,))


class BackgroundLimits(Struct, frozen=True):
    compactions: int = 16
    """Compactions under way at once."""
    per_tenant: int = 8
    body_bytes: int = 64_000_000
    """Bytes of all histories together that compactions are made from; one tenant may have half of it."""


class BackgroundRoom:
    """Room for background compactions: how many may be under way, and of how large histories."""

    def __init__(self, limits: BackgroundLimits) -> None:
        self._limits = limits
        self._taken: dict[ConversationKey, int] = {}
        """Bytes by conversation."""

    def __len__(self) -> int:
        return len(self._taken)

    def is_taken(self, key: ConversationKey) -> bool:
        return key in self._taken

    def is_free(self, tenant: str, size: int) -> bool:
        limits, own = self._limits, Counter(owner for owner, _ in self._taken)[tenant]
        bytes_of_all = sum(self._taken.values())
        own_bytes = sum(held for (owner, _), held in self._taken.items() if owner == tenant)
        return (
            len(self._taken) < limits.compactions
            and own < limits.per_tenant
            and bytes_of_all + size <= limits.body_bytes
            and own_bytes + size <= limits.body_bytes / 2
        )

    def take(self, key: ConversationKey, size: int) -> None:
        self._taken[key] = size

    def leave(self, key: ConversationKey) -> None:
        del self._taken[key]


log = structlog.get_logger("steno.compactor")


class Background:
    def __init__(
        self,
        make: Callable[[ChatRequest, int], Awaitable[None]],
        routing: SummaryRouting,
        rates: RequestRates,
        room: BackgroundRoom,
        tasks: OwnedTasks,
    ) -> None:
        self._make_ahead = make
        self._routing = routing
        self._rates = rates
        self._tasks = tasks
        self._room = room
        self._planned: BoundedMap[ConversationKey, int] = BoundedMap(MOST_REMEMBERED)
        """Tokens of the histories when a compaction of them was planned."""

    def consider(self, request: ChatRequest, settings: BackgroundSettings, decision: Decision) -> None:
        """Count an answered request, and begin the compaction that the next requests need. Not called for histories
        of at most `least_counted` tokens. Never raises: that would close the client's connection behind a good
        answer."""
        try:
            if not (settings.enabled and request.compaction and request.policy.summarises):
                return
            conversation, budget = request.conversation, request.budget
            sent = decision.view.tokens if decision.view else conversation.tokens
            self._rates.answered(request.conversation_key, conversation.tokens, sent)
            is_missed = any(reason.code is Code.SUMMARY_IN_BACKGROUND for reason in decision.why)
            is_due = is_missed or sent > background_threshold(budget)
            if not (is_due and self._rates.of(request.conversation_key).is_likely_to_continue):
                return
            growth = self._expected_growth(request)
            ahead = background_budget(budget, growth)
            is_urgent = is_missed or sent > latest_start(budget, growth)
            # What was sent without its summary may be shortened far below the trigger.
            if is_urgent or (sent > ahead.trigger.quiet_tokens and self._has_grown(request)):
                self._begin(replace(request, budget=ahead), budget.target)
        except Exception:
            log.exception(
                "a background compaction failed", request_id=request.request_id, conversation_id=request.conversation_id
            )

    def _expected_growth(self, request: ChatRequest) -> int:
        """Tokens by which the history may grow while its summary is made."""
        first = self._routing.routes(request)[0]
        seconds = self._rates.summary_seconds((first.name, first.model))
        return self._rates.of(request.conversation_key).growth(seconds)

    def _has_grown(self, request: ChatRequest) -> bool:
        planned = self._planned.get(request.conversation_key)
        return planned is None or abs(request.conversation.tokens - planned) >= PLANNED_GROWTH * request.budget.room

    def _begin(self, request: ChatRequest, target: int) -> None:
        key = request.conversation_key
        if self._room.is_taken(key):
            return
        if not self._room.is_free(request.tenant, request.size):
            log.debug("no room for a background compaction", request_id=request.request_id, conversation_id=key[1])
            return
        self._room.take(key, request.size)
        self._planned.keep(key, request.conversation.tokens)
        # `request` is all that is kept of the request.
        ahead = replace(request, purpose="background", wait_seconds=LONGEST_SECONDS)
        work = self._tasks.start(self._make(ahead, target), f"background compaction for {request.request_id}")
        work.add_done_callback(lambda _: self._room.leave(key))

    async def _make(self, request: ChatRequest, target: int) -> None:
        try:
            await self._make_ahead(request, target)
        except Exception:
            log.exception(
                "a background compaction failed", request_id=request.request_id, conversation_id=request.conversation_id
            )
