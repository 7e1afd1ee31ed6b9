"""Setbacks: a compaction that keeps failing is not tried again on every request."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from msgspec import Struct

from app.core.reasons import Reasons
from app.core.summary.flow import Compaction, Outcome
from app.core.summary.gate import was_refused
from app.memory.lineages import Lineage, Lineages

TOLERATED = 1
"""Failures in a row that are tried again at once: the next request may simply have more luck. Answers that could not be
kept are not: they were paid for, and asked for once more already."""
FIRST_PAUSE_SECONDS = 30.0
LONGEST_PAUSE_SECONDS = 300.0


class _Setback(Struct, frozen=True):
    failures: int
    """In a row."""
    until: float
    """Left alone till then."""
    why: Reasons
    """The latest failed."""


class Setbacks:
    """What failed how often in a row: after the second time a pause, doubled each time up to five minutes; after the
    first one where answers were refused."""

    def __init__(self, clock: Callable[[], float] = monotonic, tolerated: int = TOLERATED) -> None:
        """`tolerated`: failures in a row that no pause follows."""
        self._clock = clock
        self._tolerated = tolerated
        self._latest: Lineages[_Setback] = Lineages()

    def pauses(self, what: Lineage) -> Reasons | None:
        """Why the compaction failed the last time, where it has failed too often recently to be tried now."""
        latest = self._latest.find(what)
        return latest.why if latest is not None and self._clock() < latest.until else None

    def failed_last(self, what: Lineage) -> bool:
        """Whether it failed, and did not succeed since."""
        return self._latest.find(what) is not None

    def learn(self, what: Lineage, compaction: Compaction) -> None:
        """A part that was made is no success where another one failed: without that it may be of no use.

        What others took away, or the database, says nothing of a compaction.
        """
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
