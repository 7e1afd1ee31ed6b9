"""Usage records."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"

COUNT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "usage_records",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("conversation_id", sa.Text(), nullable=False),
        sa.Column("request_id", sa.Text(), nullable=False),
        sa.Column("turn", COUNT, nullable=False),
        sa.Column("purpose", sa.Text(), nullable=False),
        sa.Column("upstream", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("estimated_tokens", COUNT, nullable=True),
        sa.Column("forwarded_tokens", COUNT, nullable=True),
        sa.Column("saved_tokens", COUNT, nullable=False),
        sa.Column("prompt_tokens", COUNT, nullable=True),
        sa.Column("completion_tokens", COUNT, nullable=True),
        sa.Column("cached_tokens", COUNT, nullable=True),
        sa.Column("reasoning_tokens", COUNT, nullable=True),
        sa.Column("prompt_rate", sa.Double(), nullable=True),
        sa.Column("completion_rate", sa.Double(), nullable=True),
        sa.Column("cached_rate", sa.Double(), nullable=True),
        sa.Column("cost", sa.Double(), nullable=True),
        sa.Column("status", COUNT, nullable=False),
        sa.Column("context_status", sa.Text(), nullable=True),
        sa.Column("created_at", COUNT, nullable=False),
        sa.PrimaryKeyConstraint("tenant", "id", name="pk_usage_records"),
    )
    op.create_index(
        "ix_usage_records_tenant_conversation_id_created_at_id",
        "usage_records",
        ["tenant", "conversation_id", "created_at", "id"],
    )
