"""What belongs to an answer and its client does not have: see app/store/places.py."""

from alembic import op
from sqlalchemy import BigInteger, Column, Integer, PrimaryKeyConstraint, Text

revision = "0029"
down_revision = "0028"

MILLISECONDS = BigInteger().with_variant(Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "asides",
        Column("tenant", Text, nullable=False),
        Column("id", Text, nullable=False),
        Column("conversation_id", Text, nullable=False),
        Column("text", Text, nullable=False),
        Column("created_at", MILLISECONDS, nullable=False),
        PrimaryKeyConstraint("tenant", "id", name="pk_asides"),
    )
    op.create_index("ix_asides_tenant_conversation_id", "asides", ["tenant", "conversation_id"])
    op.create_index("ix_asides_created_at", "asides", ["created_at"])
