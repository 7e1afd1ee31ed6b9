"""The check of the server's secret: see app/store/settings_check.py. `steno migrate` fills it."""

from alembic import op
from sqlalchemy import Column, LargeBinary, PrimaryKeyConstraint, Text

revision = "0031"
down_revision = "0030"


def upgrade() -> None:
    op.create_table(
        "settings_check",
        Column("name", Text, nullable=False),
        Column("digest", LargeBinary, nullable=False),
        PrimaryKeyConstraint("name", name="pk_settings_check"),
    )
