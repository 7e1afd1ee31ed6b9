"""Steno's own folder: where the database is unless the settings name another one, whatever the working directory."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import quote

FILE = "steno.db"
EARLIER = (Path(".run/steno.db"), Path("steno.db"))
"""Places of the database in earlier releases, in the working directory; the later place first."""


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
    """File in Steno's folder, or the one that an earlier release left here, as long as that is the only one."""
    place = home() / FILE
    if os.environ.get("STENO_HOME") or place.exists():
        return place
    return earlier_database() or place


def earlier_database() -> Path | None:
    """Database that an earlier release left in the working directory, unless that is Steno's folder; else None."""
    now = home() / FILE
    found = (path.absolute() for path in EARLIER if path.is_file())
    return next((path for path in found if path != now), None)
