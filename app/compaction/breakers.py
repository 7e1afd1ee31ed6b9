"""Circuit breakers for models, histories and compactions, which pause after failures but never for good."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from time import monotonic

from msgspec import Struct
from msgspec.structs import replace

from app.compaction.chunks import Compaction, Outcome, was_refused
from app.conversation.reasons import Code, Reasons
from app.runtime.bounded import MOST_REMEMBERED, BoundedMap, HistoryKey, HistoryMap, TenantFacts

FAILURES = 3
OPEN_SECONDS = 30.0
LEAST_GAIN = 0.10
"""Least share of the request that an effective compaction frees."""
VAIN_PASSES = 2
LEAST_GROWTH = 0.10
"""Share of the room by which a history has to grow between two compactions; with less they are too frequent."""
CLOSE_PASSES = 3
RESTING_GROWTH = 0.20
"""Share of the room by which a blocked history has to change before it is compacted again."""


class _Failing(Struct, frozen=True):
    """Consecutive failures of a model for one tenant."""

    failures: int = 0
    undertakings: frozenset[Hashable] = frozenset()
    """Failed undertakings, recorded until the circuit opens."""
    until: float = 0.0
    """End of the pause, if there were too many failures."""
    why: Reasons = ()


class ModelBreaker:
    """Circuit breaker for models: after three consecutive failures a tenant does not call the model for 30 seconds,
    then one call probes it.

    Calls of one undertaking count once: many run in parallel and fail for the same reason.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._failing: BoundedMap[tuple[Hashable, str], _Failing] = BoundedMap(MOST_REMEMBERED)
        # Every tenant counts: an invented key is only refused, and a refusal is no failure.
        self._paused: TenantFacts[Hashable, Reasons] = TenantFacts(OPEN_SECONDS, clock, agrees=lambda *_: True)

    def admits(self, model: Hashable, tenant: str) -> bool:
        """Return whether the model may be called now. The first call after a pause is the probe; other calls wait for
        its result."""
        failing = self._failing.get((model, tenant)) or _Failing()
        if failing.failures < FAILURES:
            return not self._paused.confirmed(model)
        if self._clock() < failing.until:
            return False
        self._failing.keep((model, tenant), replace(failing, until=self._clock() + OPEN_SECONDS))
        return True

    @property
    def open(self) -> int:
        now = self._clock()
        return len(
            {model for (model, _), each in self._failing.items() if each.failures >= FAILURES and now < each.until}
        )

    def why(self, model: Hashable, tenant: str) -> Reasons | None:
        """Return the reason of the latest failure, or None if the model has answered since."""
        failing = self._failing.get((model, tenant))
        return failing.why if failing else next(iter(self._paused.confirmed(model)), None)

    def failed(self, model: Hashable, tenant: str, why: Reasons, undertaking: Hashable = None) -> None:
        """Record a failed call. `undertaking`: purpose that several calls share; None for a single call."""
        before = self._failing.get((model, tenant)) or _Failing()
        known = before.undertakings
        if undertaking is None or undertaking not in known:
            before = replace(before, failures=before.failures + 1)
            known = known | {undertaking} if before.failures <= FAILURES else known
        failing = replace(before, undertakings=known, until=self._clock() + OPEN_SECONDS, why=why)
        self._failing.keep((model, tenant), failing)
        if failing.failures >= FAILURES:
            self._paused.learn(tenant, model, why)

    def answered(self, model: Hashable, tenant: str) -> None:
        self._failing.pop((model, tenant), None)
        self._paused.forget(tenant, model)


class _Passes(Struct, frozen=True):
    at: int
    """Size of the history at the last compaction, in tokens."""
    vain: int
    """Number of compactions in a row that freed hardly anything."""
    close: int
    """Number of compactions in a row with hardly any growth between them."""


class HistoryBreaker:
    """Circuit breaker for histories that compaction does not help, or that would be compacted again and again.

    It measures growth of the client's own history, not time, as no compaction makes that history smaller. A history
    that shrank by the same share is taken for another one and is no longer blocked.
    """

    def __init__(self) -> None:
        self._passes: HistoryMap[_Passes] = HistoryMap()

    def blocks(self, history: HistoryKey, tokens: int, room: int) -> Code | None:
        passes = self._passes.find(history)
        if passes is None or abs(tokens - passes.at) >= RESTING_GROWTH * room:
            return None
        if passes.vain >= VAIN_PASSES:
            return Code.COMPACTION_INEFFECTIVE
        return Code.COMPACTION_TOO_FREQUENT if passes.close >= CLOSE_PASSES else None

    def finished(self, history: HistoryKey, tokens: int, before: int, after: int, room: int) -> None:
        """Record a compaction, with all its parts and folds, that changed a request from `before` to `after` tokens.

        `tokens`: size of the client's own history; `before` may already include summaries.
        """
        last = self._passes.find(history)
        vain = before - after < LEAST_GAIN * before
        close = last is not None and abs(tokens - last.at) < LEAST_GROWTH * room
        self._passes.keep(
            history,
            _Passes(
                at=tokens,
                vain=(last.vain if last else 0) + 1 if vain else 0,
                close=(last.close if last else 0) + 1 if close else 1,
            ),
        )


TOLERATED = 1
"""Consecutive failures that are retried without a pause. Rejected summaries are not: they cost money and were retried
once already."""
FIRST_PAUSE_SECONDS = 30.0
LONGEST_PAUSE_SECONDS = 300.0


class _Setback(Struct, frozen=True):
    failures: int
    until: float
    """End of the pause, by the clock."""
    why: Reasons


class CompactionBackoff:
    """Backoff for each compaction: a pause after two consecutive failures, or after one if a summary was rejected. Each
    further failure doubles the pause, up to five minutes."""

    def __init__(self, clock: Callable[[], float] = monotonic, tolerated: int = TOLERATED) -> None:
        """Allow `tolerated` consecutive failures without a pause."""
        self._clock = clock
        self._tolerated = tolerated
        self._latest: HistoryMap[_Setback] = HistoryMap()

    def pauses(self, what: HistoryKey) -> Reasons | None:
        """Return the reason of the last failure while the compaction pauses; otherwise None."""
        latest = self._latest.find(what)
        return latest.why if latest is not None and self._clock() < latest.until else None

    def failed_last(self, what: HistoryKey) -> bool:
        """Return whether the last attempt failed."""
        return self._latest.find(what) is not None

    def learn(self, what: HistoryKey, compaction: Compaction) -> None:
        """Record the outcome. A compaction has failed if one part failed, because the other parts may be useless
        without it. A lost lease or a missing database does not count."""
        if compaction.outcome is Outcome.MADE:
            self._latest.forget(what)
        elif compaction.outcome is Outcome.FAILED:
            self.failed(what, compaction.why)

    def failed(self, what: HistoryKey, why: Reasons) -> None:
        latest = self._latest.find(what)
        failures = (latest.failures if latest else 0) + 1
        tolerated = 0 if was_refused(why) else self._tolerated
        doubled = FIRST_PAUSE_SECONDS * 2.0 ** min(failures - tolerated - 1, 10)
        pause = min(doubled, LONGEST_PAUSE_SECONDS) if failures > tolerated else 0.0
        self._latest.keep(what, _Setback(failures, self._clock() + pause, why))
