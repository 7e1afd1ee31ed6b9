"""Calibrations: the samples every replica learns from, one row for each upstream, model, formula, tools and tenant."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from hashlib import blake2b
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict, replace
from sqlalchemy import Row, bindparam, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.store.batches import batches
from app.store.clock import moment, now_ms
from app.store.database import insert_into
from app.store.pages import Page, Paging, read_page
from app.store.tables import calibrations
from app.tokens.calibration import Calibration, Line, Sample, observe, prior_for

MOST_CALIBRATIONS = 10_000


class CalibrationKey(Struct, frozen=True):
    """Key of a calibration: the requests that it holds for."""

    upstream: str
    model: str
    formula: str
    """Name of the formula that counted the estimates."""
    tools: bool
    tenant: str
    """Tenant whose requests taught it; empty: all of them."""

    @property
    def of_all(self) -> CalibrationKey:
        """The key without its tenant."""
        return replace(self, tenant="")

    @property
    def id(self) -> str:
        """Id of the row, the same at every replica."""
        parts = (self.upstream, self.model, self.formula, str(self.tools), self.tenant)
        joined = "\0".join(parts).encode(errors="surrogatepass")
        return "cal_" + blake2b(joined, digest_size=16, person=b"steno-calibrate").hexdigest()


class StoredCalibration(Struct, frozen=True):
    """A calibration as all replicas know it."""

    key: CalibrationKey
    calibration: Calibration
    created_at: datetime
    updated_at: datetime


async def read_calibrations(
    connection: AsyncConnection, changed_within_seconds: float | None = None
) -> list[StoredCalibration]:
    """Calibrations of all tenants, at most 10,000, the latest to change first. None: whenever they changed."""
    rows = select(calibrations).order_by(calibrations.c.updated_at.desc(), calibrations.c.id).limit(MOST_CALIBRATIONS)
    if changed_within_seconds is not None:
        within_ms = round(changed_within_seconds * 1000)
        # In a subquery the clock is read once, so that the index finds them.
        rows = rows.where(calibrations.c.updated_at > select(now_ms() - within_ms).scalar_subquery())
    return [_stored(row) for row in await connection.execute(rows)]


async def learn_calibrations(
    connection: AsyncConnection, samples: Mapping[CalibrationKey, Sequence[Sample]]
) -> dict[CalibrationKey, Calibration]:
    """Add the samples to their rows and return what they are now. Needs a transaction.

    Rows are made and locked in order of their ids, so that two replicas can neither lose a sample nor deadlock.
    """
    keys = {key.id: key for key in sorted(samples, key=lambda key: key.id)}
    if not keys:
        return {}
    await _insert_missing(connection, keys.values())
    learnt: dict[CalibrationKey, Calibration] = {}
    for batch in batches(list(keys)):
        rows = await connection.execute(
            select(calibrations).where(calibrations.c.id.in_(batch)).order_by(calibrations.c.id).with_for_update()
        )
        for row in rows:
            calibration = _calibration(row)
            for sample in samples[keys[row.id]]:
                calibration = observe(calibration, sample)
            learnt[keys[row.id]] = calibration
    await _write(connection, learnt)
    return learnt


async def _insert_missing(connection: AsyncConnection, keys: Iterable[CalibrationKey]) -> None:
    await connection.execute(
        insert_into(connection, calibrations)
        .values(recent=[], samples=0, created_at=now_ms(), updated_at=now_ms())
        .on_conflict_do_nothing(),
        [{"id": key.id, **asdict(key)} for key in keys],
    )


async def _write(connection: AsyncConnection, learnt: Mapping[CalibrationKey, Calibration]) -> None:
    await connection.execute(
        update(calibrations)
        .where(calibrations.c.id == bindparam("row"))
        .values(
            recent=bindparam("latest"),
            samples=bindparam("count"),
            offset_tokens=bindparam("offset"),
            ratio=bindparam("ratio_"),
            updated_at=now_ms(),
        ),
        [
            {
                "row": key.id,
                "latest": [[sample.estimate, sample.reported] for sample in calibration.recent],
                "count": calibration.samples,
                "offset": calibration.adopted.offset if calibration.adopted else None,
                "ratio_": calibration.adopted.ratio if calibration.adopted else None,
            }
            for key, calibration in learnt.items()
        ],
    )


async def read_own_calibrations(connection: AsyncConnection, tenant: str, paging: Paging) -> Page[StoredCalibration]:
    """A page of the calibrations that the tenant's requests taught. Raises UnknownCursor if `after` is none of them."""
    rows = select(calibrations).where(calibrations.c.tenant == tenant)
    return await read_page(connection, calibrations, rows, _stored, paging)


def _stored(row: Row[Any]) -> StoredCalibration:
    return StoredCalibration(
        key=CalibrationKey(row.upstream, row.model, row.formula, row.tools, row.tenant),
        calibration=_calibration(row),
        created_at=moment(row.created_at),
        updated_at=moment(row.updated_at),
    )


def _calibration(row: Row[Any]) -> Calibration:
    recent = tuple(Sample(estimate, reported) for estimate, reported in row.recent)
    held = None if row.ratio is None else Line(row.offset_tokens, row.ratio)
    return Calibration(prior_for(row.model, row.formula, row.tools), recent, row.samples, held)
