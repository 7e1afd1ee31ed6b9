"""An index of the live leases alone, and one that finds the old ones."""

from alembic import op
from sqlalchemy import text

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    # With the digest before the time, PostgreSQL took this index and the primary key for equally good, and read every
    # lease that begins at a tenant's root where it chose the key.
    is_live = text("expires_at > 0")
    op.create_index(
        "ix_leases_live", "leases", ["tenant", "expires_at"], postgresql_where=is_live, sqlite_where=is_live
    )
    op.create_index("ix_leases_expires_at", "leases", ["expires_at"])
    # Last: from the drop to the commit nobody reads the table.
    op.drop_index("ix_leases_tenant_series_from_digest_expires_at", "leases")
