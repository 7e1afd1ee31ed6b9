"""The tables, and what statements on them share: the clock, conditions, many keys at once, pages of a list.

Every key begins with the tenant, so no query can reach across. But for `calibrations` and `learned_windows`, which
several tenants may confirm to each other: they hold numbers of tokens and the names of models, no text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime
from typing import Any, Generic, Literal, TypeVar, cast

from msgspec import Struct
from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    ColumnElement,
    Dialect,
    Double,
    FromClause,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    Row,
    ScalarSelect,
    Select,
    Table,
    Text,
    UniqueConstraint,
    and_,
    any_,
    false,
    func,
    literal,
    select,
    tuple_,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeDecorator

from app.conversation.identity import DIGEST_BYTES
from app.runtime.caches import storable
from app.store.engine import UnknownCursor

T = TypeVar("T")

DAY_MS = 86_400_000
HOUR_MS = DAY_MS // 24


class now_ms(FunctionElement[int]):  # noqa: N801 - reads as the SQL function it is
    """Milliseconds since 1970 by the database's clock, the only one that all replicas share.

    Read when the statement runs, not when its transaction began.
    """

    type = BigInteger()
    inherit_cache = True


@compiles(now_ms, "postgresql")
def _on_postgresql(element: now_ms, compiler: SQLCompiler, **_: Any) -> str:  # noqa: ARG001 - SQLAlchemy's signature
    return "CAST(extract(epoch FROM clock_timestamp()) * 1000 AS BIGINT)"


@compiles(now_ms, "sqlite")
def _on_sqlite(element: now_ms, compiler: SQLCompiler, **_: Any) -> str:  # noqa: ARG001 - SQLAlchemy's signature
    # unixepoch('subsec') would read better, but needs SQLite 3.42; 2440587.5 is the Julian day of 1970.
    return "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)"


def read_once(time: ColumnElement[int]) -> ScalarSelect[int]:
    """A time made of `now_ms`: in a subquery the clock is read once, and an index finds what is compared with it."""
    return select(time).scalar_subquery()


def moment(milliseconds: int) -> datetime:
    """Time of these milliseconds since 1970."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


