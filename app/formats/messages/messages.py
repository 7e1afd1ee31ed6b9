"""Messages: what one of them says, and the bytes that stand for what it means.

A raw message is one of three: the value of `system`, which is a text or a list of blocks; an object out of `messages`;
or several of those together, up to the provider's own compaction: what stands before it is no longer read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any

from msgspec.structs import replace

from app.conversation.authored_text import result_confidence
from app.conversation.client_context import is_client_text
from app.conversation.messages import Kind, Media, Message, ToolCall
from app.conversation.tool_results import ResultConfidence
from app.formats.media import file_of, pixels
from app.formats.messages.spec import SPEC, SYSTEM
from app.formats.raw_json import (
    Unreadable,
    decoded_value,
    json_text,
    objects_in,
    text_at,
)
from app.formats.reader import Draft, canonical_part, stated, written_alike
from app.formats.rendering import CACHE_CONTROL, Breakpoints, Place

Json = Mapping[str, Any]
MARK = CACHE_CONTROL
SEALED = frozenset({"thinking", "redacted_thinking"})
"""Signed over all that stands before them: a provider takes them as they came, and in their place, or not at all."""
SERVER_USES = frozenset({"server_tool_use", "mcp_tool_use"})
"""Calls that the provider makes itself; their results stand in the assistant's messages too."""
_RESULT = "tool_result"
_SERVER_RESULT = "_tool_result"
_READ = frozenset({"text", "title", "url", "stdout", "stderr", "content"})
"""Members that a model is shown of the results that the provider makes, in whichever object it stands."""


def decoded_messages(raw: bytes) -> list[dict[str, Any]]:
    """One message, or several as they stand in a history, with the commas between them. Raises `Unreadable`."""
    messages = decoded_value(b"[%b]" % raw)
    if not isinstance(messages, list) or len(objects_in(messages)) < len(messages):
        raise Unreadable("A message is no object.")
    return messages


def blocks_of(content: object) -> list[dict[str, Any]]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return objects_in(content)


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
            yield from texts_in_block(block)


def texts_in_block(block: dict[str, Any]) -> Iterator[Place]:
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


FILES = frozenset({"document", "container_upload"})
READ = SEALED | SERVER_USES | {"text", "tool_use", "search_result", "compaction", "fallback", "mcp_tool_listing"}
"""Blocks that are read as something else, or that no model is shown."""


def media_in(content: object) -> Iterator[Media]:
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


_PASSED_ON = ("document", "search_result")
"""Blocks that a tool may have returned beside its result."""


def is_beside(raw: bytes) -> bool:
    """Whether a raw message is the value of `system`, which stands beside the messages."""
    return raw[:1] in (b'"', b"[")


def read_message(raw: bytes, ignore: Sequence[re.Pattern[str]] = ()) -> Draft:
    """Raises `Unreadable` where an element is no message."""
    if is_beside(raw):
        messages = decoded_messages(b'{"role":"system","content":%b}' % raw)
    else:
        messages = decoded_messages(raw)
    meaning = [_canonical(message, ignore) for message in messages]
    if len(messages) > 1 or any(map(is_compaction, blocks_of(messages[0].get("content")))):
        return Draft(_compacted(messages, raw), written_alike(meaning))
    return Draft(_read(messages[0], raw), written_alike(meaning[0]))


def _read(message: dict[str, Any], raw: bytes) -> Message:
    role = message.get("role")
    if not isinstance(role, str):
        raise Unreadable("A message has no role.")
    blocks = blocks_of(message.get("content"))
    expires = role == SYSTEM and message.get("clear_at") == "next_user_message"
    kind = Kind.OTHER if expires else SPEC.roles.get(role, Kind.OTHER)
    places = tuple(texts_in(message))
    texts = tuple(holder[key] for holder, key in places)
    answers = tuple(text_at(block, "tool_use_id") for block in blocks if is_result(block)) if kind is Kind.USER else ()
    passed_on = _passed_on(blocks, places) if kind is Kind.USER else ()
    beside: tuple[int, ...] = ()
    if kind is Kind.USER and _is_client_text(blocks):
        kind = Kind.RESULT if answers else Kind.CLIENT
        beside = tuple(place for place in range(len(texts)) if place not in passed_on) if answers else ()
        passed_on = ()
    returned = {block.get("tool_use_id") for block in blocks if is_server_result(block)}
    served = [block for block in blocks if block.get("type") in SERVER_USES]
    return Message(
        kind=kind,
        role=role,
        texts=texts,
        raw=raw,
        digest=b"",
        calls=tuple(_call(block) for block in blocks if block.get("type") == "tool_use"),
        answers=answers,
        owners=_owners(blocks) if answers else (),
        failed=_failed(blocks) if answers else (),
        settled=tuple(map(_call, served)),
        media=tuple(media_in(message.get("content"))),
        thoughts=tuple(_thoughts(blocks)),
        passed_on=passed_on,
        beside=beside,
        result_confidence=result_confidence(texts)
        if kind is Kind.USER and all(block.get("type") == "text" for block in blocks)
        else ResultConfidence.NONE,
        encrypted=sum(
            len(text_at(block, "signature")) + len(text_at(block, "data")) for block in blocks if is_sealed(block)
        ),
        sealed=expires or (bool(blocks) and all(map(is_sealed, blocks))),
        expires=expires,
        signed_thinking=any(block.get("type") in SEALED for block in blocks),
        # A turn was paused before the provider's own result, which the assistant's next message begins with.
        bound=any(block.get("id") not in returned for block in served),
    )


