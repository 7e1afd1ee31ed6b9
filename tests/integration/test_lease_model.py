"""The lease against a model of it: random lives of several holders, ranges and conversations, and the database's clock.

`make lease` plays many more.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    CursorResult,
    Executable,
    create_engine,
    delete,
    literal,
    select,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from app.compaction.chunks import ChunkRange
from app.store import Claim, Lease, chunks
from app.store import leases as lease_queries
from app.store.engine import Database
from app.store.tables import leases, summary_chunks
from tests.integration.examples import TENANT, chain, chunk, digest, span

T = TypeVar("T")

LONG = os.environ.get("HYPOTHESIS_PROFILE") == "long"
BEGINNING = 1_700_000_000_000
TTL_MS = 15_000
DAY_MS = 24 * 3_600_000

TRUNK = chain(10)
BRANCH = [*chain(3), *(digest(100 + number) for number in range(3, 10))]
CHAINS = {"c1": TRUNK, "c2": TRUNK, "c3": BRANCH}
"""The conversations; the third begins as the others do and goes its own way after two messages."""
RANGES = {
    name: [span(0, 2), *(span(start, offset + end) for start, end in ((0, 4), (2, 4)))]
    for name, offset in (("c1", 0), ("c2", 0), ("c3", 100))
}

HOLDERS = st.sampled_from(("h1", "h2", "h3"))
PLACES = st.sampled_from([(name, each) for name, ranges in RANGES.items() for each in ranges])
PAUSES = st.sampled_from((1, 1_500, TTL_MS - 1, TTL_MS, lease_queries.KEPT_MS, lease_queries.KEPT_MS + 1))

ROWS = select(leases)
STORED = select(summary_chunks.c.from_digest, summary_chunks.c.through_digest, summary_chunks.c.text)


@dataclass(slots=True)
class World:
    """The database's clock, in milliseconds."""

    now: int = BEGINNING

    def clock(self) -> ColumnElement[int]:
        return literal(self.now, BigInteger)


@dataclass(slots=True)
class Row:
    """What is known of a range's lease."""

    conversation_id: str
    holder: str
    epoch: int
    ends: int
    """When it expires, or expired, or was revoked."""
    held: Lease | None
    """Who may commit; None after a revocation."""

    def is_held_by(self, lease: Lease) -> bool:
        # Not by the conversation: once a row was removed, a process may come by the same epoch again, if the clock was
        # put back.
        return self.held is not None and (self.held.holder, self.held.epoch) == (lease.holder, lease.epoch)


class LeaseModel(RuleBasedStateMachine):
    """Does every step on the database and in memory, and compares."""

    world: ClassVar[World]
    connection: ClassVar[AsyncConnection]
    loop: ClassVar[asyncio.AbstractEventLoop]

    granted = Bundle("granted")

    def __init__(self) -> None:
        super().__init__()
        self.world.now = BEGINNING
        self._run(self._clear())
        self.rows: dict[ChunkRange, Row] = {}
        self.chunks: dict[ChunkRange, str] = {}

    # What may happen

    @rule(target=granted, holder=HOLDERS, place=PLACES)
    def acquire(self, holder: str, place: tuple[str, ChunkRange]) -> Any:
        conversation_id, wanted = place
        claim = Claim(TENANT, conversation_id, wanted, CHAINS[conversation_id])
        answer = self._write(lease_queries.acquire_lease, claim, holder, TTL_MS)
        in_the_way = self._in_the_way(conversation_id, wanted)
        if answer == "busy":
            assert in_the_way, "told to wait for nobody"
            return multiple()
        assert not in_the_way, "a second live holder"
        assert isinstance(answer, Lease)
        before = self.rows.get(wanted)
        assert answer.epoch > (before.epoch if before else 0), "the epoch did not grow"
        self.rows[wanted] = Row(conversation_id, holder, answer.epoch, self.world.now + TTL_MS, answer)
        return answer

    @rule(held=granted)
    def renew(self, held: Lease) -> None:
        assert self._write(lease_queries.renew_lease, held, TTL_MS) == self._renewed(held)

    @rule(held=granted)
    def release(self, held: Lease) -> None:
        is_revoked = self._write(lease_queries.release_lease, held)
        row = self.rows.get(held.range)
        if row is not None and row.is_held_by(held):
            del self.rows[held.range]
        assert is_revoked == (row is not None and row.held is None and row.holder == held.holder)

    @rule(held=granted, text=st.sampled_from(("one", "another")))
    def commit(self, held: Lease, text: str) -> None:
        made = chunk(
            0,
            1,
            id=f"{held.range.from_digest.hex()}{held.range.through_digest.hex()}{text}",
            text=text,
            conversation_id=held.conversation_id,
            from_digest=held.range.from_digest,
            through_digest=held.range.through_digest,
        )
        stored = self._write(chunks.commit_chunks, held, [made])
        row = self.rows.get(held.range)
        if row is None or not row.is_held_by(held):
            assert stored is None, "a commit without its epoch was taken"
            return
        kept = self.chunks.setdefault(held.range, text)
        assert stored is not None
        assert [each.text for each in stored] == [kept], "a repeated commit changed what was stored"

    @rule(pause=PAUSES)
    def time_passes(self, pause: int) -> None:
        self.world.now += pause

    @rule()
    def clock_is_put_back(self) -> None:
        """So far that it does not catch up. Where it does, two may be live until one of them sends its heartbeat."""
        self.world.now -= 100 * DAY_MS

    @rule(conversation_id=st.sampled_from(sorted(CHAINS)))
    def revoke(self, conversation_id: str) -> None:
        self._write(lease_queries.revoke_leases, TENANT, conversation_id)
        for each, row in list(self.rows.items()):
            if row.conversation_id == conversation_id and row.ends <= self.world.now:
                del self.rows[each]
            elif row.conversation_id == conversation_id:
                row.epoch, row.ends, row.held, row.conversation_id = row.epoch + 1, self.world.now, None, ""

    @precondition(lambda self: self.rows)
    @rule()
    def remove_old_rows(self) -> None:
        old = [each for each, row in self.rows.items() if row.ends < self.world.now - lease_queries.KEPT_MS]
        assert self._write(lease_queries.remove_old_leases, 100) == len(old)
        for each in old:
            del self.rows[each]

    # What must hold

    @invariant()
    def database_holds_what_the_model_holds(self) -> None:
        """Epochs are what they were, and no row or chunk comes or goes unasked."""
        rows, stored = self._run(self._look())
        assert rows == {each: (row.conversation_id, row.epoch, row.ends) for each, row in self.rows.items()}
        assert stored == sorted((each.from_digest, each.through_digest, text) for each, text in self.chunks.items())

    @invariant()
    def one_live_holder_for_a_conversation(self) -> None:
        live = [row.conversation_id for row in self.rows.values() if self._is_live(row)]
        assert len(live) == len(set(live))

    # How it is done

    def _renewed(self, held: Lease) -> bool:
        """Whether a heartbeat of now keeps it alive."""
        row = self.rows.get(held.range)
        if row is None or not row.is_held_by(held):
            return False
        begun = any(
            self._is_live(other)
            # What the holder knows of: the row may be of another conversation, where it came by an old epoch again.
            and (other.conversation_id == held.conversation_id or each.from_digest == held.range.from_digest)
            for each, other in self.rows.items()
            if other is not row
        )
        if begun and not self._is_live(row):
            return False
        row.ends = self.world.now + TTL_MS
        return True

    def _in_the_way(self, conversation_id: str, wanted: ChunkRange) -> bool:
        return any(
            row.conversation_id == conversation_id
            or each == wanted
            or (each.from_digest == wanted.from_digest and each.through_digest in CHAINS[conversation_id])
            for each, row in self.rows.items()
            if self._is_live(row)
        )

    def _is_live(self, row: Row) -> bool:
        return self.world.now < row.ends <= self.world.now + TTL_MS

    def _write(self, work: Callable[..., Awaitable[T]], *arguments: Any) -> T:
        async def write() -> T:
            async with self.connection.begin():
                return await work(self.connection, *arguments)

        return self._run(write())

    async def _clear(self) -> None:
        async with self.connection.begin():
            for table in (leases, summary_chunks):
                await self.connection.execute(delete(table))

    async def _look(self) -> tuple[dict[ChunkRange, tuple[str, int, int]], list[tuple[Any, ...]]]:
        async with self.connection.begin():
            rows = (await self.connection.execute(ROWS)).all()
            stored = (await self.connection.execute(STORED)).all()
        held = {
            ChunkRange(row.series, row.from_digest, row.through_digest): (
                row.conversation_id,
                row.epoch,
                row.expires_at,
            )
            for row in rows
        }
        return held, sorted(map(tuple, stored))

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)


