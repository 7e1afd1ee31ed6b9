"""tiktoken, without the network: counts that cannot fail, from tables that were fetched before."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from app.providers.token_tables import TABLES, is_in
from app.tokens.estimate import utf8_length

if TYPE_CHECKING:
    from tiktoken import Encoding

SLICE = 50_000
"""Characters per call: a million blanks at once make tiktoken panic."""
WORD = 16
"""Characters of texts that come again and again, such as roles and the names of tools: their counts are kept."""
MOST_WORDS = 2_000
BYTES_PER_TOKEN = 3.3
"""The heuristic without tables: real messages have more bytes a token in 99 of 100 cases."""


@dataclass(frozen=True, slots=True)
class Counter:
    """Counts the tokens of a text in one encoding."""

    encoding: str
    tiktoken: Encoding | None
    """None: no verified table was found; the count is the byte heuristic."""

    _words: dict[str, int] = field(default_factory=dict, compare=False)

    @property
    def heuristic(self) -> bool:
        return self.tiktoken is None

    def __call__(self, text: str) -> int:
        if len(text) > WORD:
            return self._count(text)
        if (tokens := self._words.get(text)) is None:
            if len(self._words) >= MOST_WORDS:
                self._words.clear()
            tokens = self._words[text] = self._count(text)
        return tokens

    def _count(self, text: str) -> int:
        if self.tiktoken is None:
            return by_bytes(utf8_length(text))
        if len(text) > SLICE:
            return sum(self._count(text[start : start + SLICE]) for start in range(0, len(text), SLICE))
        try:
            return len(self.tiktoken.encode_ordinary(text))  # A text may hold <|endoftext|>, and that is text, too.
        except Exception:  # noqa: BLE001 - whatever the text does to it, a count never fails a request.
            return by_bytes(utf8_length(text))


class Tokenizer:
    """The counters of all encodings, each table verified at the start and loaded at its first use."""

    def __init__(self, folder: Path | None = None) -> None:
        self._places = {encoding: _verified(encoding, folder) for encoding in TABLES}
        self._counters: dict[str, Counter] = {}
        self._loading = Lock()

    @property
    def missing(self) -> list[str]:
        """Encodings that are only estimated by bytes."""
        return [encoding for encoding, place in self._places.items() if place is None]

    def counter(self, encoding: str) -> Counter:
        with self._loading:
            if encoding not in self._counters:
                place = self._places[encoding]
                self._counters[encoding] = Counter(encoding, None if place is None else _encoding_from(encoding, place))
            return self._counters[encoding]


def _verified(encoding: str, folder: Path | None) -> Path | None:
    """First place that has the encoding's table, verified by its hash."""
    return next((place for place in _places(folder) if is_in(place, encoding)), None)


def _encoding_from(encoding: str, place: Path) -> Encoding:
    """Loads from a verified folder: the hash matches, so tiktoken neither downloads nor deletes anything."""
    import tiktoken  # noqa: PLC0415 - 0.1 s that a process without tables need not spend

    before = os.environ.get("TIKTOKEN_CACHE_DIR")
    os.environ["TIKTOKEN_CACHE_DIR"] = str(place)
    try:
        loaded = tiktoken.get_encoding(encoding)
        # What it was made from, as Python objects: 28 MB that counting has no use for.
        loaded._mergeable_ranks = {}  # noqa: SLF001 - there is no other way
        return loaded
    finally:
        if before is None:
            del os.environ["TIKTOKEN_CACHE_DIR"]
        else:
            os.environ["TIKTOKEN_CACHE_DIR"] = before


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
    """The heuristic estimate of so many bytes of UTF-8."""
    return -int(-size // BYTES_PER_TOKEN)
