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

# What is there already. Replicas of the version before go on recording without adding up: that is missing in the days
# of the rollout, and nowhere else.
ADD_UP = """
INSERT INTO usage_days (
    tenant, day, purpose, model, context_status, calls, failed, priced, list_priced,
    prompt, completion, cached, written, reasoning, saved, cost, saved_cost
)
SELECT
    tenant, created_at - created_at % 86400000, purpose, model, coalesce(context_status, ''), count(*),
    sum(CASE WHEN status <> 200 THEN 1 ELSE 0 END), count(cost),
    sum(CASE WHEN cost IS NOT NULL AND price_source = 'registry' THEN 1 ELSE 0 END),
    coalesce(sum(prompt_tokens), 0), coalesce(sum(completion_tokens), 0), coalesce(sum(cached_tokens), 0),
    coalesce(sum(written_tokens), 0), coalesce(sum(reasoning_tokens), 0), coalesce(sum(saved_tokens), 0),
    coalesce(sum(cost), 0.0), coalesce(sum(saved_tokens * prompt_rate), 0.0) / 1000000
FROM usage_records GROUP BY 1, 2, 3, 4, 5
"""


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
    op.execute(ADD_UP)
