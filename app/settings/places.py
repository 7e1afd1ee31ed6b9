"""Steno's own folder: where the database is unless the settings name another one, whatever the working directory."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import quote

FILE = "steno.db"


def home() -> Path:
    """Steno's own folder: `STENO_HOME`, else one in the user's data folder (XDG)."""
    if named := os.environ.get("STENO_HOME"):
        return Path(named).expanduser().absolute()
    data = Path(os.environ.get("XDG_DATA_HOME", ""))
    if not data.is_absolute():  # As the XDG specification has it.
        try:
            data = Path.home() / ".local" / "share"
        except RuntimeError:  # A user without a home; nothing can be written there, and the check says so.
            data = Path("/.local/share")
    return data / "steno"


def sqlite_url(path: Path) -> str:
    return f"sqlite:///{quote(str(path))}"


def default_database() -> Path:
    return home() / FILE
