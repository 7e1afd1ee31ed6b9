"""Calibrations of token estimates. A process uses its own samples at once, other replicas' samples within seconds."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from time import monotonic

import structlog
from msgspec.structs import replace

from app.runtime.caches import BoundedMap, LogThrottle
from app.store import CalibrationKey, StatementRefused, Store, StoreUnavailable
from app.store.calibrations import learn_calibrations, read_calibrations
from app.tokens.calibration import (
    Calibration,
    Sample,
    observe,
    picture_scale,
    pictures_of,
    prior_for,
    rejection_reason,
)
from app.tokens.counting_rules import LONGEST_MODEL

log = structlog.get_logger("steno.calibrations")

MOST_REMEMBERED = 10_000
"""Maximum number of calibrations in memory, about 3 kB each."""
MOST_OF_TENANT = 500
"""Maximum number of calibrations of one tenant, so that invented model names evict no other tenant's calibrations."""
MOST_WAITING = 10_000
"""Maximum number of samples that wait to be stored. Steno learns from further samples without storing them."""
FLUSH_SECONDS = 1.0
REFRESH_SECONDS = 15.0
OVERLAP_SECONDS = 15.0
"""Longest time from a row's `updated_at` until other replicas can read the row."""
LOAD_SECONDS = 1.0
STOP_SECONDS = 5.0
ENOUGH = 16
"""Number of samples after which a calibration uses at most one sample a second: each use takes up to 0.5 ms."""
PAUSE_SECONDS = 1.0


