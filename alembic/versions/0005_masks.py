"""Masks."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"

COUNT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "masks",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("settings", sa.Text(), nullable=False),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("start_digest", sa.LargeBinary(), nullable=False),
        sa.Column("conversation_id", sa.Text(), nullable=False),
        sa.Column("created_at", COUNT, nullable=False),
        sa.PrimaryKeyConstraint("tenant", "settings", "digest", "start_digest", name="pk_masks"),
    )
    op.create_index("ix_masks_tenant_conversation_id", "masks", ["tenant", "conversation_id"])
