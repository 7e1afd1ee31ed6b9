"""What was written to the provider's cache, whose price a cost is by, and the ledger of a tenant by time."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"

COUNT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    # Without a value: what was recorded before, or is by a replica of the version before, did not look.
    op.add_column("usage_records", sa.Column("written_tokens", COUNT))
    op.add_column("usage_records", sa.Column("written_rate", sa.Double()))
    op.add_column("usage_records", sa.Column("price_source", sa.Text()))
    op.create_index("ix_usage_records_tenant_created_at", "usage_records", ["tenant", "created_at"])
