"""The archive: messages as they were sent, and what they are found by."""

from alembic import op
from sqlalchemy import BigInteger, Column, ForeignKeyConstraint, Integer, PrimaryKeyConstraint, Text, UniqueConstraint
from sqlalchemy.dialects.postgresql import TSVECTOR

revision = "0016"
down_revision = "0015"

COUNT = BigInteger().with_variant(Integer(), "sqlite")

# As the index of summaries in 0011.
SEARCH = """
CREATE VIRTUAL TABLE message_search USING fts5(
    words, content='message_words', content_rowid='number', detail=none, tokenize="ascii tokenchars '_'"
)
"""
ADD = """
CREATE TRIGGER message_words_added AFTER INSERT ON message_words BEGIN
    INSERT INTO message_search(rowid, words) VALUES (new.number, new.words);
END
"""
REMOVE = """
CREATE TRIGGER message_words_removed AFTER DELETE ON message_words BEGIN
    INSERT INTO message_search(message_search, rowid, words) VALUES ('delete', old.number, old.words);
END
"""


def upgrade() -> None:
    op.add_column("conversations", Column("last_message", Text))
    op.create_table(
        "messages",
        Column("tenant", Text, nullable=False),
        Column("id", Text, nullable=False),
        Column("conversation_id", Text, nullable=False),
        Column("previous_id", Text),
        Column("position", COUNT, nullable=False),
        Column("kind", Text, nullable=False),
        Column("role", Text, nullable=False),
        Column("format", Text, nullable=False),
        Column("sent", Text, nullable=False),
        Column("tokens", COUNT, nullable=False),
        Column("request_id", Text, nullable=False),
        Column("created_at", COUNT, nullable=False),
        PrimaryKeyConstraint("tenant", "id", name="pk_messages"),
    )
    in_order = ["tenant", "conversation_id", "created_at", "position", "id"]
    op.create_index(f"ix_messages_{'_'.join(in_order)}", "messages", in_order)
    op.create_table(
        "message_words",
        Column("number", COUNT, nullable=False, autoincrement=True),
        Column("tenant", Text, nullable=False),
        Column("id", Text, nullable=False),
        Column("created_at", COUNT, nullable=False),
        Column("words", Text().with_variant(TSVECTOR(), "postgresql"), nullable=False),
        PrimaryKeyConstraint("number", name="pk_message_words"),
        UniqueConstraint("tenant", "id", name="uq_message_words_tenant_id"),
        ForeignKeyConstraint(
            ["tenant", "id"], ["messages.tenant", "messages.id"], name="fk_message_words", ondelete="CASCADE"
        ),
    )
    if op.get_bind().dialect.name == "postgresql":
        op.execute("ALTER TABLE message_words ALTER COLUMN words SET STORAGE MAIN")
        op.create_index("ix_message_words_words", "message_words", ["words"], postgresql_using="gin")
        return
    for statement in (SEARCH, ADD, REMOVE):
        op.execute(statement)
