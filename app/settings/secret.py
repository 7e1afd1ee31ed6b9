"""The server's secret, the key of all digests: as it is set, or made once and kept beside the SQLite file."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from app.settings.settings import Settings
from app.settings.types import ConfigurationError
from app.store.engine import read_url
from app.store.schema import make_folder

SECRET_BYTES = 32
_OF_THIS_PROCESS = secrets.token_bytes(SECRET_BYTES)
"""Secret for a database in memory, which is one process' own as well."""


def server_secret(settings: Settings) -> bytes:
    """Key of all digests: as set, or made once beside the SQLite file. Raises `ConfigurationError`."""
    if settings.secret is not None:
        return settings.secret.get_secret_value().encode()
    address = read_url(settings.storage.address)
    return _kept_secret(secret_beside(address.path)) if address.path else _OF_THIS_PROCESS


def existing_secret(settings: Settings) -> bytes:
    """Key of all digests, without making one: empty if it is missing or cannot be read."""
    path = read_url(settings.storage.address).path
    if settings.secret is not None or path is None:
        return server_secret(settings)
    try:
        return secret_beside(path).read_bytes().strip()
    except OSError:
        return b""


def secret_beside(database: Path) -> Path:
    """File beside a SQLite file that keeps its secret."""
    return database.with_suffix(".secret")


def _kept_secret(path: Path) -> bytes:
    """Read the secret; make it first where it is missing, readable by the owner only. Of two processes that start
    together one makes it."""
    fresh = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        make_folder(path.parent)
        with open(fresh, "w", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            file.write(secrets.token_hex(SECRET_BYTES))
        try:
            os.link(fresh, path)  # Fails if it is there already: never overwritten, never seen half written.
        except FileExistsError:
            pass
        finally:
            fresh.unlink()
        return path.read_bytes().strip()
    except OSError as error:
        raise ConfigurationError(f"The server secret {path} cannot be made or read: {error.strerror}.") from error
