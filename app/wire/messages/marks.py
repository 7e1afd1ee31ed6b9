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
    kept: list[bytes] = []
    short = False
    for raw in raw_messages:
        marks = list(_marked(blocks_of(decoded_message(raw).get("content")))) if MARK.encode() in raw else []
        lengths = [_is_long(block[MARK]) for block in marks]
        kept.append(edited(raw, _without_mark) if short and any(lengths) else raw)
        short = short or not all(lengths)
    return kept


def _is_long(mark: object) -> bool:
    return isinstance(mark, Mapping) and mark.get("ttl") == _LONG


def _without_mark(block: dict[str, Any]) -> dict[str, Any]:
    left = {key: value for key, value in block.items() if key != MARK}
    if isinstance(content := block.get("content"), list):
        left["content"] = [_without_mark(inner) if isinstance(inner, dict) else inner for inner in content]
    return left
