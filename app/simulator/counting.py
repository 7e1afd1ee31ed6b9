"""Counting: what a prompt costs, and how much of it a recent prompt shared."""

from __future__ import annotations

import hashlib
import os
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any

import msgspec
import tiktoken

from app.simulator.messages import texts_of

Count = Callable[[str], int]

TABLE = "fb374d419588a4632f3f557e76b4b70aebbca790"
TABLE_SHA256 = "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"

PER_MESSAGE = 3
REPLY_PRIME = 3
PER_CALL = 5
PER_MEDIA = 765
"""An image of 1024 x 1024 on gpt-4o; audio and files are taken for the same. Their bytes are never counted as text."""

_SLICE = 50_000
_loading = threading.Lock()


def default_count(tables: Path | None = None) -> Count:
    """o200k_base if its verified table lies in `tables` or TIKTOKEN_CACHE_DIR, else a quarter of the bytes."""
    named = os.environ.get("TIKTOKEN_CACHE_DIR")
    for folder in (tables, Path(named) if named else None):
        if folder is not None and _holds_table(folder):
            return _token_count(_load_encoding(folder))
    return quarter_of_bytes


def quarter_of_bytes(text: str) -> int:
    return -(-len(text.encode("utf-8", "surrogatepass")) // 4)


def _holds_table(folder: Path) -> bool:
    # get_encoding would delete a damaged table and download another.
    table = folder / TABLE
    return table.is_file() and hashlib.sha256(table.read_bytes()).hexdigest() == TABLE_SHA256


def _load_encoding(folder: Path) -> tiktoken.Encoding:
    with _loading:
        before = os.environ.get("TIKTOKEN_CACHE_DIR")
        os.environ["TIKTOKEN_CACHE_DIR"] = str(folder)
        try:
            return tiktoken.get_encoding("o200k_base")
        finally:
            if before is None:
                del os.environ["TIKTOKEN_CACHE_DIR"]
            else:
                os.environ["TIKTOKEN_CACHE_DIR"] = before


def _token_count(encoding: tiktoken.Encoding) -> Count:
    def count(text: str) -> int:
        # Slices: tiktoken fails on a million spaces in one piece.
        pieces = (text[start : start + _SLICE] for start in range(0, len(text), _SLICE))
        return sum(len(encoding.encode(piece, disallowed_special=())) for piece in pieces)

    return count


def message_tokens(message: Mapping[str, Any], count: Count) -> int:
    """Tokens of one message: 3, its role, its texts, and whatever it calls or names."""
    total = PER_MESSAGE + count(message["role"]) + sum(map(count, texts_of(message)))
    content = message.get("content")
    if isinstance(content, list):
        total += sum(_part_tokens(part, count) for part in content)
    for key in ("name", "refusal"):
        if message.get(key):
            total += count(message[key])
    calls = [call[call["type"]] for call in message.get("tool_calls") or ()]
    if message.get("function_call"):
        calls.append(message["function_call"])
    return total + sum(_call_tokens(call, count) for call in calls)


def _part_tokens(part: Mapping[str, Any], count: Count) -> int:
    if part["type"] == "text":
        return 0  # counted with the texts
    return count(part["refusal"]) if part["type"] == "refusal" else PER_MEDIA


def _call_tokens(call: Mapping[str, Any], count: Count) -> int:
    return PER_CALL + count(call["name"]) + count(call.get("arguments", call.get("input", "")))


def extras_tokens(arguments: Mapping[str, Any], count: Count) -> int:
    """Tokens of tools, functions and a response schema, as their JSON."""
    values = [arguments.get(name) for name in ("tools", "functions")]
    response_format = arguments.get("response_format")
    if isinstance(response_format, dict):
        values.append(response_format.get("json_schema"))
    return sum(count(msgspec.json.encode(value).decode()) for value in values if value)


class PromptCache:
    """Remembers recent prompts, to say how much of a new one any of them began with, in whole parts."""

    def __init__(self, remembered: int = 64) -> None:
        self._prompts: deque[list[int]] = deque()
        self._prefixes: Counter[int] = Counter()
        self._remembered = remembered

    def shared_parts(self, parts: Iterable[bytes]) -> int:
        """How many leading parts a remembered prompt has too; then remember this one."""
        prefixes = list(accumulate(parts, lambda before, part: hash((before, part)), initial=0))[1:]
        shared = next((index for index, prefix in enumerate(prefixes) if prefix not in self._prefixes), len(prefixes))
        self._prompts.append(prefixes)
        self._prefixes.update(prefixes)
        if len(self._prompts) > self._remembered:
            self._forget(self._prompts.popleft())
        return shared

    def _forget(self, prefixes: list[int]) -> None:
        for prefix in prefixes:
            self._prefixes[prefix] -= 1
            if not self._prefixes[prefix]:
                del self._prefixes[prefix]
