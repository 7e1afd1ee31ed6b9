"""Indexes that stay short where a tenant has many conversations."""

from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    # Every lease is kept, and of each conversation one starts at the root: only the time tells the live ones.
    op.create_index(
        "ix_leases_tenant_series_from_digest_expires_at", "leases", ["tenant", "series", "from_digest", "expires_at"]
    )
    # "OK" ends many histories, few of them within the last hour.
    op.create_index(
        "ix_summary_chunks_tenant_last_message_digest_created_at",
        "summary_chunks",
        ["tenant", "last_message_digest", "created_at"],
    )
    # Thousands of digests are looked up at once, and each is the tenant's own: it needs no tenant before it.
    op.create_index("ix_summary_chunks_through_digest", "summary_chunks", ["through_digest"])
    # Last: from the first drop to the commit nobody reads the table.
    op.drop_index("ix_summary_chunks_tenant_last_message_digest", "summary_chunks")
    op.drop_index("ix_summary_chunks_tenant_series_through_digest", "summary_chunks")
