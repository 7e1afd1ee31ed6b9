"""Messages: what one of them says, and the bytes that stand for what it means.

A raw message is one of three: the value of `system`, which is a text or a list of blocks; an object out of `messages`;
or several of those together, up to the provider's own compaction: what stands before it is no longer read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

from app.conversation.authored_text import result_confidence
from app.conversation.client_context import is_client_text
from app.conversation.messages import Kind, Message, ToolCall
from app.conversation.tool_results import ResultConfidence
from app.formats.members import Unreadable
from app.formats.messages.content import (
    SEALED,
    SERVER_USES,
    Place,
    blocks_of,
    decoded_messages,
    is_compaction,
    is_result,
    is_server_result,
    media_in,
    texts_in,
)
from app.formats.objects import NOTHING, json_text, text_at, without, written_alike
from app.formats.types import Draft

Json = Mapping[str, Any]

SYSTEM = "system"
KINDS = {SYSTEM: Kind.INSTRUCTIONS, "user": Kind.USER, "assistant": Kind.ASSISTANT}
VOLATILE_KEYS = frozenset({"cache_control", "citations"})
"""Keys of blocks that move between turns, or are dropped, without changing what a message means."""


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
    kind = Kind.OTHER if expires else KINDS.get(role, Kind.OTHER)
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
    """Places of the results that are marked as errors among the results."""
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
    """A call's input as text: a value in this format."""
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
    return {**{key: value for key, value in message.items() if key != "content" and _says(value)}, "content": content}


def _canonical_block(block: Json, ignore: Sequence[re.Pattern[str]]) -> dict[str, Any]:
    kept = {key: value for key, value in block.items() if key not in VOLATILE_KEYS and _says(value)}
    if isinstance(text := kept.get("text"), str):
        kept["text"] = without(text, ignore)
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


def _says(value: object) -> bool:
    return value not in NOTHING
