"""Breakers: what is left alone for a while because it does not help. Pure bookkeeping; none of it latches for ever."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from time import monotonic

from app.histories import Histories, History, Recent

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


@dataclass(frozen=True, slots=True)
class _Failing:
    """A model that did not answer the last time."""

    failures: int = 0
    """In a row."""
    undertakings: frozenset[Hashable] = frozenset()
    """Whose they were, as long as that matters."""
    until: float = 0.0
    """It is left alone till then, if the failures are too many."""
    why: str = ""
    """The latest failed."""


class ModelBreaker:
    """Models that do not work: after three failures in a row nobody asks them for 30 seconds, then one caller does.

    The calls of one undertaking count once: many are made side by side, and fail for one reason.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._failing: Recent[Hashable, _Failing] = Recent()

    def admits(self, model: Hashable) -> bool:
        """Whether it may be asked now. Whoever may, after a pause, is the probe: the others wait for its result."""
        failing = self._failing.get(model, _Failing())
        if failing.failures < FAILURES:
            return True
        if self._clock() < failing.until:
            return False
        self._failing.keep(model, replace(failing, until=self._clock() + OPEN_SECONDS))
        return True

    def why(self, model: Hashable) -> str | None:
        """Why it failed the last time, if it did not answer since."""
        failing = self._failing.get(model)
        return failing.why if failing else None

    def failed(self, model: Hashable, why: str, undertaking: Hashable = None) -> None:
        """`undertaking`: what the call was made for; None for one by itself."""
        before = self._failing.get(model, _Failing())
        known = before.undertakings
        if undertaking is None or undertaking not in known:
            before = replace(before, failures=before.failures + 1)
            known = known | {undertaking} if before.failures <= FAILURES else known
        self._failing.keep(model, replace(before, undertakings=known, until=self._clock() + OPEN_SECONDS, why=why))

    def answered(self, model: Hashable) -> None:
        self._failing.pop(model, None)


@dataclass(frozen=True, slots=True)
class _Passes:
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
        self._passes: Histories[_Passes] = Histories()

    def blocks(self, history: History, tokens: int, limit: int, *, often: bool = False) -> str | None:
        """Why a history that has so many tokens is not compacted now, or None.

        `often`: the trigger asks for compactions however little the history has grown.
        """
        passes = self._passes.find(history)
        if passes is None or abs(tokens - passes.at) >= RESTING_GROWTH * limit:
            return None
        if passes.vain >= VAIN_PASSES:
            return "compaction_ineffective"
        return "compaction_too_frequent" if passes.close >= CLOSE_PASSES and not often else None

    def finished(self, history: History, tokens: int, before: int, after: int, limit: int) -> None:
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
