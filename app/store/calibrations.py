"""Calibrations and learned windows. Replicas learn these numbers from providers' answers and refusals, and share them.

`calibrations` has a row for each combination of upstream, model, formula, tools (yes or no) and tenant;
`learned_windows` has a row for each combination of upstream, model and tenant.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from hashlib import blake2b
from typing import Any

import sqlalchemy as sa
from msgspec import Struct
from msgspec.structs import asdict
from sqlalchemy.ext.asyncio import AsyncConnection

from app.store.tables import (
    Page,
    Paging,
    calibrations,
    conversations,
    insert_into,
    is_among,
    learned_windows,
    moment,
    now_ms,
    owned,
    read_once,
    read_page,
)
from app.tokens.calibration import Calibration, Line, Sample, observe, prior_for

MOST_CALIBRATIONS = 10_000
MOST_OF_TENANT = 100
"""Maximum number of learned windows of one tenant at one upstream. Without it, invented models could fill the table."""


class CalibrationKey(Struct, frozen=True):
    """Key of a calibration, which corrects the estimates of requests with these properties."""

    upstream: str
    model: str
    formula: str
    """Name of the formula by which Steno estimates tokens."""
    tools: bool
    tenant: str

    @property
    def id(self) -> str:
        """Id of the row: a digest of the key, so every replica computes the same id."""
        parts = (self.upstream, self.model, self.formula, str(self.tools), self.tenant)
        joined = "\0".join(parts).encode(errors="surrogatepass")
        return "cal_" + blake2b(joined, digest_size=16, person=b"steno-calibrate").hexdigest()


class StoredCalibration(Struct, frozen=True):
    key: CalibrationKey
    calibration: Calibration
    created_at: datetime
    updated_at: datetime


async def read_calibrations(
    connection: AsyncConnection, changed_within_seconds: float | None = None
) -> list[StoredCalibration]:
    """Return at most 10,000 calibrations of all tenants, the latest change first. By default they may have any age."""
    rows = (
        sa.select(calibrations).order_by(calibrations.c.updated_at.desc(), calibrations.c.id).limit(MOST_CALIBRATIONS)
    )
    if changed_within_seconds is not None:
        since = read_once(now_ms() - round(changed_within_seconds * 1000))
        rows = rows.where(calibrations.c.updated_at > since)
    return [_stored(row) for row in await connection.execute(rows)]


async def learn_calibrations(
    connection: AsyncConnection, samples: Mapping[CalibrationKey, Sequence[Sample]]
) -> dict[CalibrationKey, Calibration]:
    """Add the samples to the stored calibrations, and return the results. Needs a transaction.

    Lock the rows in the order of their ids, so that replicas neither overwrite each other's samples nor deadlock.
    """
    keys = {key.id: key for key in sorted(samples, key=lambda key: key.id)}
    if not keys:
        return {}
    added = insert_into(connection, calibrations).values(recent=[], samples=0, created_at=now_ms(), updated_at=now_ms())
    new = [{"id": id_, **asdict(key)} for id_, key in keys.items()]
    await connection.execute(added.on_conflict_do_nothing(), new)
    locked = sa.select(calibrations).order_by(calibrations.c.id).with_for_update()
    rows = await connection.execute(locked.where(is_among(connection, calibrations.c.id, keys)))
    learnt: dict[CalibrationKey, Calibration] = {}
    for row in rows:
        calibration = _calibration(row)
        for sample in samples[keys[row.id]]:
            calibration = observe(calibration, sample)
        learnt[keys[row.id]] = calibration
    await connection.execute(
        sa.update(calibrations).where(calibrations.c.id == sa.bindparam("of_id")).values(updated_at=now_ms()),
        [
            {
                "of_id": key.id,
                "recent": [[sample.estimate, sample.reported] for sample in calibration.recent],
                "samples": calibration.samples,
                "offset_tokens": calibration.adopted.offset if calibration.adopted else None,
                "ratio": calibration.adopted.ratio if calibration.adopted else None,
            }
            for key, calibration in learnt.items()
        ],
    )
    return learnt


async def read_own_calibrations(connection: AsyncConnection, tenant: str, paging: Paging) -> Page[StoredCalibration]:
    """Return a page of the tenant's own calibrations. Raises UnknownCursor."""
    rows = sa.select(calibrations).where(calibrations.c.tenant == tenant)
    return await read_page(connection, rows, _stored, paging)


