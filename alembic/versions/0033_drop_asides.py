"""No hidden parts of answers: Steno declares no functions to the model."""

from alembic import op

revision = "0033"
down_revision = "0032"


def upgrade() -> None:
    op.drop_table("asides")
