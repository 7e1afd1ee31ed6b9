"""The tables, and helpers for SQL statements: the clock, conditions, lists of keys, pages of a list.

Most primary keys begin with the tenant, and a tenant's queries name the tenant, so that no tenant reads another's rows.
Requests read rows of all tenants only from `calibrations` and `learned_windows`, which have no text of messages.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime
from typing import Any, Generic, Literal, TypeVar, cast

import sqlalchemy as sa
from msgspec import Struct
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


class now_ms(FunctionElement[int]):  # noqa: N801 - reads as the SQL function it is
    """Milliseconds since 1970 by the database's clock, the only clock that all replicas share.

    The value is the time at which the statement runs, not the start of its transaction.
    """

    type = sa.BigInteger()
    inherit_cache = True


@compiles(now_ms, "postgresql")
def _on_postgresql(element: now_ms, compiler: SQLCompiler, **_: Any) -> str:  # noqa: ARG001 - SQLAlchemy's signature
    return "CAST(extract(epoch FROM clock_timestamp()) * 1000 AS BIGINT)"


@compiles(now_ms, "sqlite")
def _on_sqlite(element: now_ms, compiler: SQLCompiler, **_: Any) -> str:  # noqa: ARG001 - SQLAlchemy's signature
    # unixepoch('subsec') would read better, but needs SQLite 3.42; 2440587.5 is the Julian day of 1970.
    return "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)"


def read_once(time: sa.ColumnElement[int]) -> sa.ScalarSelect[int]:
    """Put an expression with `now_ms` into a subquery: SQL computes the time once, and comparisons can use an index."""
    return sa.select(time).scalar_subquery()


def moment(milliseconds: int) -> datetime:
    """Return the UTC time for milliseconds since 1970."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


