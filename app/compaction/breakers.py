"""Breakers: what is left alone for a while because it does not help. Pure bookkeeping; none of it latches for ever."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from time import monotonic

from msgspec import Struct
from msgspec.structs import replace

from app.core.reasons import Code, Reasons
from app.memory.bounded import MOST_REMEMBERED, BoundedMap
from app.memory.lineages import Lineage, Lineages
from app.memory.sightings import Sightings

FAILURES = 3
OPEN_SECONDS = 30.0

LEAST_GAIN = 0.10
"""Of the request: a pass that frees less was in vain."""
VAIN_PASSES = 2
LEAST_GROWTH = 0.10
"""Of the limit, between two compactions: with less they come too often."""
CLOSE_PASSES = 3
RESTING_GROWTH = 0.20
"""Of the limit: so much has to change before a history is compacted again."""


class _Failing(Struct, frozen=True):
    """A model that did not answer a tenant the last time."""

    failures: int = 0
    """In a row."""
    undertakings: frozenset[Hashable] = frozenset()
    """Whose they were, as long as that matters."""
    until: float = 0.0
    """It is left alone till then, if the failures are too many."""
    why: Reasons = ()
    """The latest failed."""


class ModelBreaker:
    """Models that do not work: after three failures in a row a tenant asks them no more for 30 seconds, then one caller
    does. If two tenants had as many, nobody asks meanwhile.

    The calls of one undertaking count once: many are made side by side, and fail for one reason.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._failing: BoundedMap[tuple[Hashable, str], _Failing] = BoundedMap(MOST_REMEMBERED)
        # A key that was made up is refused, and that is no failure: every tenant counts.
        self._paused: Sightings[Hashable, Reasons] = Sightings(OPEN_SECONDS, clock, agrees=lambda *_: True)

    def admits(self, model: Hashable, tenant: str) -> bool:
        """Whether it may be asked now. Whoever may, after a pause, is the probe: the others wait for its result."""
        failing = self._failing.get((model, tenant)) or _Failing()
        if failing.failures < FAILURES:
            return not self._paused.confirmed(model)
        if self._clock() < failing.until:
            return False
        self._failing.keep((model, tenant), replace(failing, until=self._clock() + OPEN_SECONDS))
        return True

    @property
    def open(self) -> int:
        """Models that some tenant does not ask now."""
        now = self._clock()
        return len(
            {model for (model, _), each in self._failing.items() if each.failures >= FAILURES and now < each.until}
        )

    def why(self, model: Hashable, tenant: str) -> Reasons | None:
        """Why it failed the last time, if it did not answer since."""
        failing = self._failing.get((model, tenant))
        return failing.why if failing else next(iter(self._paused.confirmed(model)), None)

    def failed(self, model: Hashable, tenant: str, why: Reasons, undertaking: Hashable = None) -> None:
        """`undertaking`: what the call was made for; None for one by itself."""
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
        self._failing.pop((model, tenant))
        self._paused.forget(tenant, model)


class _Passes(Struct, frozen=True):
    """A history's latest compactions."""

    at: int
    """The size of the history at the last one, in tokens."""
    vain: int
    """How many in a row freed hardly anything."""
    close: int
    """How many in a row came with hardly any growth between them."""


class HistoryBreaker:
    """Histories that compaction does not help, or that would be compacted again and again.

    Growth counts, never time: it is measured on the client's own history, which no compaction makes smaller. A history
    that shrank by as much is another one, and starts anew.
    """

    def __init__(self) -> None:
        self._passes: Lineages[_Passes] = Lineages()

    def blocks(self, history: Lineage, tokens: int, limit: int, *, often: bool = False) -> Code | None:
        """Why a history that has so many tokens is not compacted now, or None.

        `often`: the trigger asks for compactions however little the history has grown.
        """
        passes = self._passes.find(history)
        if passes is None or abs(tokens - passes.at) >= RESTING_GROWTH * limit:
            return None
        if passes.vain >= VAIN_PASSES:
            return Code.COMPACTION_INEFFECTIVE
        return Code.COMPACTION_TOO_FREQUENT if passes.close >= CLOSE_PASSES and not often else None

    def finished(self, history: Lineage, tokens: int, before: int, after: int, limit: int) -> None:
        """A compaction, with all its parts and folds, made a request of `before` tokens one of `after`.

        `tokens` is the size of the client's own history: `before` may already hold summaries.
        """
        last = self._passes.find(history)
        vain = before - after < LEAST_GAIN * before
        close = last is not None and abs(tokens - last.at) < LEAST_GROWTH * limit
        self._passes.keep(
            history,
            _Passes(
                at=tokens,
                vain=(last.vain if last else 0) + 1 if vain else 0,
                close=(last.close if last else 0) + 1 if close else 1,
            ),
        )