class Calibrations:
    """Calibrations of all upstreams' models.

    Samples do not use the store's write-behind queue: its rows belong to conversations, samples belong to none.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: BoundedMap[CalibrationKey, Calibration] = BoundedMap(
            MOST_REMEMBERED, lambda key, _: self._forget(key)
        )
        self._of_tenant: dict[str, BoundedMap[CalibrationKey, None]] = {}
        self._rests: dict[CalibrationKey, float] = {}
        """Monotonic times until which samples are ignored."""
        self._refused: BoundedMap[CalibrationKey, str | None] = BoundedMap(MOST_REMEMBERED)
        """Why the latest sample was rejected; None if it was accepted."""
        self._waiting: dict[CalibrationKey, list[Sample]] = {}
        """Samples that are not stored yet, including samples that a flush is storing."""
        self._flushing = asyncio.Lock()
        self._stopping = asyncio.Event()
        self._refreshed_at: float | None = None
        self._task: asyncio.Task[None] | None = None
        self._throttle = LogThrottle()

    def of(self, key: CalibrationKey) -> Calibration:
        """Return the calibration from memory. Without samples, return the assumed calibration of a new model."""
        return self._known.use(key) or Calibration(prior_for(key.model, key.formula, key.tools))

    def picture_scale(self, key: CalibrationKey) -> float:
        """Return the factor for the estimated tokens of pictures. `key`: key of the calibration for texts."""
        known = self._known.use(replace(key, formula=pictures_of(key.formula), tools=False))
        return 1.0 if known is None else picture_scale(known.line.ratio)

    def is_due(self, key: CalibrationKey) -> bool:
        """Whether `learn` would use a sample now. False if the model's name is too long."""
        return monotonic() >= self._rests.get(key, 0.0) and len(key.model) <= LONGEST_MODEL

    def learn(self, key: CalibrationKey, sample: Sample) -> None:
        """Learn from a sample at once, and store the sample within about a second."""
        if not self.is_due(key):
            return
        before = self.of(key)
        reason = rejection_reason(before, sample)
        if reason != self._refused.get(key):
            self._refused.keep(key, reason)
            log.info("usage not learnt from" if reason else "usage learnt from again", model=key.model, reason=reason)
        if reason:
            return
        after = observe(before, sample)
        self._remember(key, after)
        if after.samples >= ENOUGH:
            self._rests[key] = monotonic() + PAUSE_SECONDS
        if after.note and after.note != before.note:
            line = after.line
            log.warning("calibration", model=key.model, note=after.note, ratio=line.ratio, offset=line.offset)
        if sum(map(len, self._waiting.values())) < MOST_WAITING:
            self._waiting.setdefault(key, []).append(sample)

    async def start(self) -> None:
        """Wait at most a second for the stored calibrations. Then exchange samples in the background."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LOAD_SECONDS):
                await self._exchange()
        self._task = asyncio.ensure_future(self._run())

    async def stop(self) -> None:
        """Store the waiting samples. Give up after five seconds. Call this method before the store closes."""
        self._stopping.set()
        if self._task is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(STOP_SECONDS):
                    await self._task

    async def flush(self) -> None:
        """Store the waiting samples. If the database cannot be reached, raise, and keep the samples."""
        async with self._flushing:
            flushed = {key: tuple(samples) for key, samples in self._waiting.items()}
            if not flushed:
                return
            learnt: Mapping[CalibrationKey, Calibration] = {}
            try:
                learnt = await self._store.task_change(learn_calibrations, flushed)
            except StatementRefused as error:
                if (times := self._throttle.count("refused")) is not None:
                    log.warning("samples not stored", reason=error.reason, times=times)
            for key, samples in flushed.items():
                del self._waiting[key][: len(samples)]
                if not self._waiting[key]:
                    del self._waiting[key]
            for key, calibration in learnt.items():
                self._adopt(key, calibration)

    async def forget(self, tenant: str) -> None:
        """Drop the tenant's samples and calibrations from memory. Wait first for a flush under way."""
        async with self._flushing:
            for key in [key for key in self._waiting if key.tenant == tenant]:
                del self._waiting[key]
            for key in [*self._of_tenant.get(tenant, ())]:
                self._forget(key)

    async def _run(self) -> None:
        while not self._stopping.is_set():
            await self._exchange()
            with suppress(TimeoutError):
                async with asyncio.timeout(FLUSH_SECONDS):
                    await self._stopping.wait()
        await self._exchange()

    async def _exchange(self) -> None:
        try:
            await self.flush()
            await self._refresh()
        except StoreUnavailable as error:
            if (times := self._throttle.count("exchange")) is not None:
                log.warning("calibrations wait for the database", reason=error.reason, times=times)
        except Exception:  # The exchange with other replicas must go on after any error.
            if (times := self._throttle.count("exchange")) is not None:
                log.exception("calibrations wait for the database", times=times)
        else:
            if (ended := self._throttle.end("exchange")) is not None:
                log.info("calibrations exchanged again", times=ended[0], seconds=ended[1])

    async def _refresh(self) -> None:
        """Read the calibrations that changed since the last call, or all at the first call."""
        now, last = monotonic(), self._refreshed_at
        if last is not None and now - last < REFRESH_SECONDS:
            return
        changed = await self._store.task(read_calibrations, None if last is None else now - last + OVERLAP_SECONDS)
        for stored in reversed(changed):
            self._adopt(stored.key, stored.calibration)
        self._refreshed_at = now

    def _adopt(self, key: CalibrationKey, stored: Calibration) -> None:
        """Adopt a stored calibration, and add this process's samples that are not stored yet."""
        for sample in self._waiting.get(key, ()):
            stored = observe(stored, sample)
        self._remember(key, stored)

    def _remember(self, key: CalibrationKey, calibration: Calibration) -> None:
        held = self._of_tenant.get(key.tenant)
        if held is None:
            held = BoundedMap(MOST_OF_TENANT, lambda own, _: self._forget(own))
            self._of_tenant[key.tenant] = held
        held.keep(key, None)  # First, because it may remove another calibration of the tenant from `_known`.
        self._known.keep(key, calibration)

    def _forget(self, key: CalibrationKey) -> None:
        """Remove a calibration from all maps."""
        self._known.pop(key, None)
        held = self._of_tenant[key.tenant]
        held.pop(key, None)
        if not held:
            del self._of_tenant[key.tenant]
        self._rests.pop(key, None)
