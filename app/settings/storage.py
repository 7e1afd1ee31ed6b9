"""Settings of the database, and the folder with Steno's own files."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import quote

from pydantic import Field, SecretStr

from app.settings.types import Seconds, Section


def home() -> Path:
    """Return Steno's own folder: `STENO_HOME`, or else `steno` in the user's data folder (XDG)."""
    if named := os.environ.get("STENO_HOME"):
        return Path(named).expanduser().absolute()
    data = Path(os.environ.get("XDG_DATA_HOME", ""))
    if not data.is_absolute():  # The XDG specification says to ignore relative paths.
        try:
            data = Path.home() / ".local" / "share"
        except RuntimeError:  # The user has no home directory. The check reports that the folder is not writable.
            data = Path("/.local/share")
    return data / "steno"


def tables_folder() -> Path:
    """Return the folder into which `steno tables` puts the tokenizer's tables."""
    return home() / "tables"


class StorageSettings(Section):
    """The database, and how long it keeps data."""

    url: SecretStr | None = None
    """PostgreSQL or SQLite URL, or `memory`; null means `steno.db` in Steno's folder. DATABASE_URL sets it, too.

    Write `postgresql://user:password@host/name` or `sqlite:///path/steno.db`. A path after three slashes is relative to
    the working directory; an absolute path needs four slashes. In a password, write `@ : / ?` as `%40 %3A %2F %3F`. Set
    a URL with a password in the environment, because all users of the machine can read a command line. PostgreSQL needs
    `STENO_SECRET`. Behind PgBouncer in transaction mode add `?prepared_statement_cache_size=0`.

    Steno's folder is `$STENO_HOME`, else `$XDG_DATA_HOME/steno`, else `~/.local/share/steno`; `make run` and `make
    doctor` use `.run/` of the checkout. The secret for `steno.db` is `steno.secret` in the same folder: back up both.
    """
    timeout_seconds: Seconds = 0.25
    """Seconds that a request waits for one database call. Then Steno serves the request without stored summaries.

    Time in which the process itself is busy does not count.
    """
    retention_days: int | None = Field(30, ge=1, le=36_500)
    """Days without use after which Steno deletes stored data; null: never.

    A conversation, with its pins, masks and stored messages, is used by each of its requests; a summary by each payload
    that contains it. All other records are deleted that many days after their creation.
    """
    messages: bool = False
    """Store the [history](archive.md) of each conversation's latest request as the client sent it, without secrets.

    The database then contains messages, pictures and files unencrypted. If you switch this off again, stored messages
    stay until you delete them, or until `retention_days` have passed.
    """

    @property
    def address(self) -> str:
        """URL of the database. It may contain a password."""
        return self.url.get_secret_value() if self.url else f"sqlite:///{quote(str(home() / 'steno.db'))}"
