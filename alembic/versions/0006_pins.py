"""Pins."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"

COUNT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "pins",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("conversation_id", sa.Text(), nullable=False),
        sa.Column("position", COUNT, nullable=False),
        sa.Column("digest", sa.LargeBinary(), nullable=True),
        sa.Column("created_at", COUNT, nullable=False),
        sa.PrimaryKeyConstraint("tenant", "conversation_id", "position", name="pk_pins"),
    )
