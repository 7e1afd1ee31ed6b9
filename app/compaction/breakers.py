"""Breakers: models, histories and compactions that fail or do not help are left alone for a while.

Pure bookkeeping; none of it latches for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from time import monotonic

from msgspec import Struct
from msgspec.structs import replace

from app.compaction.results import Compaction, Outcome, was_refused
from app.conversation.reasons import Code, Reasons
from app.runtime.bounded import MOST_REMEMBERED, BoundedMap, Lineage, Lineages
from app.runtime.sightings import Sightings

FAILURES = 3
OPEN_SECONDS = 30.0

LEAST_GAIN = 0.10
"""Share of the request that a pass has to free, or it was in vain."""
VAIN_PASSES = 2
LEAST_GROWTH = 0.10
"""Share of the room by which a history grows between two compactions: with less they come too often."""
CLOSE_PASSES = 3
RESTING_GROWTH = 0.20
"""Share of the room that has to change before a history is compacted again."""


class _Failing(Struct, frozen=True):
    """Failures of a model that did not answer a tenant the last time."""

    failures: int = 0
    """Failures in a row."""
    undertakings: frozenset[Hashable] = frozenset()
    """Undertakings that failed, as long as they matter."""
    until: float = 0.0
    """End of the pause, if the failures are too many."""
    why: Reasons = ()


class ModelBreaker:
    """Models that do not work: after three failures in a row a tenant asks them no more for 30 seconds, then one caller
    does.

    The calls of one undertaking count once: many are made side by side, and fail for one reason.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._failing: BoundedMap[tuple[Hashable, str], _Failing] = BoundedMap(MOST_REMEMBERED)
        # A key that was made up is refused, and that is no failure: every tenant counts.
        self._paused: Sightings[Hashable, Reasons] = Sightings(OPEN_SECONDS, clock, agrees=lambda *_: True)

    def admits(self, model: Hashable, tenant: str) -> bool:
        """True if the model may be asked now. The first one after a pause is the probe: the others wait for its
        result."""
        failing = self._failing.get((model, tenant)) or _Failing()
        if failing.failures < FAILURES:
            return not self._paused.confirmed(model)
        if self._clock() < failing.until:
            return False
        self._failing.keep((model, tenant), replace(failing, until=self._clock() + OPEN_SECONDS))
        return True

    @property
    def open(self) -> int:
        """Number of models that some tenant does not ask now."""
        now = self._clock()
        return len(
            {model for (model, _), each in self._failing.items() if each.failures >= FAILURES and now < each.until}
        )

    def why(self, model: Hashable, tenant: str) -> Reasons | None:
        """Return the reason of the latest failure, if the model did not answer since."""
        failing = self._failing.get((model, tenant))
        return failing.why if failing else next(iter(self._paused.confirmed(model)), None)

    def failed(self, model: Hashable, tenant: str, why: Reasons, undertaking: Hashable = None) -> None:
        """Record a failed call. `undertaking`: the purpose of the call; None for one by itself."""
        before = self._failing.get((model, tenant)) or _Failing()
        known = before.undertakings
        if undertaking is None or undertaking not in known:
            before = replace(before, failures=before.failures + 1)
            known = known | {undertaking} if before.failures <= FAILURES else known
        failing = replace(before, undertakings=known, until=self._clock() + OPEN_SECONDS, why=why)
        self._failing.keep((model, tenant), failing)
        if failing.failures >= FAILURES:
            self._paused.saw(tenant, model, why)

    def answered(self, model: Hashable, tenant: str) -> None:
        self._failing.pop((model, tenant), None)
        self._paused.forget(tenant, model)


class _Passes(Struct, frozen=True):
    """Latest compactions of a history."""

    at: int
    """Size of the history at the last compaction, in tokens."""
    vain: int
    """Number of compactions in a row that freed hardly anything."""
    close: int
    """Number of compactions in a row with hardly any growth between them."""


class HistoryBreaker:
    """Histories that compaction does not help, or that would be compacted again and again.

    Growth counts, never time: it is measured on the client's own history, which no compaction makes smaller. A history
    that shrank by as much is another one, and starts anew.
    """

    def __init__(self) -> None:
        self._passes: Lineages[_Passes] = Lineages()

    def blocks(self, history: Lineage, tokens: int, room: int) -> Code | None:
        """Return the reason why a history of `tokens` is not compacted now, or None."""
        passes = self._passes.find(history)
        if passes is None or abs(tokens - passes.at) >= RESTING_GROWTH * room:
            return None
        if passes.vain >= VAIN_PASSES:
            return Code.COMPACTION_INEFFECTIVE
        return Code.COMPACTION_TOO_FREQUENT if passes.close >= CLOSE_PASSES else None

    def finished(self, history: Lineage, tokens: int, before: int, after: int, room: int) -> None:
        """Record a compaction with all its parts and folds, which made a request of `before` tokens one of `after`.

        `tokens` is the size of the client's own history: `before` may already hold summaries.
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
"""Failures in a row that are tried again at once: the next request may simply have more luck. Answers that could not
be kept are not: they were paid for, and asked for once more already."""
FIRST_PAUSE_SECONDS = 30.0
LONGEST_PAUSE_SECONDS = 300.0


class _Setback(Struct, frozen=True):
    failures: int
    until: float
    """End of the pause, by the clock."""
    why: Reasons


class CompactionBackoff:
    """Failures in a row by undertaking: after the second one a pause, doubled each time up to five minutes; after
    the first one where answers were refused."""

    def __init__(self, clock: Callable[[], float] = monotonic, tolerated: int = TOLERATED) -> None:
        """Forgive `tolerated` failures in a row without a pause."""
        self._clock = clock
        self._tolerated = tolerated
        self._latest: Lineages[_Setback] = Lineages()

    def pauses(self, what: Lineage) -> Reasons | None:
        """Return the reason of the last failure, if the compaction failed too often recently to be tried now."""
        latest = self._latest.find(what)
        return latest.why if latest is not None and self._clock() < latest.until else None

    def failed_last(self, what: Lineage) -> bool:
        """True if it failed, and did not succeed since."""
        return self._latest.find(what) is not None

    def learn(self, what: Lineage, compaction: Compaction) -> None:
        """Learn from a compaction. A part that was made is no success where another one failed: without that it may
        be of no use. What others took away, or the database, says nothing of a compaction."""
        if compaction.outcome is Outcome.MADE:
            self.succeeded(what)
        elif compaction.outcome is Outcome.FAILED:
            self.failed(what, compaction.why)

    def failed(self, what: Lineage, why: Reasons) -> None:
        latest = self._latest.find(what)
        failures = (latest.failures if latest else 0) + 1
        tolerated = 0 if was_refused(why) else self._tolerated
        doubled = FIRST_PAUSE_SECONDS * 2.0 ** min(failures - tolerated - 1, 10)
        pause = min(doubled, LONGEST_PAUSE_SECONDS) if failures > tolerated else 0.0
        self._latest.keep(what, _Setback(failures, self._clock() + pause, why))

    def succeeded(self, what: Lineage) -> None:
        self._latest.forget(what)
