"""The tables, and helpers for SQL statements: the clock, conditions, lists of keys, pages of a list.

Primary keys begin with the tenant, and queries name it, so that no tenant reads another tenant's rows. Only
`calibrations` and `learned_windows` are read for all tenants; these tables contain no text of messages.
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
from app.runtime.bounded import storable
from app.store.engine import UnknownCursor

T = TypeVar("T")

DAY_MS = 86_400_000


class now_ms(FunctionElement[int]):  # noqa: N801 - reads as the SQL function it is
    """Milliseconds since 1970 by the database's clock, the only clock that all replicas share.

    The value is the time at which the statement runs, not the start of its transaction.
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
    """Put an expression with `now_ms` into a subquery: SQL evaluates it once, and comparisons can use an index."""
    return select(time).scalar_subquery()


def moment(milliseconds: int) -> datetime:
    """Return the UTC time for milliseconds since 1970."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


class CleanText(TypeDecorator[str]):
    """Text column. U+FFFD replaces characters that the databases cannot store, also in parameters of queries."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:  # noqa: ARG002 - SQLAlchemy's signature
        return None if value is None else storable(value)


Count = BigInteger().with_variant(Integer(), "sqlite")
"""Type of whole numbers and of times. Times are milliseconds since 1970, which both databases store alike."""

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
    Column("plan", CleanText),  # Plan of the latest request that has a plan: see `ConversationState.plan`.
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

# A range has at most one chunk, so a repeated commit changes nothing, and a new summary never replaces a user's
# correction. Branches have their own chunks, because their ranges end at different digests.
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
    Column("used_at", Count),  # Time of the chunk's last use in a payload, to the hour.
    PrimaryKeyConstraint("tenant", "id"),
    # PostgreSQL cuts names at 63 characters, and the generated name would be longer.
    UniqueConstraint("tenant", "series", "level", "from_digest", "through_digest", name="uq_summary_chunks_range"),
    # Without the tenant, the index compares a third of the bytes. Digests of different tenants differ anyway.
    Index(None, "through_digest"),
    Index(None, "tenant", "last_message_digest", "created_at"),
    Index(None, "tenant", "created_at", "id"),
    Index(None, "tenant", "conversation_id"),
    Index(None, "used_at"),
)

# The key is the range of the chunk that the holder makes.
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

# `tokens.calibration` computes `offset_tokens` and `ratio` from the samples. The id is a digest of the other key
# columns, because a client may send a model's name of any length.
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

# A boundary in a history, for one set of mask settings. Answered tool results before the boundary are masked.
masks = Table(
    "masks",
    metadata,
    *_required(CleanText, "tenant", "settings", "conversation_id"),
    *_required(LargeBinary, "digest", "start_digest"),
    *_required(Count, "created_at"),
    PrimaryKeyConstraint("tenant", "settings", "digest", "start_digest"),
    Index(None, "tenant", "conversation_id"),
)

# The history of each conversation's latest request, if `storage.messages` is on: see `histories`.
histories = Table(
    "histories",
    metadata,
    *_required(CleanText, "tenant", "conversation_id", "format", "title"),
    *_required(Count, "instructions", "updated_at"),  # Number of leading instructions.
    *_required(LargeBinary, "digests", "content"),
    Column("head", LargeBinary),
    PrimaryKeyConstraint("tenant", "conversation_id"),
)

# A pin is set by position, because Steno may not store messages. The next request with a message at this position binds
# the pin to its history.
pins = Table(
    "pins",
    metadata,
    *_required(CleanText, "tenant", "conversation_id"),
    *_required(Count, "position", "created_at"),
    Column("digest", LargeBinary),
    PrimaryKeyConstraint("tenant", "conversation_id", "position"),
)

# The rates are stored with the record, because prices change later.
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
    Column("actions", CleanText),  # Comma-separated.
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
    """Return an insert that supports ON CONFLICT. SQLAlchemy has a separate class for each database."""
    return postgresql.insert(table) if connection.dialect.name == "postgresql" else sqlite.insert(table)


def owned(table: FromClause, tenant: str, **columns: object) -> ColumnElement[bool]:
    """Return the condition for the tenant's rows with these values."""
    return and_(table.c.tenant == tenant, *(table.c[name] == value for name, value in columns.items()))


def members(row: Row[Any], *left_out: str) -> dict[str, Any]:
    """Return a row's values by column name, without the columns `left_out`. Lists become tuples, times datetimes."""
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
    """Return the condition for rows with one of the keys. All keys are one parameter of the statement.

    With one parameter for each of thousands of keys, parsing and planning would take longer than the query.
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
    """Page of a list. `last_id` is the `after` of the next page."""

    data: Sequence[T]
    first_id: str | None
    last_id: str | None
    has_more: bool


class Paging(Struct, frozen=True):
    limit: int
    after: str | None = None
    """`last_id` of the previous page; None for the first page."""
    order: Order = "asc"


async def read_page(
    connection: AsyncConnection,
    rows: Select[Any],
    build: Callable[[Row[Any]], T],
    paging: Paging,
    by: Literal["created_at", "updated_at"] = "created_at",
) -> Page[T]:
    """Return the page after `paging.after`, by time and id. Raises UnknownCursor if no row has this id."""
    is_rising, columns = paging.order == "asc", rows.selected_columns
    keys = (columns[by], columns.id)
    if paging.after is not None:
        reached = (await connection.execute(rows.with_only_columns(*keys).where(columns.id == paging.after))).first()
        if reached is None:
            raise UnknownCursor(f"The list holds no {paging.after!r:.100} to continue after.")
        rows = rows.where(tuple_(*keys) > tuple_(*reached) if is_rising else tuple_(*keys) < tuple_(*reached))
    rows = rows.order_by(*(keys if is_rising else (key.desc() for key in keys))).limit(paging.limit + 1)
    found = (await connection.execute(rows)).all()
    shown = found[: paging.limit]
    return Page(
        data=[build(row) for row in shown],
        first_id=shown[0].id if shown else None,
        last_id=shown[-1].id if shown else None,
        has_more=len(found) > paging.limit,
    )