def _stored(row: sa.Row[Any]) -> StoredCalibration:
    return StoredCalibration(
        key=CalibrationKey(row.upstream, row.model, row.formula, row.tools, row.tenant),
        calibration=_calibration(row),
        created_at=moment(row.created_at),
        updated_at=moment(row.updated_at),
    )


def _calibration(row: sa.Row[Any]) -> Calibration:
    recent = tuple(Sample(estimate, reported) for estimate, reported in row.recent)
    held = None if row.ratio is None else Line(row.offset_tokens, row.ratio)
    return Calibration(prior_for(row.model, row.formula, row.tools), recent, row.samples, held)


async def read_learned_windows(
    connection: AsyncConnection, upstream: str, most: int
) -> Sequence[sa.Row[str, str, int, int]]:
    """Return the `most` limits that expire last, as rows of `model`, `tenant`, `limit_tokens` and `left_ms`
    (milliseconds until the limit expires). The limit that expires last comes first."""
    row, left = learned_windows.c, learned_windows.c.expires_at - now_ms()
    rows = sa.select(row.model, row.tenant, row.limit_tokens, left.label("left_ms"))
    live = rows.where(row.upstream == upstream, row.expires_at > read_once(now_ms()))
    latest = live.order_by(row.expires_at.desc(), row.model, row.tenant).limit(most)
    return (await connection.execute(latest)).all()


async def learn_window(
    connection: AsyncConnection, upstream: str, model: str, tenant: str, limit: int, seconds: float
) -> None:
    """Store the smaller of `limit` (in tokens) and the stored limit. The row expires in `seconds`. Delete expired rows.
    If the tenant has more than `MOST_OF_TENANT` rows at this upstream, keep those that expire last."""
    there, own = learned_windows.c, owned(learned_windows, tenant, upstream=upstream)
    await connection.execute(sa.delete(learned_windows).where(there.expires_at <= now_ms()))
    times = {"learnt_at": now_ms(), "expires_at": now_ms() + round(seconds * 1000)}
    values = {"upstream": upstream, "model": model, "tenant": tenant, "limit_tokens": limit, **times}
    statement = insert_into(connection, learned_windows).values(values)
    new = statement.excluded.limit_tokens
    smaller = sa.case((there.limit_tokens < new, there.limit_tokens), else_=new)
    changed = {**times, "limit_tokens": smaller}
    key = list(learned_windows.primary_key)
    await connection.execute(statement.on_conflict_do_update(index_elements=key, set_=changed))
    latest = sa.select(there.expires_at).where(own).order_by(there.expires_at.desc())
    oldest_kept = latest.offset(MOST_OF_TENANT - 1).limit(1).scalar_subquery()
    await connection.execute(sa.delete(learned_windows).where(own, there.expires_at < oldest_kept))


async def forget_window(connection: AsyncConnection, upstream: str, model: str, tenant: str, below: int) -> None:
    """Delete the tenant's limit if it is less than `below` tokens. A larger limit, perhaps another replica's, stays."""
    own = owned(learned_windows, tenant, upstream=upstream, model=model)
    await connection.execute(sa.delete(learned_windows).where(own, learned_windows.c.limit_tokens < below))


async def read_models_used(connection: AsyncConnection, tenant: str, most: int = 1_000) -> list[str]:
    """Return at most `most` models of a tenant's conversations, the most recently used first."""
    model, latest = conversations.c.model, sa.func.max(conversations.c.updated_at).desc()
    models = sa.select(model).where(conversations.c.tenant == tenant).group_by(model)
    return list(await connection.scalars(models.order_by(latest, model).limit(most)))
