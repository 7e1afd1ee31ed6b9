"""Marks of the provider's cache: at most four in a request, none of an hour behind one of five minutes.

None is invented, so there are never more than the client set.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from app.wire.messages.content import MARK, blocks_of, decoded_message, edited

_LONG = "1h"


def last_mark(raw: bytes) -> object:
    """The last one in a message, as its value; None without any."""
    if MARK.encode() not in raw:
        return None
    marks = [block[MARK] for block in _marked(blocks_of(decoded_message(raw).get("content")))]
    return marks[-1] if marks else None


def _marked(blocks: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Blocks with a mark, those inside of results too, which count before their own."""
    for block in blocks:
        if isinstance(block.get("content"), list):
            yield from _marked(blocks_of(block["content"]))
        if block.get(MARK):
            yield block


def in_order(raw_messages: Sequence[bytes]) -> list[bytes]:
    """The messages without the marks of an hour that came behind one of five minutes, as others were moved."""
    if not any(b'"ttl"' in raw for raw in raw_messages):
        return list(raw_messages)
    is_short = False

    def edit(block: dict[str, Any]) -> dict[str, Any]:
        nonlocal is_short
        left = block
        if isinstance(content := block.get("content"), list):
            inner = [edit(held) if isinstance(held, dict) else held for held in content]
            if any(now is not was for now, was in zip(inner, content, strict=True)):
                left = {**left, "content": inner}
        if mark := block.get(MARK):
            if is_short and _is_long(mark):
                return {key: value for key, value in left.items() if key != MARK}
            is_short = is_short or not _is_long(mark)
        return left

    return [edited(raw, edit) if MARK.encode() in raw else raw for raw in raw_messages]


def _is_long(mark: object) -> bool:
    return isinstance(mark, Mapping) and mark.get("ttl") == _LONG
