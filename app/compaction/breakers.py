"""Circuit breakers: they pause useless, too frequent and failing compactions, and the use of failing models."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from time import monotonic

from msgspec import Struct
from msgspec.structs import replace

from app.compaction.chunks import Compaction, Outcome
from app.conversation.reasons import Code, Reasons
from app.runtime.caches import MOST_REMEMBERED, BoundedMap, HistoryKey, HistoryMap, TenantFacts

LEAST_GAIN = 0.10
"""A compaction is useless if it frees less than this share of the view."""
VAIN_PASSES = 2
"""After this many consecutive useless compactions of a history, Steno blocks further compactions of this history."""
LEAST_GROWTH = 0.10
"""A compaction is too close to the previous one if the history has changed by less than this share of `Budget.room`."""
CLOSE_PASSES = 3
"""Steno blocks further compactions after this many consecutive compactions, each too close to the previous one."""
RESTING_GROWTH = 0.20
"""Steno unblocks the compactions of a history once the history has changed by this share of `Budget.room`."""


class _Passes(Struct, frozen=True):
    at: int
    """Size of the history at the last compaction, in tokens."""
    vain: int
    """Number of consecutive compactions that freed less than `LEAST_GAIN`."""
    close: int
    """Number of consecutive compactions, each too close to the previous one: see `LEAST_GROWTH`."""


class HistoryBreaker:
    """Circuit breaker that blocks the compactions of a history if they are useless or too frequent.

    The block ends when the client's own history has grown or shrunk enough, not after a time.
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
        """Record that a compaction has changed a request's view from `before` to `after` tokens. `tokens`: size of the
        client's own history."""
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


FIRST_PAUSE_SECONDS = 30.0
LONGEST_PAUSE_SECONDS = 300.0


class _Setback(Struct, frozen=True):
    pause: float
    """Length of the pause in seconds."""
    until: float
    """End of the pause by the clock of `CompactionBackoff`."""
    why: Reasons


class CompactionBackoff:
    """Backoff of each compaction: 30 seconds after a failure, doubled by each further failure, up to five minutes."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._latest: HistoryMap[_Setback] = HistoryMap()

    def pauses(self, what: HistoryKey) -> Reasons | None:
        """Return the reasons for which the compaction failed, while Steno pauses it; otherwise None."""
        latest = self._latest.find(what)
        return latest.why if latest is not None and self._clock() < latest.until else None

    def failed_last(self, what: HistoryKey) -> bool:
        return self._latest.find(what) is not None

    def learn(self, what: HistoryKey, compaction: Compaction) -> None:
        """Record a compaction with the outcome `MADE` or `FAILED`. Ignore other outcomes, such as a lost lease."""
        if compaction.outcome is Outcome.MADE:
            self._latest.forget(what)
        elif compaction.outcome is Outcome.FAILED:
            latest = self._latest.find(what)
            pause = min(2 * latest.pause, LONGEST_PAUSE_SECONDS) if latest else FIRST_PAUSE_SECONDS
            self._latest.keep(what, _Setback(pause, self._clock() + pause, compaction.why))


FAILURES = 3
OPEN_SECONDS = 30.0


class _Failing(Struct, frozen=True):
    """Consecutive failures of a model for one tenant."""

    failures: int = 0
    until: float = 0.0
    """End of the pause by the clock. Ignored while there are fewer than `FAILURES` failures."""
    why: Reasons = ()


class ModelBreaker:
    """Circuit breaker for models: after three consecutive failures for a tenant, Steno pauses the model for this tenant
    for 30 seconds. Then one call probes the model. A model that is paused for two tenants is paused for all others."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._failing: BoundedMap[tuple[Hashable, str], _Failing] = BoundedMap(MOST_REMEMBERED)
        # The failures of every tenant count. An invalid key causes no failures, because a refusal is not a failure.
        self._paused: TenantFacts[Hashable, Reasons] = TenantFacts(OPEN_SECONDS, clock, agrees=lambda *_: True)

    def admits(self, model: Hashable, tenant: str) -> bool:
        """Return whether the model may be called now. The first call after a pause is a probe. No other call is
        admitted until the probe ends or 30 seconds pass."""
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
        """Return the reasons of the tenant's latest failure, else of a pause for all tenants; None without either."""
        failing = self._failing.get((model, tenant))
        return failing.why if failing else next(iter(self._paused.confirmed(model)), None)

    def failed(self, model: Hashable, tenant: str, why: Reasons) -> None:
        before = self._failing.get((model, tenant)) or _Failing()
        failing = _Failing(before.failures + 1, self._clock() + OPEN_SECONDS, why)
        self._failing.keep((model, tenant), failing)
        if failing.failures >= FAILURES:
            self._paused.learn(tenant, model, why)

    def answered(self, model: Hashable, tenant: str) -> None:
        self._failing.pop((model, tenant), None)
        self._paused.forget(tenant, model)
