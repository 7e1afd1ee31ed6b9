"""Keys that Steno gives out."""

from alembic import op
from sqlalchemy import JSON, Column, Double, PrimaryKeyConstraint, Text

revision = "0027"
down_revision = "0026"


def upgrade() -> None:
    op.create_table(
        "client_keys",
        Column("id", Text, nullable=False),
        Column("digest", Text, nullable=False),
        Column("owner", Text, nullable=False),
        Column("created_at", Double, nullable=False),
        Column("expires_at", Double),
        Column("revoked_at", Double),
        Column("limits", JSON, nullable=False),
        PrimaryKeyConstraint("id", name="pk_client_keys"),
    )
