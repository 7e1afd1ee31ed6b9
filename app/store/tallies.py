"""Tallies: what tenants used of their limits, counted by all processes together.

Each process counts for itself. About once a second it adds to the database what it counted, with one statement that
also tells it what the others did. So no request waits for the database, and while that is away each process counts
alone. A limit is overshot at most by what the processes let in within that second, and what is under way then; none of
them lets in more than the whole limit by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from time import time

import structlog
from msgspec import Struct
from sqlalchemy import ClauseElement, and_, case, delete, func, not_, or_, select, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection

from app.runtime.bounded import MOST_REMEMBERED, BoundedMap
from app.runtime.repeats import Repeats
from app.store.batches import has_key, written
from app.store.calls import Calls
from app.store.clock import now_ms
from app.store.errors import StoreUnavailable
from app.store.prepared import Insert, Prepared, PreparedInsert
from app.store.tables import conversations, tallies

log = structlog.get_logger("steno.store")

EVERY_SECONDS = 1.0

Key = tuple[str, str]
"""Tenant, and the name of its window."""
Counted = tuple[str, str, int, float]
"""Tenant, name of a window, its end in milliseconds since 1970, amount."""


class Window(Struct, frozen=True):
    """Time in which an amount is counted, after which it begins anew for everybody."""

    name: str
    seconds: int


MINUTE, HOUR, DAY = 60, 3_600, 86_400
FOREVER = 10**10
"""Seconds of a window that ends in 2286: that of a conversation, whose tally goes with it."""
CONVERSATION = "conversation "
"""Beginning of the names of such windows, before the conversation's id."""
MOST_WINDOWS = 100
"""Windows of one tenant that are remembered."""


class _Tally(Struct, eq=False):
    ends_at: int
    """End of its window in milliseconds since 1970, by the database's clock."""
    is_asked: bool = False
    """True if it was counted or looked at since it was shared."""
    told: float = 0.0
    """Amount of all processes, as the database told it last."""
    sent: float = 0.0
    """Amount of this process that is on its way to the database."""
    waiting: float = 0.0
    """Amount of this process that is not sent yet."""


