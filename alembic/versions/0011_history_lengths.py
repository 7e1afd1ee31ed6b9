"""How long the history was that a summary was made for: what grew from one summary to the next is one conversation."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"

COUNT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.add_column("summary_chunks", sa.Column("history_length", COUNT, nullable=True))
