"""Conversations, their heads, and summary chunks."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

COUNT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "conversations",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("turns", COUNT, nullable=False),
        sa.Column("messages", COUNT, nullable=False),
        sa.Column("requests", COUNT, nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text()),
        sa.Column("tokens_before", COUNT, nullable=False),
        sa.Column("tokens_after", COUNT, nullable=False),
        sa.Column("window", COUNT, nullable=False),
        sa.Column("forked_from", sa.Text()),
        sa.Column("coverage", sa.Text(), nullable=False),
        sa.Column("summaries", sa.JSON(), nullable=False),
        sa.Column("created_at", COUNT, nullable=False),
        sa.Column("updated_at", COUNT, nullable=False),
        sa.PrimaryKeyConstraint("tenant", "id", name="pk_conversations"),
    )
    op.create_index("ix_conversations_tenant_created_at_id", "conversations", ["tenant", "created_at", "id"])
    op.create_table(
        "heads",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("conversation_id", sa.Text(), nullable=False),
        sa.Column("turn", COUNT, nullable=False),
        sa.PrimaryKeyConstraint("tenant", "digest", name="pk_heads"),
    )
    op.create_index("ix_heads_tenant_conversation_id", "heads", ["tenant", "conversation_id"])
    op.create_table(
        "summary_chunks",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("conversation_id", sa.Text(), nullable=False),
        sa.Column("series", sa.Text(), nullable=False),
        sa.Column("level", COUNT, nullable=False),
        sa.Column("version", COUNT, nullable=False),
        sa.Column("from_digest", sa.LargeBinary(), nullable=False),
        sa.Column("through_digest", sa.LargeBinary(), nullable=False),
        sa.Column("last_message_digest", sa.LargeBinary(), nullable=False),
        sa.Column("first_index", COUNT, nullable=False),
        sa.Column("last_index", COUNT, nullable=False),
        sa.Column("through_turn", COUNT, nullable=False),
        sa.Column("carried", sa.JSON(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("tokens", COUNT, nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("prompt_version", sa.Text(), nullable=False),
        sa.Column("children", sa.JSON(), nullable=False),
        sa.Column("created_at", COUNT, nullable=False),
        sa.PrimaryKeyConstraint("tenant", "id", name="pk_summary_chunks"),
        sa.UniqueConstraint(
            "tenant",
            "series",
            "level",
            "from_digest",
            "through_digest",
            "version",
            name="uq_summary_chunks_range",
        ),
    )
    op.create_index(
        "ix_summary_chunks_tenant_series_through_digest", "summary_chunks", ["tenant", "series", "through_digest"]
    )
    op.create_index("ix_summary_chunks_tenant_last_message_digest", "summary_chunks", ["tenant", "last_message_digest"])
    op.create_index("ix_summary_chunks_tenant_conversation_id", "summary_chunks", ["tenant", "conversation_id"])
