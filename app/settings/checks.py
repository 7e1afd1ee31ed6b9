"""Checks of the settings, without calls to providers. This module also reads the server's secret and opens the store.

`steno doctor` prints the findings, and `steno serve` acts on them.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal

from msgspec import Struct

from app.settings.settings import ConfigurationError, Settings
from app.settings.upstreams import is_loopback
from app.store import DatabaseURLError, Store
from app.store.engine import read_url
from app.store.schema import make_folder, obstacle

SECRET_BYTES = 32
_OF_THIS_PROCESS = secrets.token_bytes(SECRET_BYTES)
"""Secret for a database in memory: each process has its own secret and database."""


def server_secret(settings: Settings) -> bytes:
    """Return the key of all digests; create it beside the SQLite file if it is missing. Raises `ConfigurationError`."""
    if settings.secret is not None:
        return settings.secret.get_secret_value().encode()
    address = read_url(settings.storage.address)
    return _kept_secret(secret_beside(address.path)) if address.path else _OF_THIS_PROCESS


def existing_secret(settings: Settings) -> bytes:
    """Return the key of all digests, without creating it; empty if it is missing or unreadable."""
    path = read_url(settings.storage.address).path
    if settings.secret is not None or path is None:
        return server_secret(settings)
    try:
        return secret_beside(path).read_bytes().strip()
    except OSError:
        return b""


def open_store(
    settings: Settings,
    took: Callable[[float], object] = lambda _: None,
    secret: bytes | None = None,
) -> Store:
    """Open the store. `took`: callback for the seconds that each call for a request took. `secret`: the store refuses a
    database that was made with another secret. Raises `DatabaseURLError`."""
    storage = settings.storage
    return Store(
        storage.address,
        timeout=storage.timeout_seconds,
        retention_days=storage.retention_days,
        largest_history=settings.limits.largest_body,
        took=took,
        secret=secret,
    )


def secret_beside(database: Path) -> Path:
    return database.with_suffix(".secret")


def _kept_secret(path: Path) -> bytes:
    """Read the secret. If it is missing, create it, readable by the owner only. If several processes start at the same
    time, one of them creates it."""
    fresh = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
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
    except OSError as error:
        raise ConfigurationError(f"The server secret {path} cannot be made or read: {error.strerror}.") from error


SHORTEST_SECRET = 16
POINT_AT_PROVIDER = "Make it the provider's address, such as https://api.openai.com/v1."
CORRECT_URL = "Correct storage.url, DATABASE_URL or STENO_HOME."
MAKE_ONE = "Make one with `openssl rand -hex 32`"


class Finding(Struct, frozen=True):
    state: Literal["ok", "warning", "problem", "fatal"]
    """`problem`: Steno starts, but not everything works; `fatal`: Steno does not start."""
    subject: str
    text: str
    remedy: str | None = None
    """Advice to the operator, if there is any."""

    @property
    def sentence(self) -> str:
        return f"{self.text.removesuffix('.')}. {self.remedy or ''}".rstrip()


SECRET_NOT_CHECKED = Finding(
    "warning",
    "secret",
    "the database does not know its secret yet, so another one would not be refused",
    "Run `steno migrate` once, with the right secret.",
)


def check_settings(settings: Settings, missing_tables: Sequence[str]) -> list[Finding]:
    """Return findings about the database's address, the secret, the tokenizer tables, and the operator's keys."""
    tables = Finding("ok", "tokenizer tables", "found and verified")
    if missing_tables:
        text = f"{', '.join(missing_tables)} not found; tokens are estimated by bytes, and compaction starts earlier"
        remedy = "`steno tables` fetches them; or name their folder: TIKTOKEN_CACHE_DIR."
        tables = Finding("warning", "tokenizer tables", text, remedy)
    return [*_check_place(settings), check_secret(settings), tables, *_check_operators_keys(settings)]


def _check_place(settings: Settings) -> Iterator[Finding]:
    """Yield findings about the address of the database, without opening the database."""
    try:
        address = read_url(settings.storage.address)
    except DatabaseURLError as error:
        yield Finding("fatal", "database", str(error), CORRECT_URL)
        return
    if address.kind == "memory" and settings.server.workers > 1:
        text = f"A database in memory is one process' own, and server.workers is {settings.server.workers}"
        yield Finding("fatal", "database", text, "Name a file or a PostgreSQL, or leave server.workers at 1.")
    if address.path is not None and (why := obstacle(address.path)) is not None:
        text = f"The database {address.place} cannot be used: {why}"
        yield Finding("fatal", "database", text, CORRECT_URL)


def check_secret(settings: Settings) -> Finding:
    """Return a finding about the secret. A missing secret is created when Steno starts, not here."""
    if settings.secret is not None:
        length = len(settings.secret.get_secret_value().encode())
        if length < SHORTEST_SECRET:
            text = f"STENO_SECRET has {length} characters; at least {SHORTEST_SECRET} are needed"
            return Finding("fatal", "secret", text, f"{MAKE_ONE}.")
        return Finding("ok", "secret", "set; every replica needs the same one")
    try:
        address = read_url(settings.storage.address)
    except DatabaseURLError:
        return Finding("problem", "secret", "not set, and there is no database to keep one beside")
    if address.kind == "postgresql":
        text = "STENO_SECRET is not set; with a shared database all replicas need the same one"
        return Finding("fatal", "secret", text, f"{MAKE_ONE} and give it to every replica.")
    if address.path is None:
        return Finding("ok", "secret", "made anew at each start, as is the database in memory")
    return _check_secret_file(secret_beside(address.path), address.path)


def _check_secret_file(path: Path, database: Path) -> Finding:
    if not path.exists() and database.exists():
        text = f"{path} is missing, which belongs to the database beside it"
        return Finding("warning", "secret", text, "Put it back from its backup: without it nothing stored is found.")
    if not path.exists():
        return Finding("ok", "secret", f"is made at the first start, in {path}")
    if path.stat().st_mode & 0o077:
        return Finding("warning", "secret", f"{path} can be read by others", f"chmod 600 {path}")
    return Finding("ok", "secret", f"kept in {path}")


def _check_operators_keys(settings: Settings) -> Iterator[Finding]:
    """Yield findings about settings that let callers use the operator's key although no proxy identifies them."""
    server = settings.server
    if settings.operator_pays and "*" in server.allowed_origins:
        text = "server.allowed_origins lets every page of the web spend the key in api_key_env"
        yield Finding("fatal", "callers", text, "List the origins of your own pages there, in place of *.")
    if settings.clients.header is not None and any(network.prefixlen == 0 for network in server.trusted_proxies):
        text = "server.trusted_proxies holds every address, so that every caller names itself in clients.header"
        yield Finding("fatal", "callers", text, "List the addresses of your own proxies there.")
    if settings.clients.header is not None or not settings.operator_pays:
        return
    if not is_loopback(server.host):
        by = f"by all who reach {server.host}"
    elif server.trusted_proxies or server.allowed_hosts or server.allow_unauthenticated is True:
        by = "by callers from elsewhere: server.trusted_proxies, server.allowed_hosts or server.allow_unauthenticated"
        by = f"{by} says that there are some"
    else:
        return
    remedy = "Set clients.header and server.trusted_proxies, so that a proxy names each caller."
    yield Finding("fatal", "callers", f"The key in api_key_env would be spent {by}", remedy)


def install_command(extra: str) -> str:
    """Return the command that installs Steno with an extra. `steno` on the Python Package Index is another project."""
    return f"pip install 'PATH-OF-CHECKOUT-OR-WHEEL[{extra}]'"
