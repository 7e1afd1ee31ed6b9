"""Prompt tokens in the formats without a formula of their own here: those of the texts, and a little for each part."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import msgspec

from app.core.tokens.estimate import Count

OF_A_PROMPT = 3
OF_A_PART = 4
OF_MEDIA = 765

_CACHED_PARTS = 50_000
_MEDIA = frozenset({"image", "document", "input_image", "input_file", "container_upload"})
# fmt: off
_SILENT = frozenset({
    "type", "id", "role", "status", "call_id", "tool_use_id", "cache_control", "signature", "encrypted_content", "data",
    "annotations", "logprobs", "phase", "caller", "detail", "internal_chat_message_metadata_passthrough",
})
# fmt: on
"""Members that the model does not read."""


class Counting:
    """Counts parts as they stand; one that was counted before costs a look-up."""

    def __init__(self, count: Count) -> None:
        self._count = count
        self._of = lru_cache(_CACHED_PARTS)(self._afresh)

    def part(self, value: Any) -> int:
        """Tokens of a message or an item."""
        return OF_A_PART + self.texts(value)

    def texts(self, value: Any) -> int:
        return self._of(msgspec.json.encode(value, order="deterministic")) if value else 0

    def _afresh(self, raw: bytes) -> int:
        media, texts = 0, []
        for text in texts_in(msgspec.json.decode(raw)):
            if text is None:
                media += OF_MEDIA
            else:
                texts.append(text)
        return media + sum(map(self._count, texts))


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