class CleanText(TypeDecorator[str]):
    """Text column. U+FFFD replaces characters that the databases cannot store, also in parameters of queries."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: sa.Dialect) -> str | None:  # noqa: ARG002 - SQLAlchemy's signature
        return None if value is None else storable(value)


Count = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
"""Type of whole numbers and of times. Times are milliseconds since 1970, which both databases store alike."""

metadata = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def _required(kind: Any, *names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, kind, nullable=False) for name in names]


def _optional(kind: Any, *names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, kind) for name in names]


conversations = sa.Table(
    "conversations",
    metadata,
    *_required(CleanText, "tenant", "id", "model", "status", "coverage"),
    *_required(Count, "turns", "messages", "requests", "tokens_before", "tokens_after", "window"),
    *_required(Count, "created_at", "updated_at"),
    *_required(sa.JSON, "summaries"),
    *_optional(CleanText, "reason", "forked_from"),
    sa.Column("plan", CleanText),  # Plan of the latest request that has a plan: see `ConversationState.plan`.
    sa.Column("head", sa.LargeBinary),  # Digest of the latest request's history.
    sa.PrimaryKeyConstraint("tenant", "id"),
    sa.Index(None, "tenant", "created_at", "id"),
    sa.Index(None, "tenant", "updated_at", "id"),
    sa.Index(None, "updated_at"),
)

heads = sa.Table(
    "heads",
    metadata,
    *_required(CleanText, "tenant", "conversation_id"),
    *_required(sa.LargeBinary, "digest"),
    *_required(Count, "turn"),
    sa.PrimaryKeyConstraint("tenant", "digest"),
    sa.Index(None, "tenant", "conversation_id"),
)

# A range has at most one chunk, so a repeated commit changes nothing, and a new summary never replaces a user's
# correction. Branches have their own chunks, because their ranges end at different digests.
summary_chunks = sa.Table(
    "summary_chunks",
    metadata,
    *_required(CleanText, "tenant", "id", "conversation_id", "series", "text", "model", "prompt_version"),
    *_required(sa.LargeBinary, "from_digest", "through_digest", "last_message_digest"),
    *_required(Count, "level", "first_index", "last_index", "through_turn", "tokens", "created_at"),
    *_required(sa.JSON, "carried", "children"),
    sa.Column("continued", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Column("exact_values", sa.JSON, nullable=False, server_default="[]"),
    sa.Column("user_words", sa.JSON, nullable=False, server_default="[]"),
    sa.Column("user_words_tokens", Count, nullable=False, server_default="0"),
    sa.Column("values_kept", sa.Double),
    sa.Column("history_length", Count),
    sa.Column("used_at", Count),  # Time of the chunk's last use in a payload, to the hour.
    sa.PrimaryKeyConstraint("tenant", "id"),
    # PostgreSQL cuts names at 63 characters, and the generated name would be longer.
    sa.UniqueConstraint("tenant", "series", "level", "from_digest", "through_digest", name="uq_summary_chunks_range"),
    # An index without the tenant compares a third of the bytes. Digests of different tenants differ anyway.
    sa.Index(None, "through_digest"),
    sa.Index(None, "tenant", "last_message_digest", "created_at"),
    sa.Index(None, "tenant", "created_at", "id"),
    sa.Index(None, "tenant", "conversation_id"),
    sa.Index(None, "used_at"),
)

# The key is the range of the chunk that the holder makes.
leases = sa.Table(
    "leases",
    metadata,
    *_required(CleanText, "tenant", "series", "conversation_id", "holder"),
    *_required(sa.LargeBinary, "from_digest", "through_digest"),
    *_required(Count, "epoch", "expires_at"),
    sa.PrimaryKeyConstraint("tenant", "series", "from_digest", "through_digest"),
    sa.Index(None, "tenant", "conversation_id"),
    sa.Index(None, "expires_at"),
)

# `tokens.calibration` computes `offset_tokens` and `ratio` from the samples. The id is a digest of the other key
# columns, because a client may send a model's name of any length.
calibrations = sa.Table(
    "calibrations",
    metadata,
    *_required(CleanText, "id", "upstream", "model", "formula"),
    *_required(sa.Boolean, "tools"),
    sa.Column("tenant", CleanText, nullable=False, server_default=""),
    *_required(sa.JSON, "recent"),
    *_required(Count, "samples", "created_at", "updated_at"),
    *_optional(sa.Double, "offset_tokens", "ratio"),
    sa.PrimaryKeyConstraint("id"),
    sa.Index(None, "updated_at"),
    sa.Index(None, "tenant", "created_at", "id"),
)

learned_windows = sa.Table(
    "learned_windows",
    metadata,
    *_required(CleanText, "upstream", "model"),
    sa.Column("tenant", CleanText, nullable=False, server_default=""),
    *_required(Count, "limit_tokens", "learnt_at", "expires_at"),
    sa.PrimaryKeyConstraint("upstream", "model", "tenant"),
    sa.Index(None, "expires_at"),
)

# A boundary in a history, for one set of mask settings. Answered tool results before the boundary are masked.
masks = sa.Table(
    "masks",
    metadata,
    *_required(CleanText, "tenant", "settings", "conversation_id"),
    *_required(sa.LargeBinary, "digest", "start_digest"),
    *_required(Count, "created_at"),
    sa.PrimaryKeyConstraint("tenant", "settings", "digest", "start_digest"),
    sa.Index(None, "tenant", "conversation_id"),
)

# The history of each conversation's latest request, if `storage.messages` is on: see `histories`.
histories = sa.Table(
    "histories",
    metadata,
    *_required(CleanText, "tenant", "conversation_id", "format", "title"),
    *_required(Count, "instructions", "updated_at"),  # Number of leading instructions.
    *_required(sa.LargeBinary, "digests", "content"),
    sa.Column("head", sa.LargeBinary),
    sa.PrimaryKeyConstraint("tenant", "conversation_id"),
)

# A pin is set by position, because Steno may not store messages. The next request with a message at this position binds
# the pin to its history.
pins = sa.Table(
    "pins",
    metadata,
    *_required(CleanText, "tenant", "conversation_id"),
    *_required(Count, "position", "created_at"),
    sa.Column("digest", sa.LargeBinary),
    sa.PrimaryKeyConstraint("tenant", "conversation_id", "position"),
)

# The rates are stored with the record, because prices change later.
usage_records = sa.Table(
    "usage_records",
    metadata,
    *_required(CleanText, "tenant", "id", "conversation_id", "request_id", "purpose", "upstream", "model"),
    *_required(Count, "turn", "saved_tokens", "status", "created_at"),
    *_optional(Count, "estimated_tokens", "forwarded_tokens", "window_tokens", "limit_tokens", "trigger_tokens"),
    *_optional(Count, "replaced_tokens", "summary_tokens", "prompt_tokens", "completion_tokens", "cached_tokens"),
    *_optional(Count, "reasoning_tokens", "written_tokens", "written_hour_tokens", "audio_tokens", "speech_tokens"),
    *_optional(Count, "searches"),
    *_optional(sa.Double, "prompt_rate", "completion_rate", "cached_rate", "written_rate", "written_hour_rate"),
    *_optional(sa.Double, "audio_rate", "speech_rate", "search_rate", "cost", "saved_cost"),
    *_optional(sa.Double, "waited_seconds", "seconds", "values_kept"),
    *_optional(CleanText, "format", "tier", "price_source", "priced_model", "context_status", "reason", "summary_id"),
    sa.Column("actions", CleanText),  # Comma-separated.
    sa.PrimaryKeyConstraint("tenant", "id"),
    sa.Index(None, "tenant", "conversation_id", "created_at", "id"),
    sa.Index(None, "tenant", "created_at"),
    sa.Index(None, "created_at"),
)

# A digest of the server's secret: see `schema`.
settings_check = sa.Table(
    "settings_check",
    metadata,
    *_required(CleanText, "name"),
    *_required(sa.LargeBinary, "digest"),
    sa.PrimaryKeyConstraint("name"),
)


Insert = postgresql.Insert | sqlite.Insert


def insert_into(connection: AsyncConnection, table: sa.Table) -> Insert:
    """Return an insert that supports ON CONFLICT. SQLAlchemy has a separate class for each database."""
    return postgresql.insert(table) if connection.dialect.name == "postgresql" else sqlite.insert(table)


def owned(table: sa.FromClause, tenant: str, **columns: object) -> sa.ColumnElement[bool]:
    """Return the condition for the tenant's rows with these values."""
    return sa.and_(table.c.tenant == tenant, *(table.c[name] == value for name, value in columns.items()))


