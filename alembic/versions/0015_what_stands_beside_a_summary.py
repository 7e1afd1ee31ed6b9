"""What stands beside a summary's text: exact values and the user's rules; and how many values the text holds itself."""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"

COUNT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    # With defaults: replicas of the version before store chunks while this one is rolled out.
    for name in ("exact_values", "rules"):
        op.add_column("summary_chunks", sa.Column(name, sa.JSON(), nullable=False, server_default="[]"))
    op.add_column("summary_chunks", sa.Column("rules_left_out", COUNT, nullable=False, server_default="0"))
    op.add_column("summary_chunks", sa.Column("values_kept", sa.Double()))
    op.add_column("usage_records", sa.Column("values_kept", sa.Double()))
