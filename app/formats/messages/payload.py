"""Payloads: render a view as messages of Anthropic's format. Verbatim messages keep their bytes.

1. Instructions in the history may stand only between a user's and an assistant's message, or last. If their neighbours
   are gone, Steno moves them to the next such position. Expired instructions (`clear_at`) never move: those of
   earlier turns are dropped; those of the current turn stay because its thinking may be signed over them.
2. A history must begin with a user's message.
3. Cache breakpoints stay on their blocks; a summary gets the last breakpoint of the messages that it replaces. Steno
   adds none here. One of an hour may not follow one of five minutes.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from functools import partial
from itertools import count, pairwise
from typing import Any

import msgspec

from app.compaction.view import Altered, Conversation, Pinned, Summary, Verbatim, View
from app.conversation.messages import Kind
from app.formats.messages.messages import (
    MARK,
    SEALED,
    blocks_of,
    is_beside,
    is_result,
    media_in,
    texts_in_block,
    written,
)
from app.formats.raw_json import decoded_object, decoded_value, object_of
from app.formats.rendering import OPENER, Parts, Placed, edited, joined, kept_breakpoint, placed


def render(conversation: Conversation, view: View, alternate: bool = False) -> list[bytes]:
    """Return the payload's raw messages in order.

    `alternate` joins adjacent user messages, tool results first, for a provider that refuses two in a row; neighbours
    in the client's own history stay separate.
    """
    instructions = [message.raw for message in conversation.instructions]
    messages = conversation.transcript.messages
    if view.parts == (Verbatim(0, len(messages)),) and not view.without_thinking:
        return [*instructions, *(message.raw for message in messages)]
    entries = list(_entries(conversation, view))
    begun = "user" if any(not is_beside(raw) for raw in instructions) else ""
    first = next((entry.role for entry in entries if entry.role != "system"), "")
    if not begun and first == "assistant" and messages and messages[0].kind is not Kind.ASSISTANT:
        entries.insert(0, Placed(msgspec.json.encode(_note(OPENER)), role="user", own=True))
    entries = _settled(entries, begun, messages.expired_places)
    payload = joined(entries, "text", goes_first=_is_raw_result) if alternate else [entry.raw for entry in entries]
    return [*instructions, *in_order(payload)]


def _entries(conversation: Conversation, view: View) -> Iterator[Placed]:
    skipped, history = len(conversation.instructions), conversation.transcript.messages
    turn = history.turn_starts[-1] if history.turn_starts else 0

    def unthinking(raw: bytes) -> bytes | None:
        return edited(raw, lambda block: None if block.get("type") in SEALED else block) or None

    for each in placed(conversation, view, _note, _left, unthinking)[skipped:]:
        if each.place in history.expired_places and each.place < turn:
            continue
        mark = None if each.summary is None else _mark_of(conversation, view, each.summary)
        raw = each.raw if mark is None else edited(each.raw, partial(_marked, mark=mark))
        yield each._replace(raw=raw, role=each.role or "user")


def _marked(block: dict[str, Any], mark: object) -> dict[str, Any]:
    return {**block, MARK: mark}


def _note(text: str) -> Mapping[str, Any]:
    """Return a user message with one block, which may get a cache breakpoint."""
    return {"role": "user", "content": [{"type": "text", "text": text}]}


def _mark_of(conversation: Conversation, view: View, part: Summary) -> object:
    """Return the last cache breakpoint among the messages that this summary alone replaces, if any."""
    messages, positions = conversation.transcript.messages, conversation.chain.positions
    start, stop = (positions[end] for end in (part.chunk.from_digest, part.chunk.through_digest))
    sent = {i for other in view.parts if isinstance(other, Pinned) for i in range(other.start, other.stop)}
    sent |= {start + offset for offset in part.chunk.carried}
    marks = (last_mark(messages[index].raw) for index in range(stop - 1, start - 1, -1) if index not in sent)
    return next((mark for mark in marks if mark is not None), None)


def _without_media(block: dict[str, Any], words: Iterator[str]) -> dict[str, Any]:
    match block:
        case {"type": "tool_result", "content": list(held)}:
            return {**block, "content": [_without_media(inner, words) for inner in held]}
        case {"type": "document", "source": {"type": "content", "content": list(held)} as source}:
            return {**block, "source": {**source, "content": [_without_media(inner, words) for inner in held]}}
        case _ if any(media_in([block])):
            return {"type": "text", "text": next(words), **kept_breakpoint(block)}
        case _:
            return block


def _left(raw: bytes, part: Altered) -> bytes | None:
    left, called = None if part.calls is None else dict(part.calls), count()

    def edit_call(block: dict[str, Any]) -> dict[str, Any] | None:
        if left is None or block.get("type") != "tool_use":
            return block
        arguments = left.get(next(called))
        if arguments is None:
            return None
        is_same = arguments == written(block.get("input"))
        return block if is_same else {**block, "input": msgspec.Raw(arguments.encode())}

    return _PARTS.altered(raw, part.texts, part.media, call=edit_call) or None


def _without_empty(block: dict[str, Any]) -> dict[str, Any] | None:
    """Remove empty text blocks, which providers refuse; None if the block itself is one."""
    if block.get("type") == "text":
        return block if block["text"] else None
    if isinstance(content := block.get("content"), list):
        emptied = [object_of(inner).get("type") == "text" and inner.get("text") == "" for inner in content]
        return {**block, "content": [inner for inner, is_empty in zip(content, emptied, strict=True) if not is_empty]}
    return block


_PARTS = Parts(texts_in_block, _without_media, _without_empty)


def _settled(entries: Sequence[Placed], begun: str, expired: Container[int | None]) -> list[Placed]:
    """Move instructions to the next position that the provider accepts, or drop `expired` ones. `begun` is the role
    before the first entry."""
    placed: list[Placed] = []
    waiting: list[Placed] = []
    turn = begun
    for place, entry in enumerate(entries):
        if entry.role == "system":
            following = next((later.role for later in entries[place + 1 :] if later.role != "system"), "")
            if waiting or turn != "user" or following == "user":
                waiting += [] if entry.place in expired else [entry]
            else:
                placed.append(entry)
            continue
        if turn == "user" and entry.role != "user":
            placed += waiting
            waiting = []
        placed.append(entry)
        turn = entry.role
    if waiting and turn != "user":  # No accepted position follows.
        turns = [(i, entry.role) for i, entry in enumerate(placed) if entry.role != "system"]
        pairs = pairwise(turns)
        before = max((i for (_, one), (i, other) in pairs if (one, other) == ("user", "assistant")), default=0)
        return [*placed[:before], *waiting, *placed[before:]]
    return [*placed, *waiting]


def _is_raw_result(block: bytes) -> bool:
    return is_result(object_of(decoded_value(block)))


_LONG = "1h"


def last_mark(raw: bytes) -> object:
    if MARK.encode() not in raw:
        return None
    marks = [block[MARK] for block in _blocks_marked(blocks_of(decoded_object(raw).get("content")))]
    return marks[-1] if marks else None


def _blocks_marked(blocks: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield blocks with a breakpoint; blocks inside a tool result precede the result."""
    for block in blocks:
        if isinstance(block.get("content"), list):
            yield from _blocks_marked(blocks_of(block["content"]))
        if block.get(MARK):
            yield block


def in_order(raw_messages: Sequence[bytes]) -> list[bytes]:
    """Remove each one-hour breakpoint after a five-minute one, because providers refuse that order."""
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
