"""The files of a SQLite database: private to the user who runs Steno, because summaries are plain text."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import structlog

log = structlog.get_logger("steno.store")

PRIVATE_FILE = 0o600
PRIVATE_FOLDER = 0o700
OTHERS = 0o077
"""The rights of everybody but the owner."""


def make_file(database: Path) -> None:
    """Makes the file where it is missing. SQLite gives those it puts beside it the same mode. Raises OSError."""
    with suppress(FileExistsError):
        # Only a new one: closing a file that was there would end the locks that this process has on it.
        os.close(os.open(database, os.O_RDWR | os.O_CREAT | os.O_EXCL, PRIVATE_FILE))


def beside(database: Path) -> tuple[Path, Path]:
    """The two files that SQLite keeps beside the database while it is open."""
    return database.with_name(f"{database.name}-wal"), database.with_name(f"{database.name}-shm")


def make_folder(folder: Path) -> None:
    """Makes it and those above it; what is there already keeps its mode, whoever made it. Raises OSError."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)


def obstacle(database: Path) -> str | None:
    """Why the file cannot be opened for writing, or made with its folder; None if nothing is in the way."""
    if database.is_dir():
        return "it is a folder"
    if database.exists() and not os.access(database, os.R_OK | os.W_OK):
        return "it cannot be read and written"
    folder = next(path for path in database.absolute().parents if path.exists())
    if not folder.is_dir():
        return f"{folder} is no folder"
    return None if os.access(folder, os.W_OK | os.X_OK) else f"{folder} cannot be written"


def open_to_others(database: Path) -> Iterator[Path]:
    """The database's files that somebody else may read or write."""
    for path in (database, *beside(database)):
        if path.is_file() and path.stat().st_mode & OTHERS:
            yield path


def close_to_others(database: Path) -> None:
    """Takes others' rights away, as far as the files are ours: earlier releases made them with the usual mode."""
    for path in open_to_others(database):
        mode = stat.S_IMODE(path.stat().st_mode)
        try:
            path.chmod(mode & ~OTHERS)
        except PermissionError:
            log.warning("database file open to others", path=str(path), mode=f"{mode:o}")
        else:
            log.warning("database file closed to others", path=str(path), mode=f"{mode:o}")
