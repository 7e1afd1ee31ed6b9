"""Storage: the database, and how long what is in it is kept."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, SecretStr

from app.settings.types import OFF, Seconds, Section

DATABASE = Path(".run/steno.db")
"""Where the database is by default, in the folder that Steno is started in."""
EARLIER_DATABASE = Path("steno.db")
"""Where it was in 0.1.0, unless `make run` had started it."""


class StorageSettings(Section):
    url: SecretStr = SecretStr(f"sqlite:///{DATABASE}")
    """PostgreSQL or SQLite URL, or `memory`; plain DATABASE_URL is honoured."""
    timeout_seconds: Seconds = 0.25
    """Bound of one database call on a request's path."""
    statement_cache: bool = True
    """Turn off behind PgBouncer in transaction mode."""
    listen_notify: Annotated[Literal["auto", "off"], OFF] = "auto"
    """How requests that wait for a summary hear of its end on PostgreSQL: auto by NOTIFY, off by asking for it."""
    retention_days: int | None = Field(30, ge=1, le=36_500)
    """What nobody used for this many days is deleted; null keeps it for ever."""
    messages: bool = False
    """Keep the messages of conversations as they were sent, to be read and searched."""
