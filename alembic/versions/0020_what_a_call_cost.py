"""What a call cost: its tier, its wire format, whose price it is, and what has a price of its own."""

from alembic import op
from sqlalchemy import BigInteger, Column, Double, Integer, Text

revision = "0020"
down_revision = "0019"

COUNT = BigInteger().with_variant(Integer(), "sqlite")


def upgrade() -> None:
    for name in ("format", "tier", "priced_model"):
        op.add_column("usage_records", Column(name, Text))
    for name in ("written_hour_tokens", "audio_tokens", "speech_tokens", "searches"):
        op.add_column("usage_records", Column(name, COUNT))
    for name in ("written_hour_rate", "audio_rate", "speech_rate", "search_rate"):
        op.add_column("usage_records", Column(name, Double))
    # A replica of the release before adds days without it.
    op.add_column("usage_days", Column("billed", COUNT, nullable=False, server_default="0"))
