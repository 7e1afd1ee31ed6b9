"""What each call saved, and what came that was too large for its model's window."""

from alembic import op
from sqlalchemy import BigInteger, Column, Double, Integer, text

revision = "0021"
down_revision = "0020"

COUNT = BigInteger().with_variant(Integer(), "sqlite")


def upgrade() -> None:
    op.add_column("usage_records", Column("saved_cost", Double))
    # A replica of the release before adds days without them.
    for name in ("too_large", "too_large_tokens"):
        op.add_column("usage_days", Column(name, COUNT, nullable=False, server_default=text("0")))
    op.add_column("usage_days", Column("too_large_saved_cost", Double, nullable=False, server_default=text("0")))
