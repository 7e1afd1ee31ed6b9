"""tiktoken, without the network: counts that cannot fail, from tables that were fetched before."""

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
"""Characters per call: a million blanks at once make tiktoken panic."""
BYTES_PER_TOKEN = 3.3
"""The heuristic without tables: real messages have more bytes a token in 99 of 100 cases."""
_ENVIRONMENT = Lock()
"""Held while a table is loaded, whose folder tiktoken reads from the environment."""


class Counter:
    """Counts the tokens of a text in one encoding. The table is loaded with the first text: that takes a quarter of a
    second, and 40 MB that a process which counts nothing does not need."""

    def __init__(self, encoding: str, place: Path | None) -> None:
        """`place`: the folder with the verified table; None where there is none, and the count is the byte
        heuristic."""
        self.encoding = encoding
        self.heuristic = place is None
        self._place = place
        self._table: Encoding | None = None

    @property
    def is_ready(self) -> bool:
        """Whether no table has to be loaded first."""
        return self._place is None or self._table is not None

    def __call__(self, text: str) -> int:
        table = self._table or self._load()
        if table is None:
            return by_bytes(utf8_length(text))
        if len(text) > SLICE:
            return sum(self(text[start : start + SLICE]) for start in range(0, len(text), SLICE))
        try:
            return len(table.encode_ordinary(text))  # A text may hold <|endoftext|>, and that is text, too.
        except Exception:  # noqa: BLE001 - whatever the text does to it, a count never fails a request.
            return by_bytes(utf8_length(text))

    def _load(self) -> Encoding | None:
        """The table; the hash of its folder matches, so tiktoken neither downloads nor deletes anything."""
        if self._place is None:
            return None
        import tiktoken  # noqa: PLC0415 - 0.1 s that a process without tables need not spend

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
                # What it was made from, as Python objects: 28 MB that counting has no use for.
                table._mergeable_ranks = {}  # noqa: SLF001 - there is no other way
                self._table = table
        return self._table


class Tokenizer:
    """The counters of all encodings, each table verified at the start."""

    def __init__(self, folder: Path | None = None) -> None:
        places = {
            encoding: next((place for place in _places(folder) if is_in(place, encoding)), None) for encoding in TABLES
        }
        self._counters = {encoding: Counter(encoding, place) for encoding, place in places.items()}
        self.missing = [encoding for encoding, place in places.items() if place is None]
        """Encodings that are only estimated by bytes."""

    def counter(self, encoding: str) -> Counter:
        return self._counters[encoding]


def _places(folder: Path | None) -> Iterator[Path]:
    """Places where tables may lie, the operator's choice first. A package is located, never imported."""
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
