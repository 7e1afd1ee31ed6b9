"""Token counts by tiktoken from downloaded tables, without network access. Counting never fails."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from app.tokens.estimate import utf8_length
from app.tokens.token_tables import TABLES, is_in

if TYPE_CHECKING:
    from tiktoken import Encoding

SLICE = 50_000
"""Characters per call of tiktoken, which panics on a million blanks."""
BYTES_PER_TOKEN = 3.3
"""Assumed bytes of a token without tables. 99 of 100 real messages have more bytes per token."""
_ENVIRONMENT = Lock()
"""Lock while a table is loaded, because tiktoken reads its folder from an environment variable."""


class Counter:
    """Token counter of one encoding. The first text loads the table, which takes 40 MB and a quarter of a second."""

    def __init__(self, encoding: str, place: Path | None) -> None:
        """`place` is the folder with the verified table. If it is None, tokens are estimated by bytes."""
        self.encoding = encoding
        self.heuristic = place is None
        self._place = place
        self._table: Encoding | None = None

    @property
    def is_ready(self) -> bool:
        """Whether counting is possible without loading a table first."""
        return self._place is None or self._table is not None

    def __call__(self, text: str) -> int:
        table = self._table or self._load()
        if table is None:
            return by_bytes(utf8_length(text))
        if len(text) > SLICE:
            return sum(self(text[start : start + SLICE]) for start in range(0, len(text), SLICE))
        try:
            return len(table.encode_ordinary(text))  # `<|endoftext|>` counts as plain text.
        except Exception:  # noqa: BLE001 - counting must never fail a request.
            return by_bytes(utf8_length(text))

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
    """Yield folders that may contain tables, the operator's choice first. Packages are located but not imported."""
    if folder is not None:
        yield folder
    for variable in ("TIKTOKEN_CACHE_DIR", "DATA_GYM_CACHE_DIR"):
        if os.environ.get(variable):
            yield Path(os.environ[variable])
    yield Path(__file__).resolve().parents[2] / ".tables"
    for package, inside in (
        ("llama_index", "core/_static/tiktoken_cache"),
        ("litellm", "litellm_core_utils/tokenizers"),
    ):
        spec = importlib.util.find_spec(package)
        for root in spec.submodule_search_locations or () if spec else ():
            yield Path(root) / inside


def by_bytes(size: int) -> int:
    return -int(-size // BYTES_PER_TOKEN)
