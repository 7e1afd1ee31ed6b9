"""What was decided for each request and what each summary call made; plans; summaries that are no longer used."""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"

COUNT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    # All of them may be null: replicas of the version before write none while this one is rolled out. Such a replica
    # goes on using a summary that was deactivated.
    for name in ("window", "limit", "trigger", "replaced", "summary"):
        op.add_column("usage_records", sa.Column(f"{name}_tokens", COUNT))
    for name in ("actions", "reason", "summary_id"):
        op.add_column("usage_records", sa.Column(name, sa.Text()))
    for name in ("waited_seconds", "seconds"):
        op.add_column("usage_records", sa.Column(name, sa.Double()))
    op.add_column("conversations", sa.Column("plan", sa.Text()))
    op.add_column("summary_chunks", sa.Column("deactivated_at", COUNT))
