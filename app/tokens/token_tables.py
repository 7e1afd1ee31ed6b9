"""Token tables: download and verify the files of OpenAI's two encodings for tiktoken.

Steno does not include the tables. pip or uv downloads a PyPI package that contains them, with this machine's mirror,
proxy and certificates; the package's name, version and hashes are locked.

This module imports the standard library only: scripts/fetch_tables.py runs it before anything else is installed.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

TABLES = {
    "o200k_base": (
        "fb374d419588a4632f3f557e76b4b70aebbca790",
        "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
    ),
    "cl100k_base": (
        "9b5ad71b2ce5302211f9c61530b329a4922fc6a4",
        "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
    ),
}
"""Encoding -> tiktoken's file name (SHA-1 of the source URL), and SHA-256 of the file."""
INSIDE = "llama_index/core/_static/tiktoken_cache"
"""Folder of the tables in the package."""
_HERE = Path(__file__).resolve()
_LOCKS = (_HERE.with_name("tables.txt"), _HERE.parents[2] / "requirements" / "tables.txt")
"""Lock file of the package: its path in a wheel, and in a checkout."""


class TablesUnavailable(Exception):
    """Raised if the tables cannot be downloaded; the message has the reason."""


def missing_in(folder: Path) -> list[str]:
    """Return the encodings whose table is missing from the folder or has another hash."""
    return [encoding for encoding in TABLES if not is_in(folder, encoding)]


def is_in(folder: Path, encoding: str) -> bool:
    name, expected = TABLES[encoding]
    path = folder / name
    return path.is_file() and _digest(path.read_bytes()) == expected


def fetch(folder: Path) -> None:
    """Download both tables into the folder and overwrite existing tables. Raises `TablesUnavailable`."""
    with tempfile.TemporaryDirectory() as temporary:
        unpacked = Path(temporary)
        _download(unpacked)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for name, expected in TABLES.values():
                content = (unpacked / INSIDE / name).read_bytes()
                if _digest(content) != expected:
                    raise TablesUnavailable(f"{name} is not the table it should be")
                _write(folder / name, content)
        except OSError as error:
            raise TablesUnavailable(f"{error.filename}: {error.strerror}") from error


def _download(folder: Path) -> None:
    """Download and unpack the package without running its code."""
    lock = next(path for path in _LOCKS if path.is_file())
    command = [*_installer(), "--quiet", "--target", str(folder), "--no-deps", "--no-compile"]
    command += ["--only-binary", ":all:", "--require-hashes", "--requirement", str(lock)]
    # Without a network, the start must not take minutes.
    patience = {"PIP_RETRIES": "2", "PIP_DEFAULT_TIMEOUT": "20", "UV_HTTP_RETRIES": "2", "UV_HTTP_TIMEOUT": "20"}
    quiet = {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1", "PIP_ROOT_USER_ACTION": "ignore"}
    ended = subprocess.run(command, env={**os.environ, **patience, **quiet}, check=False)  # noqa: S603 - our command
    if ended.returncode != 0:
        raise TablesUnavailable("the package that holds them could not be downloaded")


def _installer() -> list[str]:
    """Return the command that installs a package: pip, or uv in an environment without pip."""
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip", "install"]
    if uv := os.environ.get("UV") or shutil.which("uv"):  # uv sets `UV` for its child processes.
        return [uv, "pip", "install", "--python", sys.executable]
    raise TablesUnavailable("neither pip nor uv is here to download the package that holds them")


def _write(path: Path, content: bytes) -> None:
    """Write a temporary file, then rename it, so that no reader sees a partial table."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    part.write_bytes(content)
    part.replace(path)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
