"""Leases."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

COUNT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "leases",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("series", sa.Text(), nullable=False),
        sa.Column("from_digest", sa.LargeBinary(), nullable=False),
        sa.Column("through_digest", sa.LargeBinary(), nullable=False),
        sa.Column("conversation_id", sa.Text(), nullable=False),
        sa.Column("holder", sa.Text(), nullable=False),
        sa.Column("epoch", COUNT, nullable=False),
        sa.Column("expires_at", COUNT, nullable=False),
        sa.PrimaryKeyConstraint("tenant", "series", "from_digest", "through_digest", name="pk_leases"),
    )
    op.create_index("ix_leases_tenant_conversation_id", "leases", ["tenant", "conversation_id"])
