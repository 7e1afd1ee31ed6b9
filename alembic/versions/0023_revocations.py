"""Sessions of the inspector that were ended, and links that were revoked."""

from alembic import op
from sqlalchemy import BigInteger, Column, Integer, PrimaryKeyConstraint, Text

revision = "0023"
down_revision = "0022"

COUNT = BigInteger().with_variant(Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "revocations",
        Column("id", Text, nullable=False),
        Column("revoked_at", COUNT, nullable=False),
        Column("expires_at", COUNT, nullable=False),
        PrimaryKeyConstraint("id", name="pk_revocations"),
    )
