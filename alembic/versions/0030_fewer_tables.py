"""Migrate the tables of release 0.1 to those of this release.

Export rows that Steno no longer reads to a file. Only `steno migrate` does this: `steno serve` refuses to start with a
database that has such rows. Both refuse a database with texts that release 0.1 encrypted.
"""

import json
import os
import zlib
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any

from alembic import context, op
from sqlalchemy import (
    JSON,
    BigInteger,
    Column,
    Connection,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    Row,
    Table,
    Text,
    bindparam,
    select,
    text,
)

from app.store.engine import DatabaseUnusable
from app.store.schema import PRIVATE_FILE, make_folder

revision = "0030"
down_revision = "0029"

ROWS = 100
COUNT = BigInteger().with_variant(Integer(), "sqlite")
DROPPED = (
    *("client_keys", "tenant_links", "operator_acts", "revocations", "tallies", "asides", "prints"),
    *("usage_days", "usage_days_due", "messages"),
)


def upgrade() -> None:
    refuse_encrypted_texts(op.get_bind())
    export(op.get_bind(), context.config.attributes["export"])
    op.create_table(
        "settings_check",
        Column("name", Text, nullable=False),
        Column("digest", LargeBinary, nullable=False),
        PrimaryKeyConstraint("name", name="pk_settings_check"),
    )
    drop_words()
    date_chunks()
    drop_leases()
    keep_one_summary_a_range()
    keep_rules_as_user_words(op.get_bind())
    keep_latest_histories(op.get_bind())
    if op.get_bind().dialect.name == "postgresql":
        join_partitions(op.get_bind())
    for table in DROPPED:
        op.drop_table(table)


MARK = "sealed:1:"
"""Beginning of a text that release 0.1 encrypted."""
DECRYPTS = "70209165"
"""Commit whose `steno migrate --decrypt` decrypts."""


def refuse_encrypted_texts(connection: Connection) -> None:
    """Raise `DatabaseUnusable` if the database has encrypted texts."""
    for table, column in (("summary_chunks", "text"), ("messages", "sent")):
        if connection.scalar(text(f"SELECT id FROM {table} WHERE {column} LIKE '{MARK}%' LIMIT 1")):  # noqa: S608
            raise DatabaseUnusable(
                "Texts in the database are encrypted, and this release of Steno cannot decrypt them. Run `steno migrate"
                f" --decrypt NAME` of commit {DECRYPTS} once, with each name that storage.encryption had. If a key is"
                " lost, start with an empty database."
            )


# Rows that the operator may still need

EXPORTED = {"client_keys": "keys", "tenant_links": "links between tenants", "operator_acts": "acts of operators"}


def export(connection: Connection, place: Path | None) -> None:
    """Write the rows of `EXPORTED` to a file, one JSON object per line."""
    tables = [Table(name, MetaData(), autoload_with=connection) for name in EXPORTED]
    rows = [{"table": table.name, **row} for table in tables for row in connection.execute(select(table)).mappings()]
    if not rows:
        return
    try:
        if place is None:
            raise FileNotFoundError("no file is named")
        make_folder(place.parent)
        with open(place, "w", opener=lambda name, flags: os.open(name, flags, PRIVATE_FILE)) as file:
            file.writelines(f"{json.dumps(row)}\n" for row in rows)
    except OSError as error:
        raise DatabaseUnusable(
            f"The migration drops {len(rows)} rows ({', '.join(EXPORTED.values())}) and exports them first, but"
            f" {error.strerror or error}. Run `steno migrate`: it writes them"
            " beside the SQLite file, or to Steno's folder (STENO_HOME)."
        ) from error


def drop_words() -> None:
    """Drop the word indexes: this release searches the summaries' texts."""
    for words, search in (("summary_words", "summary_search"), ("message_words", "message_search")):
        op.drop_table(words)  # Drops its triggers, too.
        if op.get_bind().dialect.name == "sqlite":
            op.drop_table(search)


NOW = {
    "postgresql": "CAST(extract(epoch FROM clock_timestamp()) * 1000 AS BIGINT)",
    "sqlite": "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)",
}


def date_chunks() -> None:
    """Set the missing `used_at` of chunks of the first releases to now, so that retention applies to them."""
    now = NOW[op.get_bind().dialect.name]
    op.execute(f"UPDATE summary_chunks SET used_at = {now} WHERE used_at IS NULL")  # noqa: S608 - a constant


