"""What was sent where an answer's thoughts are tied to it."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    op.create_table(
        "prints",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("print", sa.LargeBinary(), nullable=False),
        sa.Column("conversation_id", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "digest", "print", name="pk_prints"),
    )
    op.create_index("ix_prints_tenant_conversation_id", "prints", ["tenant", "conversation_id"])
