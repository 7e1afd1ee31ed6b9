"""Seeded mutants: the lease with one protection taken out, which a check that deserves its name has to notice."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType

import pytest
from sqlalchemy import BigInteger, ColumnElement, MetaData, UniqueConstraint, literal

from app.store import chunks, lease
from app.store.tables import summary_chunks

Apply = Callable[[pytest.MonkeyPatch, "World"], None]

BEGINNING = 1_700_000_000_000
SKEW_MS = 2_000


@dataclass(slots=True)
class World:
    """What the model sets and the code under test sees."""

    now: int = BEGINNING
    """The database's clock, in milliseconds."""
    acting: str = ""
    """The holder whose process runs."""
    schema: MetaData = summary_chunks.metadata

    def clock(self) -> ColumnElement[int]:
        return literal(self.now, BigInteger)


def rewritten(module: ModuleType, function: str, old: str, new: str) -> Apply:
    """The function with a piece of its source replaced."""

    def apply(patch: pytest.MonkeyPatch, _: World) -> None:
        source = inspect.getsource(getattr(module, function))
        assert source.count(old) == 1, f"{function} is not written as the mutant expects"
        made: dict[str, object] = {}
        exec(source.replace(old, new), vars(module), made)  # noqa: S102 - our own source
        patch.setattr(module, function, made[function])

    return apply


def skewed_clock(patch: pytest.MonkeyPatch, world: World) -> None:
    """Time is read by each process, and one is ahead."""

    def clock() -> ColumnElement[int]:
        return literal(world.now + (SKEW_MS if world.acting == "h1" else 0), BigInteger)

    patch.setattr(lease, "now_ms", clock)


def no_unique_key(_: pytest.MonkeyPatch, world: World) -> None:
    """A range may be stored as often as it is made."""
    world.schema = MetaData()
    for table in summary_chunks.metadata.sorted_tables:
        copy = table.to_metadata(world.schema)
        copy.constraints -= {each for each in copy.constraints if isinstance(each, UniqueConstraint)}


BY_RANGE = "and_(*_held_by(lease).clauses[:4])"
"""Whoever held it once."""

MUTANTS: dict[str, Apply] = {
    "no fence": rewritten(chunks, "commit_chunks", "if not await fence_holds(connection, lease)", "if False"),
    "no unique key": no_unique_key,
    "no expiry check": rewritten(lease, "_insert_or_take_over", "where=not_(_is_live(now_ms(), ttl_ms)),", ""),
    "clock skew of 2 s": skewed_clock,
    "epoch not bumped": rewritten(lease, "_insert_or_take_over", "leases.c.epoch + 1", "leases.c.epoch"),
    "renew without holder": rewritten(lease, "renew_lease", "_held_by(lease)", BY_RANGE),
    "release without holder": rewritten(lease, "release_lease", "_held_by(lease)", BY_RANGE),
    "release deletes the row": rewritten(
        lease,
        "release_lease",
        "update(leases).where(_held_by(lease)).values(expires_at=-now_ms())",
        "delete(leases).where(_held_by(lease))",
    ),
    # Beyond the eight of the design
    "nobody looks": rewritten(lease, "acquire_lease", "if busy :=", "if False and"),
    "expired leases block": rewritten(lease, "_live", ", _is_live(now, ttl_ms)\n", "\n"),
    "leases of a later time block": rewritten(lease, "_is_live", ", leases.c.expires_at <= now + ttl_ms", ""),
    "released leases are renewed": rewritten(lease, "renew_lease", ", leases.c.expires_at > _NEVER", ""),
    "renewed beside another": rewritten(
        lease, "renew_lease", "if (await connection.execute(begun)).first()", "if False"
    ),
    "revoked leases commit": rewritten(lease, "revoke_leases", "epoch=leases.c.epoch + 1, ", ""),
    "released rows are old": rewritten(lease, "remove_old_leases", "leases.c.expires_at > -then, ", ""),
}
