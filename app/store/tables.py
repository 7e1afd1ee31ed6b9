"""The tables. Every key begins with the tenant, so no query can reach across.

But for `calibrations` and `learned_windows`, which several tenants may confirm to each other: they hold numbers of
tokens and the names of models, nobody's text.
"""

from __future__ import annotations

import re
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Dialect,
    Double,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
    false,
    text,
)
from sqlalchemy.types import TypeDecorator

Count = BigInteger().with_variant(Integer(), "sqlite")
# Time is whole milliseconds since 1970 by the database's clock: one representation for both databases, and leases
# can be compared without time zones. `clock.py` reads it.
Milliseconds = Count

# PostgreSQL refuses NUL in text, and neither database can encode half a surrogate pair.
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")


def is_clean(text: str) -> bool:
    """Whether both databases can store it as it is."""
    if text.isascii():  # Nearly all of it are names and digests.
        return "\0" not in text
    return _UNSTORABLE.search(text) is None


def clean(text: str) -> str:
    """The text with U+FFFD in place of what cannot be stored."""
    return text if is_clean(text) else _UNSTORABLE.sub("\ufffd", text)


class CleanText(TypeDecorator[str]):
    """Text in which U+FFFD stands for what cannot be stored, in comparisons too, so that what was kept is found."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:  # noqa: ARG002 - SQLAlchemy's signature
        return None if value is None else clean(value)


metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def _required(name: str, kind: Any) -> Column[Any]:
    return Column(name, kind, nullable=False)


conversations = Table(
    "conversations",
    metadata,
    _required("tenant", CleanText),
    _required("id", CleanText),
    _required("model", CleanText),
    _required("turns", Count),
    _required("messages", Count),
    _required("requests", Count),
    _required("status", CleanText),
    Column("reason", CleanText),
    _required("tokens_before", Count),
    _required("tokens_after", Count),
    _required("window", Count),
    Column("forked_from", CleanText),
    _required("coverage", CleanText),
    _required("summaries", JSON),
    Column("plan", CleanText),  # Of the latest request whose payload was changed, or due to be.
    Column("head", LargeBinary),  # Digest of the latest request's history.
    _required("created_at", Milliseconds),
    _required("updated_at", Milliseconds),
    PrimaryKeyConstraint("tenant", "id"),
    Index(None, "tenant", "created_at", "id"),
    Index(None, "tenant", "updated_at", "id"),
    Index(None, "updated_at"),
)

heads = Table(
    "heads",
    metadata,
    _required("tenant", CleanText),
    _required("digest", LargeBinary),
    _required("conversation_id", CleanText),
    _required("turn", Count),
    PrimaryKeyConstraint("tenant", "digest"),
    Index(None, "tenant", "conversation_id"),
)

# A chunk is its range: two branches that begin alike both keep theirs, a repeated commit changes nothing, and a summary
# in flight never takes the place of a person's text.
summary_chunks = Table(
    "summary_chunks",
    metadata,
    _required("tenant", CleanText),
    _required("id", CleanText),
    _required("conversation_id", CleanText),
    _required("series", CleanText),
    _required("level", Count),
    _required("from_digest", LargeBinary),
    _required("through_digest", LargeBinary),
    _required("last_message_digest", LargeBinary),
    _required("first_index", Count),
    _required("last_index", Count),
    _required("through_turn", Count),
    _required("carried", JSON),
    _required("text", CleanText),
    _required("tokens", Count),
    _required("model", CleanText),
    _required("prompt_version", CleanText),
    Column("continued", Boolean, nullable=False, server_default=false()),
    _required("children", JSON),
    Column("exact_values", JSON, nullable=False, server_default="[]"),
    Column("user_words", JSON, nullable=False, server_default="[]"),
    Column("user_words_tokens", Count, nullable=False, server_default="0"),
    Column("values_kept", Double),
    Column("history_length", Count),
    _required("created_at", Milliseconds),
    Column("used_at", Milliseconds),  # By the last request whose payload it stood in, to the hour.
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

# The key is the range of the chunk in the making. Rows are never deleted while they matter: the epoch only grows.
_IS_LIVE = text("expires_at > 0")

leases = Table(
    "leases",
    metadata,
    _required("tenant", CleanText),
    _required("series", CleanText),
    _required("from_digest", LargeBinary),
    _required("through_digest", LargeBinary),
    _required("conversation_id", CleanText),
    _required("holder", CleanText),
    _required("epoch", Count),
    _required("expires_at", Milliseconds),
    PrimaryKeyConstraint("tenant", "series", "from_digest", "through_digest"),
    Index(None, "tenant", "conversation_id"),
    Index(None, "expires_at"),
    # Of all that were ever taken few are live, and the others are not in it.
    Index("ix_leases_live", "tenant", "expires_at", postgresql_where=_IS_LIVE, sqlite_where=_IS_LIVE),
)

# What follows from the samples is worked out by the core. The id is a digest of the four columns after it: a client may
# name a model of any length.
calibrations = Table(
    "calibrations",
    metadata,
    _required("id", CleanText),
    _required("upstream", CleanText),
    _required("model", CleanText),
    _required("formula", CleanText),
    _required("tools", Boolean),
    Column("tenant", CleanText, nullable=False, server_default=""),
    _required("recent", JSON),
    _required("samples", Count),
    Column("offset_tokens", Double),
    Column("ratio", Double),
    _required("created_at", Milliseconds),
    _required("updated_at", Milliseconds),
    PrimaryKeyConstraint("id"),
    Index(None, "updated_at"),
    Index(None, "tenant", "created_at", "id"),
)

learned_windows = Table(
    "learned_windows",
    metadata,
    _required("upstream", CleanText),
    _required("model", CleanText),
    Column("tenant", CleanText, nullable=False, server_default=""),
    _required("limit_tokens", Count),
    _required("learnt_at", Milliseconds),
    _required("expires_at", Milliseconds),
    PrimaryKeyConstraint("upstream", "model", "tenant"),
    Index(None, "expires_at"),
)

# A boundary before which answered tool results are masked: a place in a history, for one set of mask settings.
masks = Table(
    "masks",
    metadata,
    _required("tenant", CleanText),
    _required("settings", CleanText),
    _required("digest", LargeBinary),
    _required("start_digest", LargeBinary),
    _required("conversation_id", CleanText),
    _required("created_at", Milliseconds),
    PrimaryKeyConstraint("tenant", "settings", "digest", "start_digest"),
    Index(None, "tenant", "conversation_id"),
)

# The history of each conversation's latest request, where the operator wants it to be kept: see `histories`.
histories = Table(
    "histories",
    metadata,
    _required("tenant", CleanText),
    _required("conversation_id", CleanText),
    _required("format", CleanText),
    _required("instructions", Count),  # Messages at its beginning that are instructions.
    _required("title", CleanText),
    Column("head", LargeBinary),
    _required("digests", LargeBinary),
    _required("content", LargeBinary),
    _required("updated_at", Milliseconds),
    PrimaryKeyConstraint("tenant", "conversation_id"),
)

# Messages need not be stored, so a pin is set by its position and bound to the history by the next request that shows
# it.
pins = Table(
    "pins",
    metadata,
    _required("tenant", CleanText),
    _required("conversation_id", CleanText),
    _required("position", Count),
    Column("digest", LargeBinary),
    _required("created_at", Milliseconds),
    PrimaryKeyConstraint("tenant", "conversation_id", "position"),
)

# The rates are kept with the record: prices change, and what was spent does not.
usage_records = Table(
    "usage_records",
    metadata,
    _required("tenant", CleanText),
    _required("id", CleanText),
    _required("conversation_id", CleanText),
    _required("request_id", CleanText),
    _required("turn", Count),
    _required("purpose", CleanText),
    _required("upstream", CleanText),
    Column("format", CleanText),
    _required("model", CleanText),
    Column("estimated_tokens", Count),
    Column("forwarded_tokens", Count),
    _required("saved_tokens", Count),
    Column("window_tokens", Count),
    Column("limit_tokens", Count),
    Column("trigger_tokens", Count),
    Column("replaced_tokens", Count),
    Column("summary_tokens", Count),
    Column("prompt_tokens", Count),
    Column("completion_tokens", Count),
    Column("cached_tokens", Count),
    Column("reasoning_tokens", Count),
    Column("written_tokens", Count),
    Column("written_hour_tokens", Count),
    Column("audio_tokens", Count),
    Column("speech_tokens", Count),
    Column("searches", Count),
    Column("tier", CleanText),
    Column("prompt_rate", Double),
    Column("completion_rate", Double),
    Column("cached_rate", Double),
    Column("written_rate", Double),
    Column("written_hour_rate", Double),
    Column("audio_rate", Double),
    Column("speech_rate", Double),
    Column("search_rate", Double),
    Column("price_source", CleanText),
    Column("priced_model", CleanText),
    Column("cost", Double),
    Column("saved_cost", Double),
    _required("status", Count),
    Column("context_status", CleanText),
    Column("actions", CleanText),  # Separated by commas.
    Column("reason", CleanText),
    Column("waited_seconds", Double),
    Column("seconds", Double),
    Column("summary_id", CleanText),
    Column("values_kept", Double),
    _required("created_at", Milliseconds),
    PrimaryKeyConstraint("tenant", "id"),
    Index(None, "tenant", "conversation_id", "created_at", "id"),
    Index(None, "tenant", "created_at"),
    Index(None, "created_at"),
)

# A digest of the server's secret: see `settings_check`.
settings_check = Table(
    "settings_check",
    metadata,
    _required("name", CleanText),
    _required("digest", LargeBinary),
    PrimaryKeyConstraint("name"),
)
