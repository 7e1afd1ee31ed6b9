"""Days whose usage was recorded before it was added up by day: they are added up one by one while Steno serves."""

from alembic import op
from sqlalchemy import BigInteger, Column, Integer, PrimaryKeyConstraint, Text

revision = "0022"
down_revision = "0021"

COUNT = BigInteger().with_variant(Integer(), "sqlite")

# From one day of a tenant to the next by the index, whose other entries are not read: millions of records are some
# thousand days. Replicas of the version before go on recording without adding up: that is missing in the days of the
# rollout, and nowhere else.
FIND = """
WITH RECURSIVE found(tenant, day) AS (
    SELECT * FROM (
        SELECT tenant, created_at - created_at % 86400000 FROM usage_records ORDER BY tenant, created_at LIMIT 1
    ) AS first
    UNION ALL
    SELECT later.tenant, later.created_at - later.created_at % 86400000 FROM found {join} (
        SELECT {key} FROM usage_records
        WHERE (tenant, created_at) >= (found.tenant, found.day + 86400000) ORDER BY tenant, created_at LIMIT 1
    ) {end}
)
INSERT INTO usage_days_due (tenant, day)
SELECT tenant, day FROM found WHERE NOT EXISTS (
    SELECT 1 FROM usage_days WHERE usage_days.tenant = found.tenant AND usage_days.day = found.day
)
"""
ON_POSTGRESQL = {"join": "CROSS JOIN LATERAL", "key": "tenant, created_at", "end": "AS later"}
ON_SQLITE = {"join": "JOIN usage_records AS later ON later.rowid =", "key": "rowid", "end": ""}


def upgrade() -> None:
    op.create_table(
        "usage_days_due",
        Column("tenant", Text, nullable=False),
        Column("day", COUNT, nullable=False),
        PrimaryKeyConstraint("tenant", "day", name="pk_usage_days_due"),
    )
    op.create_index("ix_usage_days_due_day", "usage_days_due", ["day"])
    op.execute(FIND.format(**(ON_POSTGRESQL if op.get_bind().dialect.name == "postgresql" else ON_SQLITE)))