class Tallies:
    def __init__(self, clock: Callable[[], float] = time) -> None:
        """Count in this process alone, until `run`. `clock`: seconds since 1970."""
        self._clock = clock
        self._ahead = 0.0
        """Seconds that the database's clock is ahead of ours."""
        self._held: BoundedMap[str, dict[str, _Tally]] = BoundedMap(MOST_REMEMBERED)
        """Tallies by tenant and window. The database knows those that are pushed out."""
        self._asked: dict[Key, _Tally] = {}
        self._any = asyncio.Event()
        self._repeats = Repeats()

    def add(self, tenant: str, window: Window, amount: float) -> None:
        self._tally(tenant, window).waiting += amount

    def used(self, tenant: str, window: Window) -> float:
        """Amount that was used in the present window, as far as this process knows."""
        tally = self._tally(tenant, window)
        return tally.told + tally.sent + tally.waiting

    def seconds_left(self, window: Window) -> float:
        """Time until the window ends."""
        return window.seconds - (self._clock() + self._ahead) % window.seconds

    @property
    def waiting(self) -> bool:
        """Whether anything was used that the database does not know."""
        return any(tally.waiting for tally in self._asked.values())

    async def run(self, calls: Calls) -> None:
        """Share what is counted, about once a second while there is anything."""
        await calls.readiness.ready.wait()
        while True:
            await self._any.wait()
            try:
                await self.share(calls)
            except StoreUnavailable as error:
                if (times := self._repeats.again("share")) is not None:
                    log.warning("limits counted alone", reason=error.reason, times=times)
            except Exception:
                log.exception("limits counted alone")
            else:
                if (ended := self._repeats.over("share")) is not None:
                    log.info("limits counted together again", times=ended[0], seconds=ended[1])
            await asyncio.sleep(EVERY_SECONDS)

    async def share(self, calls: Calls) -> None:
        """Add what was counted to the database, and learn what others counted. Raises `StoreUnavailable`; then it is
        added the next time, perhaps once more than it was used."""
        asked, self._asked = self._asked, {}
        self._any.clear()
        for tally in asked.values():
            tally.sent, tally.waiting, tally.is_asked = tally.waiting, 0.0, False
        if not asked:
            return
        try:
            rows = [(*key, tally.ends_at, tally.sent) for key, tally in asked.items()]
            told, now = await calls.task_change(add_up, sorted(rows))
        except StoreUnavailable:
            for key, tally in asked.items():
                tally.waiting, tally.sent = tally.waiting + tally.sent, 0.0
                if not tally.is_asked and key not in self._asked:
                    self._ask(key, tally)
            raise
        self._ahead = now / 1_000 - self._clock()
        for key, tally in asked.items():
            tally.sent = 0.0
            tally.ends_at, tally.told = told[key]

    def _tally(self, tenant: str, window: Window) -> _Tally:
        own, now = self._held.get(tenant) or {}, self._clock() + self._ahead
        tally = own.get(window.name)
        if tally is None or tally.ends_at <= now * 1_000:
            # One that was pushed out may not have been sent yet.
            tally = self._asked.get((tenant, window.name))
            if tally is None or tally.ends_at <= now * 1_000:
                tally = _Tally(round((now // window.seconds + 1) * window.seconds) * 1_000)
            if len(own) >= MOST_WINDOWS:  # Who begins many conversations does not lose what all of them used.
                own = {name: other for name, other in own.items() if not name.startswith(CONVERSATION)}
            self._held.keep(tenant, {**own, window.name: tally})
        if not tally.is_asked:
            self._ask((tenant, window.name), tally)
        return tally

    def _ask(self, key: Key, tally: _Tally) -> None:
        """Have the tally shared the next time."""
        tally.is_asked = True
        self._asked[key] = tally
        self._any.set()


def _added(connection: AsyncConnection, statement: Insert) -> ClauseElement:
    there, new = tallies.c, statement.excluded
    is_over = there.ends_at < new.ends_at
    amount = case((is_over, new.amount), (there.ends_at == new.ends_at, there.amount + new.amount), else_=there.amount)
    ends_at = case((is_over, new.ends_at), else_=there.ends_at)
    adding = statement.on_conflict_do_update(
        index_elements=list(tallies.primary_key), set_={"amount": amount, "ends_at": ends_at}
    )
    return adding.returning(*_TOLD) if connection.dialect.name == "postgresql" else adding


_TOLD = (*tallies.columns, now_ms().label("now"))
_ADD = PreparedInsert(tallies, _added)
_READ = Prepared(lambda connection: select(*_TOLD).where(has_key(connection, tallies)))


async def add_up(connection: AsyncConnection, rows: Sequence[Counted]) -> tuple[Mapping[Key, tuple[int, float]], int]:
    """Add amounts to those of their windows. Returns for each key the end of its latest window and the amount in it,
    and the time by the database's clock in milliseconds. Needs a transaction; the keys have to be clean and in order,
    so that no two processes wait for each other."""
    found = await _ADD.write(connection, rows)
    if connection.dialect.name != "postgresql":
        found = await _READ.run(connection, keys=written([(tenant, id_) for tenant, id_, _, _ in rows]))
    return {(tenant, id_): (ends_at, amount) for tenant, id_, ends_at, amount, _ in found}, found[0][-1]


async def remove_old_tallies(connection: AsyncConnection, most: int) -> int:
    """Remove so many tallies whose windows are over, or whose conversations are gone, and say how many there were."""
    its_id = func.substr(tallies.c.id, len(CONVERSATION) + 1)
    lasts = select(conversations.c.id).where(conversations.c.tenant == tallies.c.tenant, conversations.c.id == its_id)
    is_gone = and_(tallies.c.ends_at == FOREVER * 1_000, not_(lasts.exists()))
    is_over = or_(tallies.c.ends_at < select(now_ms()).scalar_subquery(), is_gone)
    some = select(*tallies.primary_key).where(is_over).limit(most).with_for_update(skip_locked=True)
    removed = await connection.execute(delete(tallies).where(tuple_(*tallies.primary_key).in_(some), is_over))
    return removed.rowcount