def drop_leases() -> None:
    """Delete the rows of released leases, which release 0.1 kept, and drop the index of live leases."""
    op.drop_index("ix_leases_live")
    op.execute("DELETE FROM leases WHERE expires_at <= 0")


# Summaries

RANGE = ("tenant", "series", "level", "from_digest", "through_digest")
NEWER = " AND ".join(f"newer.{name} = summary_chunks.{name}" for name in RANGE)


def keep_one_summary_a_range() -> None:
    op.execute("DELETE FROM summary_chunks WHERE deactivated_at IS NOT NULL")
    op.execute(
        "DELETE FROM summary_chunks WHERE EXISTS ("  # noqa: S608 - names of columns
        f"SELECT 1 FROM summary_chunks newer WHERE {NEWER} AND newer.version > summary_chunks.version)"
    )
    # On SQLite this copies the table.
    with op.batch_alter_table("summary_chunks") as chunks:
        chunks.drop_constraint("uq_summary_chunks_range", type_="unique")
        chunks.drop_column("version")
        chunks.drop_column("deactivated_at")
        chunks.create_unique_constraint("uq_summary_chunks_range", list(RANGE))
    op.create_index("ix_summary_chunks_tenant_created_at_id", "summary_chunks", ["tenant", "created_at", "id"])


FIRST_RULES = text("SELECT tenant, id, rules FROM summary_chunks ORDER BY tenant, id LIMIT :rows").columns(rules=JSON)
MORE_RULES = text(
    "SELECT tenant, id, rules FROM summary_chunks WHERE tenant > :tenant OR (tenant = :tenant AND id > :id)"
    " ORDER BY tenant, id LIMIT :rows"
).columns(rules=JSON)
KEEP_RULES = text("UPDATE summary_chunks SET user_words = :said WHERE tenant = :tenant AND id = :id").bindparams(
    bindparam("said", type_=JSON)
)


def keep_rules_as_user_words(connection: Connection) -> None:
    """Convert `rules` to `user_words` without turns. Reverse the order: rules are newest first, words oldest first."""
    op.add_column("summary_chunks", Column("user_words", JSON, nullable=False, server_default="[]"))
    op.add_column("summary_chunks", Column("user_words_tokens", COUNT, nullable=False, server_default="0"))
    found = connection.execute(FIRST_RULES, {"rows": ROWS}).all()
    while found:
        for tenant, id_, rules in found:
            if rules:
                said = [(None, rule) for rule in reversed(rules)]
                connection.execute(KEEP_RULES, {"said": said, "tenant": tenant, "id": id_})
        last = found[-1]
        found = connection.execute(MORE_RULES, {"rows": ROWS, "tenant": last.tenant, "id": last.id}).all()
    op.drop_column("summary_chunks", "rules")
    op.drop_column("summary_chunks", "rules_left_out")


# Histories. The titles, and the digests of all messages but the last, are missing until the conversation's next
# request.

LAST = text("SELECT tenant, id, last_message FROM conversations ORDER BY tenant, id LIMIT :rows")
MORE = text(
    "SELECT tenant, id, last_message FROM conversations WHERE tenant > :tenant OR (tenant = :tenant AND id > :id)"
    " ORDER BY tenant, id LIMIT :rows"
)
MESSAGES = text(
    "SELECT id, previous_id, position, format, sent, tokens, created_at FROM messages"
    " WHERE tenant = :tenant AND conversation_id = :id"
)
HEADS = text("SELECT digest FROM heads WHERE tenant = :tenant AND conversation_id = :id")
KEEP_HEAD = text("UPDATE conversations SET head = :head WHERE tenant = :tenant AND id = :id")
ADD = text(
    "INSERT INTO histories (tenant, conversation_id, format, instructions, title, head, digests, content, updated_at)"
    " VALUES (:tenant, :id, :format, :instructions, '', :head, :digests, :content, :updated_at)"
)


