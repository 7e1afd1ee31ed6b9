"""Settings of the database, the folder with Steno's own files, and the server's secret."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from pydantic import Field, SecretStr

from app.settings.types import ConfigurationError, Seconds, Section
from app.store import Store
from app.store.engine import read_url
from app.store.schema import make_folder

if TYPE_CHECKING:
    from app.settings.settings import Settings

SECRET_BYTES = 32
_OF_THIS_PROCESS = secrets.token_bytes(SECRET_BYTES)
"""Secret for a database in memory: each process has its own secret and database."""


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
    """Return the default folder of the tokenizer's tables. `steno tables` fetches the tables."""
    return home() / "tables"


class StorageSettings(Section):
    """The database, and how long it keeps data."""

    url: SecretStr | None = None
    """PostgreSQL or SQLite URL, or `memory`; null: `steno.db` in Steno's folder. DATABASE_URL is the same setting.

    Write `postgresql://user:password@host/name` or `sqlite:///path/steno.db`. A path after three slashes is relative to
    the working directory; an absolute path needs four slashes. In a password, write `@ : / ?` as `%40 %3A %2F %3F`. Set
    a URL with a password in the environment, because all users of the machine can read a command line. PostgreSQL needs
    `STENO_SECRET`. Behind PgBouncer in transaction mode add `?prepared_statement_cache_size=0`.

    Steno's folder is `$STENO_HOME`, else `$XDG_DATA_HOME/steno`, else `~/.local/share/steno`; `make run` and `make
    doctor` use `.run/` of the checkout. The secret for `steno.db` is `steno.secret` in the same folder: back up both.
    """
    timeout_seconds: Seconds = 0.25
    """Seconds that a request waits for one database call. After this time, Steno uses no stored summaries.

    Time in which the process itself is busy does not count.
    """
    retention_days: int | None = Field(30, ge=1, le=36_500)
    """Days without use after which Steno deletes stored data; null: never.

    A request counts as use of its conversation, with pins, masks and stored messages. A payload counts as use of its
    summaries. Steno deletes all other records that many days after their creation.
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


def open_store(
    settings: Settings,
    took: Callable[[float], object] = lambda _: None,
    secret: bytes | None = None,
) -> Store:
    """Open the store. `took` is called with the seconds of each store call for a chat request. `secret`: the store
    refuses a database that was made with another secret. Raise `DatabaseURLError` for an invalid URL."""
    storage = settings.storage
    return Store(
        storage.address,
        timeout=storage.timeout_seconds,
        retention_days=storage.retention_days,
        largest_history=settings.limits.largest_body,
        took=took,
        secret=secret,
    )


# The secret


def server_secret(settings: Settings, *, create: bool = True) -> bytes:
    """Return the key of all digests, from the settings or the file beside the SQLite database. Create a missing file.
    Raise `ConfigurationError` on failure. Without `create`, return empty bytes for a missing or unreadable file."""
    if settings.secret is not None:
        return settings.secret.get_secret_value().encode()
    database = read_url(settings.storage.address).path
    if database is None:
        return _OF_THIS_PROCESS
    path = secret_beside(database)
    try:
        return _kept_secret(path) if create else path.read_bytes().strip()
    except OSError as error:
        if not create:
            return b""
        raise ConfigurationError(f"The server secret {path} cannot be made or read: {error.strerror}.") from error


def secret_beside(database: Path) -> Path:
    return database.with_suffix(".secret")


def _kept_secret(path: Path) -> bytes:
    """Read the secret. If it is missing, create it, readable by the owner only. If several processes start at the same
    time, one of them creates it. Raise `OSError` on failure."""
    fresh = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    make_folder(path.parent)
    with open(fresh, "w", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(secrets.token_hex(SECRET_BYTES))
    try:
        os.link(fresh, path)  # Atomic: it fails if the file exists, and no process sees a partial file.
    except FileExistsError:
        pass
    finally:
        fresh.unlink()
    return path.read_bytes().strip()
