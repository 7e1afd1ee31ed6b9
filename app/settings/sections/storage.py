"""Storage: the database, and how long what is in it is kept."""

from __future__ import annotations

from pydantic import Field, SecretStr

from app.settings.places import default_database, sqlite_url
from app.settings.types import Seconds, Section


class StorageSettings(Section):
    """The database, and how long what is in it is kept."""

    url: SecretStr | None = None
    """PostgreSQL or SQLite URL, or `memory`; null means `steno.db` in Steno's folder. DATABASE_URL sets it, too.

    As `postgresql://user:password@host/name` or `sqlite:///path/steno.db`; four slashes for an absolute path, others
    count from the directory Steno is started in. `@ : / ?` in a password are written `%40 %3A %2F %3F`; give it by the
    environment, because a command line is visible to everybody on the machine. PostgreSQL needs `STENO_SECRET`.

    Steno's folder is `$STENO_HOME`, else `$XDG_DATA_HOME/steno`, else `~/.local/share/steno`, for all commands; `make
    run` and `make doctor` use `.run/` of the checkout. A SQLite file and its folder are made for the user alone. The
    secret lies beside it as `steno.secret`: back up both. A file that an earlier release left in the working directory
    (`.run/steno.db`, `steno.db`) stays in use as long as nothing is set and Steno's folder has none; a warning at the
    start says how to move it.
    """
    timeout_seconds: Seconds = 0.25
    """Bound of one database call on a request's path, in seconds; after it the request goes on without stored
    summaries.

    Time in which the process itself is busy does not count, nor does waiting for others of it.
    """
    statement_cache: bool = True
    """Prepared statements, and NOTIFY for requests that wait, on PostgreSQL.

    Turn it off behind PgBouncer in transaction mode: waiting requests then only ask four times a second.
    """
    retention_days: int | None = Field(30, ge=1, le=36_500)
    """Days after which what nobody used is deleted; null keeps it for ever.

    Conversations count by their last request, with their pins, masks and archived messages; summaries by the last
    payload they stood in; records of usage and what was learnt about models by their age. A conversation that comes
    back later is summarised anew.
    """
    messages: bool = False
    """Keep the messages of conversations as they were sent, to be [read and searched](archive.md).

    They are plain text in the database, pictures and files too, and go with their conversation. What was kept stays
    when this is switched off again, until it is deleted or too old.
    """

    @property
    def address(self) -> str:
        """The URL of the database in use; it may hold a password."""
        return self.url.get_secret_value() if self.url else sqlite_url(default_database())