def keep_latest_histories(connection: Connection) -> None:
    op.create_table(
        "histories",
        Column("tenant", Text, nullable=False),
        Column("conversation_id", Text, nullable=False),
        Column("format", Text, nullable=False),
        Column("instructions", COUNT, nullable=False),
        Column("title", Text, nullable=False),
        Column("head", LargeBinary),
        Column("digests", LargeBinary, nullable=False),
        Column("content", LargeBinary, nullable=False),
        Column("updated_at", COUNT, nullable=False),
        PrimaryKeyConstraint("tenant", "conversation_id", name="pk_histories"),
    )
    op.add_column("conversations", Column("head", LargeBinary))
    found = connection.execute(LAST, {"rows": ROWS}).all()
    while found:
        for tenant, id_, last_message in found:
            convert(connection, tenant, id_, last_message)
        last = found[-1]
        found = connection.execute(MORE, {"rows": ROWS, "tenant": last.tenant, "id": last.id}).all()
    op.drop_column("conversations", "last_message")


def convert(connection: Connection, tenant: str, id_: str, last_message: str | None) -> None:
    own = {"tenant": tenant, "id": id_}
    messages = {row.id: row for row in connection.execute(MESSAGES, own)}
    said = [row for row in messages.values() if row.position >= 0]
    if not said:
        return
    # The last message of the latest request, or if it was not stored, the last stored message.
    end = messages.get(last_message) or max(said, key=newest)
    instructions = [row for row in messages.values() if row.position == -1]
    leading = path(messages, max(instructions, key=newest)) if instructions else []
    history = [*leading, *path(messages, end)]
    heads = (bytes(row.digest) for row in connection.execute(HEADS, own))
    head = next((digest for digest in heads if message_id(id_, digest) == last_message == end.id), None)
    sent = [row.sent.encode("utf-8", "replace") for row in history]
    sizes = json.dumps({"tokens": [row.tokens for row in history], "bytes": [*map(len, sent)]}).encode()
    row = {"format": end.format, "instructions": len(leading), "head": head, "digests": head or b""}
    packed = zlib.compress(b"\n".join((sizes, b"".join(sent))), 3)
    connection.execute(ADD, {**own, **row, "content": packed, "updated_at": end.created_at})
    connection.execute(KEEP_HEAD, {**own, "head": head})


def newest(row: Row[Any]) -> tuple[int, int, str]:
    return row.created_at, row.position, row.id


def path(messages: Mapping[str, Row[Any]], end: Row[Any]) -> list[Row[Any]]:
    """Return the messages from the first message through `end`."""
    found = [end]
    while (before := messages.get(found[-1].previous_id)) is not None:
        found.append(before)
    return found[::-1]


def message_id(conversation_id: str, digest: bytes) -> str:
    """Return the id that release 0.1 gave the message."""
    mac = blake2b(digest, digest_size=12, person=b"steno-message")
    mac.update(conversation_id.encode("utf-8", "surrogatepass"))
    return f"msg_{mac.hexdigest()}"


# Usage records: on PostgreSQL, release 0.1 stored them in partitions, which it created at run time.

TABLE, PARTS = "usage_records", "usage_records_in_parts"
INDEXES = (("tenant", "conversation_id", "created_at", "id"), ("tenant", "created_at"), ("created_at",))
IS_PARTITIONED = text("SELECT relkind = 'p' FROM pg_class WHERE oid = CAST('usage_records' AS regclass)")
GRANTS = text("""
    SELECT format('GRANT %s ON %s TO %s', a.privilege_type, c.oid::regclass,
                  CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END)
    FROM pg_class c, aclexplode(c.relacl) a WHERE c.oid = CAST('usage_records' AS regclass)
""")


def join_partitions(connection: Connection) -> None:
    """Join the partitions of `usage_records` into one table, and copy the granted rights."""
    if not connection.scalar(IS_PARTITIONED):
        return
    grants = list(connection.scalars(GRANTS))
    for statement in (
        f"LOCK TABLE {TABLE} IN ACCESS EXCLUSIVE MODE",
        f"ALTER TABLE {TABLE} RENAME TO {PARTS}",
        f"CREATE TABLE {TABLE} (LIKE {PARTS} INCLUDING DEFAULTS)",
        f"INSERT INTO {TABLE} SELECT * FROM {PARTS}",  # noqa: S608 - constants
        f"DROP TABLE {PARTS}",
    ):
        op.execute(statement)
    op.create_primary_key(f"pk_{TABLE}", TABLE, ["tenant", "id"])
    for columns in INDEXES:
        op.create_index(f"ix_{TABLE}_{'_'.join(columns)}", TABLE, columns)
    for grant in grants:
        op.execute(grant)
