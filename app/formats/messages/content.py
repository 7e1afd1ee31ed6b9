"""Content: the blocks of a message, where in them texts stand, and what in them is no text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from app.conversation.messages import Media
from app.formats.breakpoints import CACHE_CONTROL, Breakpoints
from app.formats.documents import file_of
from app.formats.media import pixels
from app.formats.members import RawObject, Unreadable, check_keys, split_array
from app.formats.objects import objects_in, text_at
from app.formats.surrogates import decoded

Json = Mapping[str, Any]
Place = tuple[dict[str, Any], str]
"""A text as a member of what holds it."""

MARK = CACHE_CONTROL
SEALED = frozenset({"thinking", "redacted_thinking"})
"""Signed over all that stands before them: a provider takes them as they came, and in their place, or not at all."""
SERVER_USES = frozenset({"server_tool_use", "mcp_tool_use"})
"""Calls that the provider makes itself; their results stand in the assistant's messages too."""
_RESULT = "tool_result"
_SERVER_RESULT = "_tool_result"
_READ = frozenset({"text", "title", "url", "stdout", "stderr", "content"})
"""Members that a model is shown of the results that the provider makes, in whichever object it stands."""


def decoded_message(raw: bytes) -> dict[str, Any]:
    """Raises `Unreadable` for what is no object."""
    value = _decoded(raw)
    if not isinstance(value, dict):
        raise Unreadable("A message is no object.")
    return value


def decoded_messages(raw: bytes) -> list[dict[str, Any]]:
    """One message, or several as they stand in a history, with the commas between them. Raises `Unreadable`."""
    values = _decoded(b"[%b]" % raw)
    if not all(isinstance(value, dict) for value in values):
        raise Unreadable("A message is no object.")
    messages: list[dict[str, Any]] = values
    return messages


def _decoded(raw: bytes) -> Any:
    try:
        value = decoded(raw, msgspec.json.decode)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Unreadable(str(error)) from error
    check_keys(raw, value)
    return value


def blocks_of(content: object) -> list[dict[str, Any]]:
    """Blocks of a content; a text is one block of text."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return objects_in(content)


def is_raw_result(raw: bytes) -> bool:
    """Whether a block, as it stands in a message, is one; whatever else stands there is none."""
    block = _decoded(raw)
    return isinstance(block, dict) and is_result(block)


def is_result(block: Json) -> bool:
    return block.get("type") == _RESULT


def is_server_result(block: Json) -> bool:
    kind = block.get("type")
    return isinstance(kind, str) and kind.endswith(_SERVER_RESULT)


def is_compaction(block: Json) -> bool:
    """Whether it is the provider's own summary of what stands before it; one that failed is empty."""
    return block.get("type") == "compaction" and bool(block.get("content") or block.get("encrypted_content"))


def texts_in(message: dict[str, Any]) -> Iterator[Place]:
    """Places of the texts of a message, in order."""
    if isinstance(message.get("content"), str):
        yield message, "content"
    else:
        for block in blocks_of(message.get("content")):
            yield from _texts_in_block(block)


def _texts_in_block(block: dict[str, Any]) -> Iterator[Place]:
    match block:
        case {"type": "text", "text": str()}:
            yield block, "text"
        case {"type": "document", "source": {"type": "text", "data": str()} as source}:
            yield source, "data"
        case {"type": "document", "source": {"type": "content"} as source}:
            yield from texts_in(source)
        case {"type": "tool_result" | "search_result"}:
            yield from texts_in(block)
        case {"type": "compaction", "content": str()}:
            yield block, "content"
        case {"type": str()} if is_server_result(block):
            yield from _texts_in_result(block.get("content"))


def _texts_in_result(value: object) -> Iterator[Place]:
    if isinstance(value, list):
        for item in value:
            yield from _texts_in_result(item)
    elif isinstance(value, dict):
        for key, held in value.items():
            if isinstance(held, str):
                if key in _READ or (key == "data" and value.get("type") == "text"):
                    yield value, key
            else:
                yield from _texts_in_result(held)


Edit = Callable[[dict[str, Any]], dict[str, Any] | None]
"""A function to what is left of a block: the very same where it stays as it is, None where nothing is left."""


def edited(raw: bytes, edit: Edit) -> bytes:
    """A message with its blocks edited; those that stay keep their bytes. Empty where no block is left."""
    message = decoded_message(raw)
    if not isinstance(message.get("content"), list):
        return raw
    kept, changed = [], False
    for block, element in zip(message["content"], raw_blocks(raw), strict=True):
        left = edit(block) if isinstance(block, dict) else block
        changed = changed or left is not block
        if left is not None:
            kept.append(element if left is block else msgspec.json.encode(left))
    if not kept:
        return b""
    return with_content(raw, b"[%b]" % b",".join(kept)) if changed else raw


def raw_blocks(raw: bytes) -> list[bytes]:
    """A message's blocks, each with its own bytes; a text is one block of text."""
    try:
        content = RawObject(raw).raw("content") or b"[]"
    except Unreadable:  # A key that stands twice, for one: as it was read, with the last of them.
        content = msgspec.json.encode(decoded_message(raw).get("content") or [])
    if content.startswith(b"["):
        return split_array(content)
    return [msgspec.json.encode(block) for block in blocks_of(decoded_message(raw).get("content"))]


def with_content(raw: bytes, content: bytes) -> bytes:
    """A message with another content; the rest keeps its bytes."""
    try:
        return RawObject(raw).spliced({"content": content})
    except Unreadable:
        return msgspec.json.encode({**decoded_message(raw), "content": msgspec.Raw(content)})


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
                yield replace(file_of(data), name=text_at(block, "title"))
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


BREAKPOINTS = Breakpoints(
    (MARK,),
    frozenset({"text", "image", "document", "search_result", "tool_use", "tool_result"}),
    lambda _: "text",
)
