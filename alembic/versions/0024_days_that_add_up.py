"""What days of usage count beyond what they did."""

from alembic import op
from sqlalchemy import BigInteger, Column, Integer

revision = "0024"
down_revision = "0023"

COUNT = BigInteger().with_variant(Integer(), "sqlite")


def upgrade() -> None:
    # Null in rows that the version before wrote, or goes on writing: they are added up again in the background, a day
    # at a time (app/store/usage_days.py).
    for name in ("unreported", "unpriced", "compared", "too_large_compared"):
        op.add_column("usage_days", Column(name, COUNT))
