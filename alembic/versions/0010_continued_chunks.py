"""Which chunks are used together with the one after them."""

from alembic import op
from sqlalchemy import Boolean, Column, false

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    # With a default: replicas of the version before store chunks while this one is rolled out.
    op.add_column("summary_chunks", Column("continued", Boolean, nullable=False, server_default=false()))
