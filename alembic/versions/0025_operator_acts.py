"""What operators did."""

from alembic import op
from sqlalchemy import BigInteger, Column, Integer, PrimaryKeyConstraint, Text

revision = "0025"
down_revision = "0024"

COUNT = BigInteger().with_variant(Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "operator_acts",
        Column("number", COUNT, nullable=False, autoincrement=True),
        Column("at", COUNT, nullable=False),
        Column("who", Text, nullable=False),
        Column("did", Text, nullable=False),
        Column("of_tenant", Text, nullable=False),
        Column("subject", Text, nullable=False),
        PrimaryKeyConstraint("number", name="pk_operator_acts"),
    )
    op.create_index("ix_operator_acts_at", "operator_acts", ["at"])
