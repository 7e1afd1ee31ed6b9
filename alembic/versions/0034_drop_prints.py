"""Nothing is kept any more of what was sent before signed thinking."""

from alembic import op

revision = "0034"
down_revision = "0033"


def upgrade() -> None:
    op.drop_table("prints")
