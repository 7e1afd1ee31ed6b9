"""Storage: the database, and how long what is in it is kept."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, SecretStr

from app.conversation.secrets import Scrub, without_secrets
from app.settings.places import default_database, sqlite_url
from app.settings.types import Seconds, Section


class StorageSettings(Section):
    """The database, and how long what is in it is kept."""

    url: SecretStr | None = None
    """PostgreSQL or SQLite URL, or `memory`; null means `steno.db` in Steno's folder. DATABASE_URL sets it, too.

    As `postgresql://user:password@host/name` or `sqlite:///path/steno.db`; an absolute path has four slashes, any other
    starts at the working directory. Write `@ : / ?` in a password as `%40 %3A %2F %3F`, and set the URL by the
    environment: everybody on the machine can see a command line. PostgreSQL needs `STENO_SECRET`.
    Behind PgBouncer in transaction mode add `?prepared_statement_cache_size=0`.

    Steno's folder is `$STENO_HOME`, else `$XDG_DATA_HOME/steno`, else `~/.local/share/steno`; `make run` and `make
    doctor` use `.run/` of the checkout. A SQLite file's secret lies beside it as `steno.secret`: back up both.
    """
    timeout_seconds: Seconds = 0.25
    """Seconds that a request waits for one database call before it goes on without stored summaries.

    Time in which the process itself is busy does not count.
    """
    retention_days: int | None = Field(30, ge=1, le=36_500)
    """Days without use after which stored data is deleted; null keeps it for ever.

    Conversations count by their last request, with pins, masks and stored messages; summaries by the last payload
    that they stood in; other records by their age.
    """
    messages: bool = False
    """Keep the [history](archive.md) of each conversation's latest request as it was sent.

    They are plain text in the database, pictures and files too. What was kept stays when this is switched off again,
    until it is deleted or too old.
    """
    secrets: Literal["remove", "keep"] = "remove"
    """Whether keys, tokens, passwords and private keys stay in summaries and stored messages.

    `[secret removed]` stands in their place, in transcripts for the summariser, too. What the model gets is whole, and
    what a summariser reads as `prefix` (`summary.style`).
    """
    encryption: tuple[str, ...] = Field((), max_length=10)
    """Read by `steno migrate` alone, and by this release alone: the keys of texts that the previous release encrypted.

    Steno does not encrypt texts any more and does not start with this setting: [remove it](operations.md#encryption)
    once the database is migrated.
    """

    @property
    def scrub(self) -> Scrub:
        """Function from a text to what is stored of it."""
        return without_secrets if self.secrets == "remove" else str

    @property
    def address(self) -> str:
        """The URL of the database in use; it may hold a password."""
        return self.url.get_secret_value() if self.url else sqlite_url(default_database())
