"""What tenants used of their limits."""

from alembic import op
from sqlalchemy import BigInteger, Column, Double, Integer, PrimaryKeyConstraint, Text

revision = "0026"
down_revision = "0025"

COUNT = BigInteger().with_variant(Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "tallies",
        Column("tenant", Text, nullable=False),
        Column("id", Text, nullable=False),
        Column("ends_at", COUNT, nullable=False),
        Column("amount", Double, nullable=False),
        PrimaryKeyConstraint("tenant", "id", name="pk_tallies"),
    )
