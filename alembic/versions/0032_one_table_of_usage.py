"""Usage records in one table, and no sums of them by day: reports add the records up.

PostgreSQL's records may be in partitions, which the previous release made while it served.
"""

from alembic import op
from sqlalchemy import text

revision = "0032"
down_revision = "0031"

TABLE, PARTS = "usage_records", "usage_records_in_parts"
INDEXES = (("tenant", "conversation_id", "created_at", "id"), ("tenant", "created_at"), ("created_at",))
IS_PARTITIONED = text("SELECT relkind = 'p' FROM pg_class WHERE oid = CAST('usage_records' AS regclass)")
GRANTS = text("""
    SELECT format('GRANT %s ON %s TO %s', a.privilege_type, c.oid::regclass,
                  CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END)
    FROM pg_class c, aclexplode(c.relacl) a WHERE c.oid = CAST('usage_records' AS regclass)
""")


def upgrade() -> None:
    for table in ("usage_days", "usage_days_due"):
        op.drop_table(table)
    connection = op.get_bind()
    if connection.dialect.name != "postgresql" or not connection.scalar(IS_PARTITIONED):
        return
    grants = list(connection.scalars(GRANTS))
    for statement in (
        f"LOCK TABLE {TABLE} IN ACCESS EXCLUSIVE MODE",
        f"ALTER TABLE {TABLE} RENAME TO {PARTS}",
        f"CREATE TABLE {TABLE} (LIKE {PARTS} INCLUDING DEFAULTS)",
        f"INSERT INTO {TABLE} SELECT * FROM {PARTS}",  # noqa: S608 - constants
        f"DROP TABLE {PARTS}",
    ):
        op.execute(statement)
    op.create_primary_key(f"pk_{TABLE}", TABLE, ["tenant", "id"])
    for columns in INDEXES:
        op.create_index(f"ix_{TABLE}_{'_'.join(columns)}", TABLE, columns)
    for grant in grants:
        op.execute(grant)
