"""One compressed row a conversation: the history of its latest request. Chains of messages become that.

A title is missing until the conversation's next request, and so are the digests of all messages but the last.
"""

import json
import zlib
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

from alembic import op
from sqlalchemy import BigInteger, Column, Connection, Integer, LargeBinary, PrimaryKeyConstraint, Row, Text, text

revision = "0036"
down_revision = "0035"

COUNT = BigInteger().with_variant(Integer(), "sqlite")
ROWS = 100
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


def upgrade() -> None:
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
    connection = op.get_bind()
    found = connection.execute(LAST, {"rows": ROWS}).all()
    while found:
        for tenant, id_, last_message in found:
            convert(connection, tenant, id_, last_message)
        last = found[-1]
        found = connection.execute(MORE, {"rows": ROWS, "tenant": last.tenant, "id": last.id}).all()
    op.drop_table("messages")
    op.drop_column("conversations", "last_message")


def convert(connection: Connection, tenant: str, id_: str, last_message: str | None) -> None:
    own = {"tenant": tenant, "id": id_}
    messages = {row.id: row for row in connection.execute(MESSAGES, own)}
    said = [row for row in messages.values() if row.position >= 0]
    if not said:
        return
    # The latest request's last message; where it was not stored, the one that was stored last.
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
    """The messages from the first one through this one."""
    found = [end]
    while (before := messages.get(found[-1].previous_id)) is not None:
        found.append(before)
    return found[::-1]


def message_id(conversation_id: str, digest: bytes) -> str:
    """As release 0.1 named messages."""
    mac = blake2b(digest, digest_size=12, person=b"steno-message")
    mac.update(conversation_id.encode("utf-8", "surrogatepass"))
    return f"msg_{mac.hexdigest()}"