class CleanText(TypeDecorator[str]):
    """Text in which U+FFFD stands for what cannot be stored, in comparisons too, so that what was kept is found."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:  # noqa: ARG002 - SQLAlchemy's signature
        return None if value is None else storable(value)


Count = BigInteger().with_variant(Integer(), "sqlite")
"""Whole numbers. Times are such, too, in milliseconds since 1970: one representation for both databases, and leases can
be compared without time zones."""

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def _required(kind: Any, *names: str) -> list[Column[Any]]:
    return [Column(name, kind, nullable=False) for name in names]


def _optional(kind: Any, *names: str) -> list[Column[Any]]:
    return [Column(name, kind) for name in names]


conversations = Table(
    "conversations",
    metadata,
    *_required(CleanText, "tenant", "id", "model", "status", "coverage"),
    *_required(Count, "turns", "messages", "requests", "tokens_before", "tokens_after", "window"),
    *_required(Count, "created_at", "updated_at"),
    *_required(JSON, "summaries"),
    *_optional(CleanText, "reason", "forked_from"),
    Column("plan", CleanText),  # Of the latest request whose payload was changed, or due to be.
    Column("head", LargeBinary),  # Digest of the latest request's history.
    PrimaryKeyConstraint("tenant", "id"),
    Index(None, "tenant", "created_at", "id"),
    Index(None, "tenant", "updated_at", "id"),
    Index(None, "updated_at"),
)

heads = Table(
    "heads",
    metadata,
    *_required(CleanText, "tenant", "conversation_id"),
    *_required(LargeBinary, "digest"),
    *_required(Count, "turn"),
    PrimaryKeyConstraint("tenant", "digest"),
    Index(None, "tenant", "conversation_id"),
)

# A chunk is its range: two branches that begin alike both keep theirs, a repeated commit changes nothing, and a summary
# in flight never takes the place of a person's text.
summary_chunks = Table(
    "summary_chunks",
    metadata,
    *_required(CleanText, "tenant", "id", "conversation_id", "series", "text", "model", "prompt_version"),
    *_required(LargeBinary, "from_digest", "through_digest", "last_message_digest"),
    *_required(Count, "level", "first_index", "last_index", "through_turn", "tokens", "created_at"),
    *_required(JSON, "carried", "children"),
    Column("continued", Boolean, nullable=False, server_default=false()),
    Column("exact_values", JSON, nullable=False, server_default="[]"),
    Column("user_words", JSON, nullable=False, server_default="[]"),
    Column("user_words_tokens", Count, nullable=False, server_default="0"),
    Column("values_kept", Double),
    Column("history_length", Count),
    Column("used_at", Count),  # By the last request whose payload it stood in, to the hour.
    PrimaryKeyConstraint("tenant", "id"),
    # PostgreSQL cuts names at 63 characters, so this one is given by hand.
    UniqueConstraint("tenant", "series", "level", "from_digest", "through_digest", name="uq_summary_chunks_range"),
    # A digest is keyed with its tenant, so this one finds the same rows with a third of the bytes to compare.
    Index(None, "through_digest"),
    Index(None, "tenant", "last_message_digest", "created_at"),
    Index(None, "tenant", "created_at", "id"),
    Index(None, "tenant", "conversation_id"),
    Index(None, "used_at"),
)

# The key is the range of the chunk in the making.
leases = Table(
    "leases",
    metadata,
    *_required(CleanText, "tenant", "series", "conversation_id", "holder"),
    *_required(LargeBinary, "from_digest", "through_digest"),
    *_required(Count, "epoch", "expires_at"),
    PrimaryKeyConstraint("tenant", "series", "from_digest", "through_digest"),
    Index(None, "tenant", "conversation_id"),
    Index(None, "expires_at"),
)

# What follows from the samples is worked out by the core. The id is a digest of the key: a client may name a model of
# any length.
calibrations = Table(
    "calibrations",
    metadata,
    *_required(CleanText, "id", "upstream", "model", "formula"),
    *_required(Boolean, "tools"),
    Column("tenant", CleanText, nullable=False, server_default=""),
    *_required(JSON, "recent"),
    *_required(Count, "samples", "created_at", "updated_at"),
    *_optional(Double, "offset_tokens", "ratio"),
    PrimaryKeyConstraint("id"),
    Index(None, "updated_at"),
    Index(None, "tenant", "created_at", "id"),
)

learned_windows = Table(
    "learned_windows",
    metadata,
    *_required(CleanText, "upstream", "model"),
    Column("tenant", CleanText, nullable=False, server_default=""),
    *_required(Count, "limit_tokens", "learnt_at", "expires_at"),
    PrimaryKeyConstraint("upstream", "model", "tenant"),
    Index(None, "expires_at"),
)

# A boundary before which answered tool results are masked: a place in a history, for one set of mask settings.
masks = Table(
    "masks",
    metadata,
    *_required(CleanText, "tenant", "settings", "conversation_id"),
    *_required(LargeBinary, "digest", "start_digest"),
    *_required(Count, "created_at"),
    PrimaryKeyConstraint("tenant", "settings", "digest", "start_digest"),
    Index(None, "tenant", "conversation_id"),
)

# The history of each conversation's latest request, where the operator wants it to be kept: see `histories`.
histories = Table(
    "histories",
    metadata,
    *_required(CleanText, "tenant", "conversation_id", "format", "title"),
    *_required(Count, "instructions", "updated_at"),  # Messages at its beginning that are instructions.
    *_required(LargeBinary, "digests", "content"),
    Column("head", LargeBinary),
    PrimaryKeyConstraint("tenant", "conversation_id"),
)

# Messages need not be stored, so a pin is set by its position and bound to the history by the next request that shows
# it.
pins = Table(
    "pins",
    metadata,
    *_required(CleanText, "tenant", "conversation_id"),
    *_required(Count, "position", "created_at"),
    Column("digest", LargeBinary),
    PrimaryKeyConstraint("tenant", "conversation_id", "position"),
)

# The rates are kept with the record: prices change, and what was spent does not.
usage_records = Table(
    "usage_records",
    metadata,
    *_required(CleanText, "tenant", "id", "conversation_id", "request_id", "purpose", "upstream", "model"),
    *_required(Count, "turn", "saved_tokens", "status", "created_at"),
    *_optional(Count, "estimated_tokens", "forwarded_tokens", "window_tokens", "limit_tokens", "trigger_tokens"),
    *_optional(Count, "replaced_tokens", "summary_tokens", "prompt_tokens", "completion_tokens", "cached_tokens"),
    *_optional(Count, "reasoning_tokens", "written_tokens", "written_hour_tokens", "audio_tokens", "speech_tokens"),
    *_optional(Count, "searches"),
    *_optional(Double, "prompt_rate", "completion_rate", "cached_rate", "written_rate", "written_hour_rate"),
    *_optional(Double, "audio_rate", "speech_rate", "search_rate", "cost", "saved_cost"),
    *_optional(Double, "waited_seconds", "seconds", "values_kept"),
    *_optional(CleanText, "format", "tier", "price_source", "priced_model", "context_status", "reason", "summary_id"),
    Column("actions", CleanText),  # Separated by commas.
    PrimaryKeyConstraint("tenant", "id"),
    Index(None, "tenant", "conversation_id", "created_at", "id"),
    Index(None, "tenant", "created_at"),
    Index(None, "created_at"),
)

# A digest of the server's secret: see `schema`.
settings_check = Table(
    "settings_check",
    metadata,
    *_required(CleanText, "name"),
    *_required(LargeBinary, "digest"),
    PrimaryKeyConstraint("name"),
)


Insert = postgresql.Insert | sqlite.Insert


def insert_into(connection: AsyncConnection, table: Table) -> Insert:
    """An insert that knows `on conflict`: the same words on both databases, but two classes of SQLAlchemy's."""
    return postgresql.insert(table) if connection.dialect.name == "postgresql" else sqlite.insert(table)