def _is_client_text(blocks: Sequence[Json]) -> bool:
    """Whether nothing in a user's message is his own: results, what came with them, and what his program says."""
    holds_results = any(map(is_result, blocks))
    came = ("tool_result", *_PASSED_ON) if holds_results else ()
    said = [block for block in blocks if block.get("type") not in came]
    if not said:
        return holds_results
    return all(block.get("type") == "text" for block in said) and is_client_text(
        [text_at(block, "text") for block in said]
    )


def _owners(blocks: Sequence[dict[str, Any]]) -> tuple[int, ...]:
    """Places among the results by the texts of a message, -1 for those outside; empty where all are of the first."""
    owners = list[int]()
    results = count()
    for block in blocks:
        owner = next(results) if is_result(block) else -1
        owners += [owner for _ in texts_in({"content": [block]})]
    return tuple(owners) if any(owners) else ()


def _failed(blocks: Sequence[Json]) -> tuple[int, ...]:
    results = filter(is_result, blocks)
    return tuple(place for place, block in enumerate(results) if block.get("is_error") is True)


def _passed_on(blocks: Sequence[Json], places: Sequence[Place]) -> tuple[int, ...]:
    """Places of the texts of results and documents among those of a message: all that are in no block of text."""
    own = {id(block) for block in blocks if block.get("type") == "text"}
    if len(own) == len(blocks):
        return ()
    return tuple(place for place, (holder, _) in enumerate(places) if id(holder) not in own)


def _compacted(messages: Sequence[dict[str, Any]], raw: bytes) -> Message:
    """A compacted history, read as instructions: it is never moved, counted as it is, and cut behind only. Its texts
    are those from the last compaction on."""
    last = max(i for i, message in enumerate(messages) if holds_compaction(message))
    blocks = blocks_of(messages[last].get("content"))
    first = max(place for place, block in enumerate(blocks) if is_compaction(block))
    read = [{"content": blocks[first:]}, *messages[last + 1 :]]
    return Message(
        kind=Kind.INSTRUCTIONS,
        role="assistant",
        texts=tuple(holder[key] for message in read for holder, key in texts_in(message)),
        raw=raw,
        digest=b"",
        media=tuple(media for message in read for media in media_in(message.get("content"))),
    )


def holds_compaction(message: Json) -> bool:
    return any(map(is_compaction, blocks_of(message.get("content"))))


def is_sealed(block: Json) -> bool:
    return block.get("type") in SEALED


def _call(block: Json) -> ToolCall:
    return ToolCall(text_at(block, "id"), text_at(block, "name"), written(block.get("input")))


def written(arguments: object) -> str:
    return json_text({} if arguments is None else arguments)


def _thoughts(blocks: Sequence[Json]) -> list[str]:
    """Thoughts: text to the model that is never quoted."""
    thoughts = [text for block in blocks if (text := text_at(block, "thinking"))]
    listed = (block.get("tools") for block in blocks if block.get("type") == "mcp_tool_listing")
    return [*thoughts, *(written(tools) for tools in listed)]


def _canonical(message: Json, ignore: Sequence[re.Pattern[str]]) -> dict[str, Any]:
    """Bytes of what a message means: a text and one block of text are the same, what is missing, null and empty too.

    Thinking is kept within a turn and dropped behind it, and marks of the cache wander: they mean nothing. Unknown keys
    count. `ignore` removes volatile text, such as a date a client injects.
    """
    content = [
        _canonical_block(block, ignore)
        for block in blocks_of(message.get("content"))
        if block.get("type") not in SEALED
    ]
    return {**stated({**message, "content": None}), "content": content}


def _canonical_block(block: Json, ignore: Sequence[re.Pattern[str]]) -> dict[str, Any]:
    kept: dict[str, Any] = canonical_part(stated(block), SPEC.volatile_members, ignore)
    if is_result(block) and "content" in kept:
        kept["content"] = blocks_of(kept["content"])
    for member, held in kept.items():
        match member, held:
            case "content", list():
                kept[member] = [_canonical_inner(inner, ignore) for inner in held]
            case "source", {"content": list(inner)}:
                kept[member] = {**held, "content": [_canonical_inner(each, ignore) for each in inner]}
    return kept


def _canonical_inner(block: object, ignore: Sequence[re.Pattern[str]]) -> object:
    return _canonical_block(block, ignore) if isinstance(block, dict) else block
