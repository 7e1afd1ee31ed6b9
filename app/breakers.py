"""Breakers: what is left alone for a while because it does not help. Pure bookkeeping; none of it latches for ever."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
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


class ModelBreaker:
    """Models that do not work: after three failures in a row nobody asks them for 30 seconds, then one caller does."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._failing: Recent[Hashable, tuple[int, float, str]] = Recent()
        """Failures in a row, until when it is left alone, and why the latest failed."""

    def admits(self, model: Hashable) -> bool:
        """Whether it may be asked now. Whoever may, after a pause, is the probe: the others wait for its result."""
        failures, until, why = self._failing.get(model, (0, 0.0, ""))
        if failures < FAILURES:
            return True
        if self._clock() < until:
            return False
        self._failing.keep(model, (failures, self._clock() + OPEN_SECONDS, why))
        return True

    def why(self, model: Hashable) -> str | None:
        """Why it failed the last time, if it did not answer since."""
        failing = self._failing.get(model)
        return failing[2] if failing else None

    def failed(self, model: Hashable, why: str) -> None:
        failures = self._failing[model][0] if model in self._failing else 0
        self._failing.keep(model, (failures + 1, self._clock() + OPEN_SECONDS, why))

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