class Direct:
    """SQLite without the thread behind which the driver keeps it: that is most of what a step would cost."""

    def __init__(self) -> None:
        self._connection = create_engine("sqlite://", connect_args={"isolation_level": None}).connect()
        self.dialect = self._connection.dialect

    async def execute(self, statement: Executable, *values: Any) -> CursorResult[Any]:
        return self._connection.execute(statement, *values)

    async def scalar(self, statement: Executable) -> Any:
        return self._connection.scalar(statement)

    async def run_sync(self, work: Callable[[Connection], object]) -> None:
        work(self._connection)

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[None]:
        with self._connection.begin():
            yield

    async def close(self) -> None:
        self._connection.close()
        self._connection.engine.dispose()


@asynccontextmanager
async def connected(url: str | None) -> AsyncIterator[AsyncConnection]:
    if url is None:
        direct: Any = Direct()
        yield direct
        await direct.close()
        return
    database = Database(url)
    async with database.engine.connect() as connection:
        yield connection
    await database.close()


def play(url: str | None, runs: int, steps: int) -> None:
    """Raises what the model found wrong. Without a URL on SQLite."""
    world, loop, left = World(), asyncio.new_event_loop(), AsyncExitStack()

    async def prepare() -> AsyncConnection:
        connection = await left.enter_async_context(connected(url))
        async with connection.begin():
            await connection.run_sync(summary_chunks.metadata.create_all)
        return connection

    with pytest.MonkeyPatch.context() as patch, closing(loop):
        for module in (lease_queries, chunks):
            patch.setattr(module, "now_ms", world.clock)
        members = {"world": world, "loop": loop, "connection": loop.run_until_complete(prepare())}
        chosen = settings(max_examples=runs, stateful_step_count=steps, suppress_health_check=[*HealthCheck])
        try:
            run_state_machine_as_test(type("Model", (LeaseModel,), members), settings=chosen)
        finally:
            loop.run_until_complete(left.aclose())


@pytest.mark.timeout(4 * 3_600 if LONG else 300)
def test_lease_on_sqlite_keeps_its_promises() -> None:
    """At most one live holder, growing epochs, fenced and repeatable commits."""
    play(None, 5_000 if LONG else 60, 50 if LONG else 30)


@pytest.mark.timeout(4 * 3_600 if LONG else 300)
def test_lease_on_postgresql_keeps_its_promises(postgres_url: str) -> None:
    """The same on the other database."""
    play(postgres_url, 2_000 if LONG else 20, 50 if LONG else 30)