def owned(table: FromClause, tenant: str, **columns: object) -> ColumnElement[bool]:
    """Condition of the tenant's rows with these values in these columns."""
    return and_(table.c.tenant == tenant, *(table.c[name] == value for name, value in columns.items()))


def members(row: Row[Any], *left_out: str) -> dict[str, Any]:
    """The values of a row by the names of their columns, but for some; lists as tuples, and times as such."""
    values: dict[str, Any] = {}
    for name, value in row._mapping.items():  # noqa: SLF001 - SQLAlchemy's public name for it
        if name in left_out:
            continue
        if name.endswith("_at") and value is not None:
            values[name] = moment(value)
        else:
            values[name] = tuple(value) if isinstance(value, list) else value
    return values


def is_among(connection: AsyncConnection, column: Column[T], keys: Collection[T]) -> ColumnElement[bool]:
    """Condition of the rows with one of many keys, which are sent as one parameter: one plan for any number of them.

    With a parameter each, thousands take longer to write, to parse and to plan for than to find.
    """
    if connection.dialect.name == "postgresql":
        return column == any_(literal(list(keys), ARRAY(column.type)))
    if not isinstance(column.type, LargeBinary):
        listed = func.json_each(json.dumps([storable(str(key)) for key in keys])).table_valued("value")
        return column.in_(select(listed.c.value))
    joined = literal(b"".join(cast("Collection[bytes]", keys)))
    starts = select(literal(1).label("start")).cte("at", recursive=True, nesting=True)
    following = starts.c.start + DIGEST_BYTES
    starts = starts.union_all(select(following).where(following <= func.length(joined)))
    return column.in_(select(func.substr(joined, starts.c.start, DIGEST_BYTES)))


Order = Literal["asc", "desc"]


class Page(Struct, Generic[T], frozen=True):
    """Part of a list; `last_id` as `after` gives the next part."""

    data: Sequence[T]
    first_id: str | None
    last_id: str | None
    has_more: bool


class Paging(Struct, frozen=True):
    """Part of a list that is asked for."""

    limit: int
    """Most entries of the page."""
    after: str | None = None
    """The `last_id` of the page before; None for the first one."""
    order: Order = "asc"


async def read_page(
    connection: AsyncConnection,
    table: FromClause,
    rows: Select[Any],
    build: Callable[[Row[Any]], T],
    paging: Paging,
) -> Page[T]:
    """The rows after the cursor, by time and id. Raises UnknownCursor if the cursor is none of the rows."""
    is_rising = paging.order == "asc"
    keys = (table.c.created_at, table.c.id)
    if paging.after is not None:
        cursor = (await connection.execute(rows.where(table.c.id == paging.after))).first()
        if cursor is None:
            raise UnknownCursor(f"The list holds no {paging.after!r} to continue after.")
        reached = tuple_(cursor.created_at, cursor.id)
        rows = rows.where(tuple_(*keys) > reached if is_rising else tuple_(*keys) < reached)
    rows = rows.order_by(*(keys if is_rising else (key.desc() for key in keys))).limit(paging.limit + 1)
    found = (await connection.execute(rows)).all()
    shown = found[: paging.limit]
    return Page(
        data=[build(row) for row in shown],
        first_id=shown[0].id if shown else None,
        last_id=shown[-1].id if shown else None,
        has_more=len(found) > paging.limit,
    )
