"""Storage: the database, and how long what is in it is kept."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, SecretStr

from app.settings.places import default_database, sqlite_url
from app.settings.types import OFF, Seconds, Section


class StorageSettings(Section):
    url: SecretStr | None = None
    """PostgreSQL or SQLite URL, or `memory`; null means `steno.db` in Steno's folder. DATABASE_URL sets it, too."""
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

    @property
    def address(self) -> str:
        """The URL of the database in use; it may hold a password."""
        return self.url.get_secret_value() if self.url else sqlite_url(default_database())
