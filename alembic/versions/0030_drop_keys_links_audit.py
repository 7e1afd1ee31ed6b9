"""No keys of Steno's own, links between tenants, operators' acts, revocations and tallies."""

from alembic import op

revision = "0030"
down_revision = "0029"


def upgrade() -> None:
    for table in ("client_keys", "tenant_links", "operator_acts", "revocations", "tallies"):
        op.drop_table(table)
