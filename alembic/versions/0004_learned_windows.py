"""Learned windows."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

COUNT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "learned_windows",
        sa.Column("upstream", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("limit_tokens", COUNT, nullable=False),
        sa.Column("learnt_at", COUNT, nullable=False),
        sa.Column("expires_at", COUNT, nullable=False),
        sa.PrimaryKeyConstraint("upstream", "model", name="pk_learned_windows"),
    )
    op.create_index("ix_learned_windows_expires_at", "learned_windows", ["expires_at"])
