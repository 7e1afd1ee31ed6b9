"""Whose learning it is: calibrations and learnt windows by tenant. Rows from before are nobody's in particular."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    # With a default: replicas of the version before learn on while this one is rolled out. The windows they learn
    # meanwhile stay in their memory, because their statement names the key that was.
    for table in ("calibrations", "learned_windows"):
        op.add_column(table, sa.Column("tenant", sa.Text(), nullable=False, server_default=""))
    with op.batch_alter_table("learned_windows") as windows:
        windows.drop_constraint("pk_learned_windows", type_="primary")
        windows.create_primary_key("pk_learned_windows", ["upstream", "model", "tenant"])
    op.create_index("ix_calibrations_tenant_created_at_id", "calibrations", ["tenant", "created_at", "id"])
