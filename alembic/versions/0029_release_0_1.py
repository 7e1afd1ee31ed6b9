"""The tables of release 0.1 (commit 21db7e6e), from which 0030 migrates. `steno migrate` makes an empty database's."""

revision = "0029"
down_revision = None


def upgrade() -> None:
    pass
