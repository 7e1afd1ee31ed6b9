"""Prompt tokens: those of the texts, and a little for each message."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

import msgspec

from app.tokens.estimate import Count

OF_A_PROMPT = 3
OF_A_MESSAGE = 4
OF_MEDIA = 765

_CACHED_PARTS = 50_000
# fmt: off
_MEDIA = frozenset({
    "image", "document", "input_image", "input_file", "container_upload", "image_url", "input_audio", "file",
})
_SILENT = frozenset({
    "type", "id", "role", "status", "call_id", "tool_call_id", "tool_use_id", "cache_control", "signature",
    "prompt_cache_breakpoint", "encrypted_content", "data", "annotations", "logprobs", "phase", "caller", "detail",
    "internal_chat_message_metadata_passthrough", "mimeType",
})
# fmt: on
"""Members that the model does not read."""


class Counting:
    """Counts parts as they stand; one that was counted before costs a look-up."""

    def __init__(self, count: Count) -> None:
        self._count = count
        self._of = lru_cache(_CACHED_PARTS)(self._afresh)

    def head(self, values: Iterable[Any]) -> int:
        """Tokens of a prompt but for its messages."""
        return OF_A_PROMPT + sum(map(self.texts, values))

    def part(self, value: Any) -> int:
        """Tokens of a message or an item."""
        return OF_A_MESSAGE + self.texts(value)

    def texts(self, value: Any) -> int:
        return self._of(msgspec.json.encode(value, order="deterministic")) if value else 0

    def _afresh(self, raw: bytes) -> int:
        return sum(OF_MEDIA if text is None else self._count(text) for text in texts_in(msgspec.json.decode(raw)))


def texts_in(value: Any) -> Iterator[str | None]:
    """Every text that the model reads; None for a picture or a file."""
    match value:
        case str():
            yield value
        case list():
            for each in value:
                yield from texts_in(each)
        case {"type": str(kind)} if kind in _MEDIA:
            yield None
        case dict():
            for key, each in value.items():
                if key not in _SILENT:
                    yield from texts_in(each)
        case bool() | None:
            pass
        case _:
            yield str(value)
