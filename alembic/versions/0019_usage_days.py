"""Usage by day, and conversations by their last request, for the inspector."""

from alembic import op
from sqlalchemy import BigInteger, Column, Double, Integer, PrimaryKeyConstraint, Text

revision = "0019"
down_revision = "0017"

COUNT = BigInteger().with_variant(Integer(), "sqlite")
COUNTS = (
    *("calls", "failed", "priced", "list_priced"),
    *("prompt", "completion", "cached", "written", "reasoning", "saved"),
)


def upgrade() -> None:
    op.create_table(
        "usage_days",
        Column("tenant", Text, nullable=False),
        Column("day", COUNT, nullable=False),
        *(Column(name, Text, nullable=False) for name in ("purpose", "model", "context_status")),
        *(Column(name, COUNT, nullable=False) for name in COUNTS),
        Column("cost", Double, nullable=False),
        Column("saved_cost", Double, nullable=False),
        PrimaryKeyConstraint("tenant", "day", "purpose", "model", "context_status", name="pk_usage_days"),
    )
    op.create_index("ix_usage_days_day", "usage_days", ["day"])
    in_order = ["tenant", "updated_at", "id"]
    op.create_index(f"ix_conversations_{'_'.join(in_order)}", "conversations", in_order)
