"""What summaries are found by, and when everything was used last."""

from alembic import op
from sqlalchemy import BigInteger, Column, ForeignKeyConstraint, Integer, PrimaryKeyConstraint, Text, UniqueConstraint
from sqlalchemy.dialects.postgresql import TSVECTOR

revision = "0011"
down_revision = "0010"

COUNT = BigInteger().with_variant(Integer(), "sqlite")

# The words are ASCII already, and one space apart: see app/store/words.py. Nothing but whether a word is there is kept.
SEARCH = """
CREATE VIRTUAL TABLE summary_search USING fts5(
    words, content='summary_words', content_rowid='number', detail=none, tokenize="ascii tokenchars '_'"
)
"""
ADD = """
CREATE TRIGGER summary_words_added AFTER INSERT ON summary_words BEGIN
    INSERT INTO summary_search(rowid, words) VALUES (new.number, new.words);
END
"""
REMOVE = """
CREATE TRIGGER summary_words_removed AFTER DELETE ON summary_words BEGIN
    INSERT INTO summary_search(summary_search, rowid, words) VALUES ('delete', old.number, old.words);
END
"""


def upgrade() -> None:
    # Without a value: replicas of the version before store chunks while this one is rolled out, and the hourly tidying
    # dates them. It indexes them, too, and those that are here already: that may take minutes.
    op.add_column("summary_chunks", Column("used_at", COUNT))
    op.create_table(
        "summary_words",
        Column("number", COUNT, nullable=False, autoincrement=True),
        Column("tenant", Text, nullable=False),
        Column("id", Text, nullable=False),
        Column("created_at", COUNT, nullable=False),
        Column("words", Text().with_variant(TSVECTOR(), "postgresql"), nullable=False),
        PrimaryKeyConstraint("number", name="pk_summary_words"),
        UniqueConstraint("tenant", "id", name="uq_summary_words_tenant_id"),
        ForeignKeyConstraint(
            ["tenant", "id"],
            ["summary_chunks.tenant", "summary_chunks.id"],
            name="fk_summary_words",
            ondelete="CASCADE",
        ),
    )
    op.create_index("ix_summary_chunks_used_at", "summary_chunks", ["used_at"])
    op.create_index("ix_conversations_updated_at", "conversations", ["updated_at"])
    op.create_index("ix_usage_records_created_at", "usage_records", ["created_at"])
    if op.get_bind().dialect.name == "postgresql":
        # Beside the row, reading the words would seem to cost nothing, and every search would read those of all rows.
        op.execute("ALTER TABLE summary_words ALTER COLUMN words SET STORAGE MAIN")
        op.create_index("ix_summary_words_words", "summary_words", ["words"], postgresql_using="gin")
        return
    for statement in (SEARCH, ADD, REMOVE):
        op.execute(statement)
