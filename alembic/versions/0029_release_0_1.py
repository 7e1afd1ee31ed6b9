"""The tables of release 0.1 (commit 21db7e6e), from which 0030 migrates. Empty databases do not use this revision."""

revision = "0029"
down_revision = None


def upgrade() -> None:
    pass
