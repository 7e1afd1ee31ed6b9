"""The token tables: OpenAI's two encodings as tiktoken reads them, known by their hashes, and how they are fetched.

They are not part of Steno. A package of the Python registry holds them byte for byte; its name, version and hashes are
locked, and the client that is here, pip or uv, downloads it with the mirror, proxy and certificates of this machine.

Standard library only: scripts/fetch_tables.py runs it before anything else is installed.
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
"""Encoding -> the file name tiktoken looks for (sha1 of its source's address) and the sha256 of its bytes."""
INSIDE = "llama_index/core/_static/tiktoken_cache"
"""Their folder in the package."""
_HERE = Path(__file__).resolve()
_LOCKS = (_HERE.with_name("tables.txt"), _HERE.parents[2] / "requirements" / "tables.txt")
"""The package with its hashes: where a wheel has it, and where a checkout has it."""


class TablesUnavailable(Exception):
    """The tables could not be fetched; the message says why."""


def missing_in(folder: Path) -> list[str]:
    """Encodings whose table is not in the folder, or is not what it should be."""
    return [encoding for encoding in TABLES if not is_in(folder, encoding)]


def is_in(folder: Path, encoding: str) -> bool:
    name, expected = TABLES[encoding]
    path = folder / name
    return path.is_file() and _digest(path.read_bytes()) == expected


def fetch(folder: Path) -> None:
    """Download both tables into the folder, over those that are there. Raises `TablesUnavailable`."""
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
    """The package, unpacked. Its code is not run."""
    lock = next(path for path in _LOCKS if path.is_file())
    command = [*_installer(), "--quiet", "--target", str(folder), "--no-deps", "--no-compile"]
    command += ["--only-binary", ":all:", "--require-hashes", "--requirement", str(lock)]
    # Without a network a start should be late by seconds, not by minutes.
    patience = {"PIP_RETRIES": "2", "PIP_DEFAULT_TIMEOUT": "20", "UV_HTTP_RETRIES": "2", "UV_HTTP_TIMEOUT": "20"}
    quiet = {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1", "PIP_ROOT_USER_ACTION": "ignore"}
    ended = subprocess.run(command, env={**os.environ, **patience, **quiet}, check=False)  # noqa: S603 - our command
    if ended.returncode != 0:
        raise TablesUnavailable("the package that holds them could not be downloaded")


def _installer() -> list[str]:
    """Command that installs a package: uv's where there is no pip, as in environments that uv made."""
    if importlib.util.find_spec("pip") is not None:
        return [sys.executable, "-m", "pip", "install"]
    if uv := os.environ.get("UV") or shutil.which("uv"):  # uv names itself to what it runs.
        return [uv, "pip", "install", "--python", sys.executable]
    raise TablesUnavailable("neither pip nor uv is here to download the package that holds them")


def _write(path: Path, content: bytes) -> None:
    """Write beside the target, then rename: a reader never sees half a table."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    part.write_bytes(content)
    part.replace(path)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
