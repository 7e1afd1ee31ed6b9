"""What the providers' answers taught, kept for all replicas. Asked in the background: no request waits for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from app.core.tokens.calibration import Calibration, Sample
from app.store import calibration_rows, learned_windows
from app.store.calibration_rows import CalibrationKey, StoredCalibration
from app.store.calls import TASK_SECONDS, Calls
from app.store.learned_windows import LearnedWindow

MOST_CALIBRATIONS = 10_000


class LearningCalls(Calls):
    """All of it raises StoreUnavailable."""

    async def learn(self, samples: Mapping[CalibrationKey, Sequence[Sample]]) -> dict[CalibrationKey, Calibration]:
        """What the calibrations are after these samples, and those of other replicas. One transaction."""
        return await self._bounded(self._write_patiently(calibration_rows.learn_calibrations, samples), TASK_SECONDS)

    async def calibrations(self, changed_within_seconds: float | None = None) -> list[StoredCalibration]:
        """Of all tenants, the latest 10,000 to change; the newest first. None: whenever they changed."""
        within_ms = None if changed_within_seconds is None else round(changed_within_seconds * 1000)
        return await self._bounded(
            self._read(calibration_rows.read_calibrations, MOST_CALIBRATIONS, within_ms), TASK_SECONDS
        )

    async def learn_window(self, upstream: str, model: str, tenant: str, limit: int, seconds: float) -> None:
        """Keep a limit, in tokens, that a tenant learnt, for so long, or the smaller one that is there."""
        learn = self._write(learned_windows.learn_window, upstream, model, tenant, limit, round(seconds * 1000))
        await self._bounded(learn, TASK_SECONDS)

    async def forget_window(self, upstream: str, model: str, tenant: str, below: int) -> None:
        """Drop what a tenant learnt of a model, if it is less than that many tokens."""
        await self._bounded(self._write(learned_windows.forget_window, upstream, model, tenant, below), TASK_SECONDS)

    async def learned_windows(self, upstream: str, most: int) -> list[LearnedWindow]:
        """What all replicas learnt about the models of an upstream, and still holds. Needs no started store."""
        read = self._read(learned_windows.read_learned_windows, upstream, most)
        return await self._guard.bounded(read, TASK_SECONDS)
