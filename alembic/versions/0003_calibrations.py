"""Calibrations."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

COUNT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "calibrations",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("upstream", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("formula", sa.Text(), nullable=False),
        sa.Column("tools", sa.Boolean(), nullable=False),
        sa.Column("recent", sa.JSON(), nullable=False),
        sa.Column("samples", COUNT, nullable=False),
        sa.Column("offset_tokens", sa.Double(), nullable=True),
        sa.Column("ratio", sa.Double(), nullable=True),
        sa.Column("created_at", COUNT, nullable=False),
        sa.Column("updated_at", COUNT, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_calibrations"),
    )
    op.create_index("ix_calibrations_updated_at", "calibrations", ["updated_at"])
