"""Blocks that are no text: pictures, files, and what Steno does not know."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from app.core.history.messages import Media
from app.wire.documents import file_of
from app.wire.media import pixels
from app.wire.messages.content import SEALED, SERVER_USES, blocks_of, is_server_result

FILES = frozenset({"document", "container_upload"})
READ = SEALED | SERVER_USES | {"text", "tool_use", "search_result", "compaction", "fallback", "mcp_tool_listing"}
"""Blocks that are read as something else, or that no model is shown."""


def media_in(content: object) -> Iterator[Media]:
    """Media of a content, those in results and documents, too."""
    for block in blocks_of(content):
        match block:
            case {"type": "image"}:
                yield _image(block.get("source"))
            case {"type": "tool_result"}:
                yield from media_in(block.get("content"))
            case {"type": "document", "source": {"type": "text"}}:
                pass
            case {"type": "document", "source": {"type": "content", "content": held}}:
                yield from media_in(held)
            case {"type": "document", "source": {"type": "base64", "data": str(data)}}:
                yield file_of(data)
            case {"type": str(kind)} if kind not in READ and not is_server_result(block):
                yield Media("file" if kind in FILES else kind, _size(block))


def _image(source: object) -> Media:
    match source:
        case {"type": "base64", "data": str(data)}:
            width, height = pixels(f"data:,{data[: 1 << 20]}")
            return Media("image", len(data), width=width, height=height)
        case _:
            return Media("image", _size(source))


def _size(held: object) -> int:
    """Characters of all texts in it."""
    match held:
        case str():
            return len(held)
        case Mapping():
            return sum(_size(value) for value in held.values())
        case list():
            return sum(_size(value) for value in held)
        case _:
            return 0
