"""Links between tenants: see app/store/tenant_links.py."""

from alembic import op
from sqlalchemy import BigInteger, Boolean, Column, Integer, PrimaryKeyConstraint, Text, text

revision = "0028"
down_revision = "0027"

COUNT = BigInteger().with_variant(Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "tenant_links",
        Column("tenant", Text, nullable=False),
        Column("alias", Text, nullable=False),
        Column("leads", Boolean, nullable=False),
        Column("state", Text, nullable=False),
        Column("created_at", COUNT, nullable=False),
        Column("expires_at", COUNT),
        PrimaryKeyConstraint("tenant", "alias", name="pk_tenant_links"),
    )
    leads, is_due = text("leads"), text("state = 'due'")
    op.create_index(
        "ix_tenant_links_alias", "tenant_links", ["alias"], unique=True, postgresql_where=leads, sqlite_where=leads
    )
    op.create_index("ix_tenant_links_due", "tenant_links", ["alias"], postgresql_where=is_due, sqlite_where=is_due)
    op.create_index("ix_tenant_links_expires_at", "tenant_links", ["expires_at"])
