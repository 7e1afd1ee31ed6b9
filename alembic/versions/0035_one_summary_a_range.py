"""One summary a range: deactivated and older versions are deleted, and a version is no part of the key any more.

Summaries are searched by their texts: the tables of words go.
"""

from alembic import op

revision = "0035"
down_revision = "0034"

RANGE = ("tenant", "series", "level", "from_digest", "through_digest")
NEWER = " AND ".join(f"newer.{name} = summary_chunks.{name}" for name in RANGE)


def upgrade() -> None:
    for words, search in (("summary_words", "summary_search"), ("message_words", "message_search")):
        op.drop_table(words)  # With its triggers.
        if op.get_bind().dialect.name == "sqlite":
            op.drop_table(search)
    op.execute("DELETE FROM summary_chunks WHERE deactivated_at IS NOT NULL")
    op.execute(
        "DELETE FROM summary_chunks WHERE EXISTS ("  # noqa: S608 - names of columns
        f"SELECT 1 FROM summary_chunks newer WHERE {NEWER} AND newer.version > summary_chunks.version)"
    )
    # SQLite writes the table anew.
    with op.batch_alter_table("summary_chunks") as chunks:
        chunks.drop_constraint("uq_summary_chunks_range", type_="unique")
        chunks.drop_column("version")
        chunks.drop_column("deactivated_at")
        chunks.create_unique_constraint("uq_summary_chunks_range", list(RANGE))
    op.create_index("ix_summary_chunks_tenant_created_at_id", "summary_chunks", ["tenant", "created_at", "id"])
