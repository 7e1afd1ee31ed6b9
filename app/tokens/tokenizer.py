"""Tokenizer: token counts by tiktoken without network access, and the download of its tables. Counting never fails.

Steno does not include the tables of OpenAI's two encodings. A PyPI package contains them. pip or uv downloads this
package through the configured mirror and proxy. The package's name, version and hashes are locked.

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
from collections.abc import Iterator
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tiktoken import Encoding

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
"""Tables by encoding: tiktoken's file name, which is the SHA-1 of the source URL, and the SHA-256 of the file."""
INSIDE = "llama_index/core/_static/tiktoken_cache"
"""Folder of the tables in the package."""
SLICE = 50_000
"""Characters per call of tiktoken, which panics on a million blanks."""
BYTES_PER_TOKEN = 3.3
"""Assumed bytes per token if the table is missing. 99 of 100 real messages have more bytes per token."""
_ENVIRONMENT = Lock()
"""Lock held while a table is loaded: each load sets an environment variable, from which tiktoken reads the folder."""


class Counter:
    """Token counter of one encoding. The first text loads the table, which takes 40 MB of memory and 0.25 seconds."""

    def __init__(self, encoding: str, place: Path | None) -> None:
        """`place` is the folder with the verified table. If it is None, tokens are estimated by bytes."""
        self.encoding = encoding
        self._place = place
        self._table: Encoding | None = None

    @property
    def is_ready(self) -> bool:
        """Whether counting is possible without loading a table first."""
        return self._place is None or self._table is not None

    def __call__(self, text: str) -> int:
        table = self._table or self._load()
        if table is None:
            return by_bytes(len(text.encode("utf-8", "surrogatepass")))
        if len(text) > SLICE:
            return sum(self(text[start : start + SLICE]) for start in range(0, len(text), SLICE))
        try:
            return len(table.encode_ordinary(text))  # `<|endoftext|>` counts as plain text.
        except Exception:  # noqa: BLE001 - counting must never fail a request.
            return by_bytes(len(text.encode("utf-8", "surrogatepass")))

    def _load(self) -> Encoding | None:
        """Load the table. Its hash was verified, so tiktoken neither downloads nor deletes anything."""
        if self._place is None:
            return None
        import tiktoken  # noqa: PLC0415 - takes 0.1 s, needed with tables only

        with _ENVIRONMENT:
            if self._table is None:
                before = os.environ.get("TIKTOKEN_CACHE_DIR")
                os.environ["TIKTOKEN_CACHE_DIR"] = str(self._place)
                try:
                    table = tiktoken.get_encoding(self.encoding)
                finally:
                    if before is None:
                        del os.environ["TIKTOKEN_CACHE_DIR"]
                    else:
                        os.environ["TIKTOKEN_CACHE_DIR"] = before
                # Free 28 MB of Python objects that counting does not need.
                table._mergeable_ranks = {}  # noqa: SLF001 - there is no other way
                self._table = table
        return self._table


class Tokenizer:
    """Counters of all encodings; the tables are verified at the start."""

    def __init__(self, folder: Path | None = None) -> None:
        places = {
            encoding: next((place for place in _places(folder) if is_in(place, encoding)), None) for encoding in TABLES
        }
        self._counters = {encoding: Counter(encoding, place) for encoding, place in places.items()}
        self.missing = [encoding for encoding, place in places.items() if place is None]
        """Encodings without a table, whose tokens are estimated by bytes."""

    def counter(self, encoding: str) -> Counter:
        return self._counters[encoding]


def _places(folder: Path | None) -> Iterator[Path]:
    """Yield folders that may contain tables, the operator's choice first."""
    if folder is not None:
        yield folder
    for variable in ("TIKTOKEN_CACHE_DIR", "DATA_GYM_CACHE_DIR"):
        if os.environ.get(variable):
            yield Path(os.environ[variable])
    yield Path(__file__).resolve().parents[2] / ".tables"


def by_bytes(size: int) -> int:
    return -int(-size // BYTES_PER_TOKEN)


# Download of the tables

_HERE = Path(__file__).resolve()
_LOCKS = (_HERE.with_name("tables.txt"), _HERE.parents[2] / "requirements" / "tables.txt")
"""Lock file of the package with the tables: its path in a wheel, and in a checkout."""


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
    """Download both tables into the folder and overwrite existing tables. Raise `TablesUnavailable` on failure."""
    with tempfile.TemporaryDirectory() as temporary:
        unpacked = Path(temporary)
        _download(unpacked)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for name, expected in TABLES.values():
                content = (unpacked / INSIDE / name).read_bytes()
                if _digest(content) != expected:
                    raise TablesUnavailable(f"{name} is not the table it should be")
                part = folder / f"{name}.{os.getpid()}.part"
                part.write_bytes(content)
                part.replace(folder / name)  # No reader sees a partial table.
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


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