def members(row: sa.Row[Any], *left_out: str) -> dict[str, Any]:
    """Return a row's values by column name, without `left_out`. Lists become tuples, and times become datetimes."""
    values: dict[str, Any] = {}
    for name, value in row._mapping.items():  # noqa: SLF001 - SQLAlchemy's public name for it
        if name in left_out:
            continue
        if name.endswith("_at") and value is not None:
            values[name] = moment(value)
        else:
            values[name] = tuple(value) if isinstance(value, list) else value
    return values


def is_among(connection: AsyncConnection, column: sa.Column[T], keys: Collection[T]) -> sa.ColumnElement[bool]:
    """Return the condition for rows with one of the keys. All keys are one parameter of the statement.

    With one parameter for each of thousands of keys, parsing and planning would take longer than the query.
    """
    if connection.dialect.name == "postgresql":
        return column == sa.any_(sa.literal(list(keys), ARRAY(column.type)))
    if not isinstance(column.type, sa.LargeBinary):
        listed = sa.func.json_each(json.dumps([storable(str(key)) for key in keys])).table_valued("value")
        return column.in_(sa.select(listed.c.value))
    joined = sa.literal(b"".join(cast("Collection[bytes]", keys)))
    starts = sa.select(sa.literal(1).label("start")).cte("at", recursive=True, nesting=True)
    following = starts.c.start + DIGEST_BYTES
    starts = starts.union_all(sa.select(following).where(following <= sa.func.length(joined)))
    return column.in_(sa.select(sa.func.substr(joined, starts.c.start, DIGEST_BYTES)))


Order = Literal["asc", "desc"]


class Page(Struct, Generic[T], frozen=True):
    """Page of a list. To read the next page, pass `last_id` as `Paging.after`."""

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
    rows: sa.Select[Any],
    build: Callable[[sa.Row[Any]], T],
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
        rows = rows.where(
            sa.tuple_(*keys) > sa.tuple_(*reached) if is_rising else sa.tuple_(*keys) < sa.tuple_(*reached)
        )
    rows = rows.order_by(*(keys if is_rising else (key.desc() for key in keys))).limit(paging.limit + 1)
    found = (await connection.execute(rows)).all()
    shown = found[: paging.limit]
    return Page(
        data=[build(row) for row in shown],
        first_id=shown[0].id if shown else None,
        last_id=shown[-1].id if shown else None,
        has_more=len(found) > paging.limit,
    )
