"""What a chunk was made with: the one after it, and a history so long."""

from alembic import op
from sqlalchemy import BigInteger, Boolean, Column, Integer, false

revision = "0010"
down_revision = "0009"

COUNT = BigInteger().with_variant(Integer(), "sqlite")


def upgrade() -> None:
    # With a default: replicas of the version before store chunks while this one is rolled out.
    op.add_column("summary_chunks", Column("continued", Boolean, nullable=False, server_default=false()))
    op.add_column("summary_chunks", Column("history_length", COUNT, nullable=True))
