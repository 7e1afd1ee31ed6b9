"""Payloads: a view as raw messages. What is verbatim keeps its bytes; what was cut is spliced into them."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from app.core.summary import prompts
from app.core.view.view import Altered, Carried, Conversation, Note, Pinned, Pruned, Summary, Verbatim, View
from app.wire.chat_completions.messages import decoded_message, is_text
from app.wire.members import RawObject, Unreadable

Json = Mapping[str, Any]


def render(conversation: Conversation, view: View, alternate: bool = False) -> list[bytes]:
    """The payload's raw messages in order; what is verbatim keeps its bytes.

    `alternate`: for a provider that refuses two user messages in a row, each summary and each carried message is merged
    with the user message beside it, whose text stays whole.
    """
    messages = conversation.transcript.messages
    payload = [message.raw for message in conversation.instructions]
    notes: set[int] = set()
    carried: set[int] = set()
    for part in view.parts:
        match part:
            case Summary(chunk):
                notes.add(len(payload))
                payload.append(msgspec.json.encode({"role": "user", "content": prompts.chunk_text(chunk)}))
            case Note(_, text):
                notes.add(len(payload))
                payload.append(msgspec.json.encode({"role": "user", "content": text}))
            case Verbatim(start, stop):
                payload += [message.raw for message in messages[start:stop]]
            case Pinned(start, stop):
                carried.update(range(len(payload), len(payload) + stop - start))
                payload += [message.raw for message in messages[start:stop]]
            case Pruned():
                pass
            case Carried(index):
                carried.add(len(payload))
                payload.append(messages[index].raw)
            case Altered(index, texts):
                payload.append(_altered(messages[index].raw, texts, part.calls))
    return _alternating(payload, notes, notes | carried) if alternate else payload


def _alternating(payload: Sequence[bytes], notes: Container[int], placed: Container[int]) -> list[bytes]:
    """`placed`: where messages stand that were not neighbours in the client's own history."""
    merged: list[bytes] = []
    for index, raw in enumerate(payload):
        new_neighbours = index in placed or index - 1 in placed
        if merged and new_neighbours and _is_user(merged[-1]) and _is_user(raw):
            content = msgspec.json.encode([*_parts(merged[-1]), *_parts(raw)])
            # The message that is no note keeps its other members.
            kept = merged[-1] if index in notes else raw
            merged[-1] = _spliced(kept, {"content": content})
        else:
            merged.append(raw)
    return merged


def _is_user(raw: bytes) -> bool:
    return decoded_message(raw).get("role") == "user"


def _parts(raw: bytes) -> list[Any]:
    content = decoded_message(raw).get("content")
    return content if isinstance(content, list) else [{"type": "text", "text": content or ""}]


def _altered(raw: bytes, texts: Sequence[str], calls: Sequence[tuple[int, str]] | None) -> bytes:
    """A message with its texts replaced in order, and its calls by those that are left; the rest keeps its bytes."""
    message = decoded_message(raw)
    replaced: dict[str, Any] = {}
    content = message.get("content")
    remaining = iter(texts)
    if isinstance(content, str):
        replaced["content"] = next(remaining)
    elif isinstance(content, list):
        replaced["content"] = [left for part in content if (left := _part_left(part, remaining)) is not None]
    encoded = {name: msgspec.json.encode(value) for name, value in replaced.items() if value != content}
    return _spliced(raw, encoded) if calls is None else _spliced(raw, *_with_calls(message, calls, encoded))


def _part_left(part: Any, texts: Iterator[str]) -> Any:
    """A part of a content with what is left of its text; None where that is nothing: some providers refuse it empty."""
    if not is_text(part):
        return part
    text = next(texts)
    return {**part, "text": text} if text or not part["text"] else None


def _spliced(raw: bytes, replaced: Mapping[str, bytes], removed: Collection[str] = ()) -> bytes:
    """A message with some members replaced or removed."""
    try:
        return RawObject(raw).spliced(replaced, removed)
    except Unreadable:  # A key that stands twice, for one: as it was read, with the last of them.
        left = {name: value for name, value in decoded_message(raw).items() if name not in removed}
        return msgspec.json.encode(left | {name: msgspec.Raw(value) for name, value in replaced.items()})


def _with_calls(
    message: Json, calls: Sequence[tuple[int, str]], replaced: Mapping[str, bytes]
) -> tuple[Mapping[str, bytes], tuple[str, ...]]:
    """What to replace and what to remove. Providers refuse an empty list of calls."""
    held = [call for call in message.get("tool_calls") or () if isinstance(call, dict)]
    left = [_with_arguments(held[position], arguments) for position, arguments in calls if position < len(held)]
    if left:
        return {**replaced, "tool_calls": msgspec.json.encode(left)}, ()
    if isinstance(legacy := message.get("function_call"), dict) and calls:
        return {**replaced, "function_call": msgspec.json.encode({**legacy, "arguments": calls[0][1]})}, ()
    return replaced, ("tool_calls",)


def _with_arguments(call: Json, arguments: str) -> Json:
    for kind, member in (("function", "arguments"), ("custom", "input")):
        if isinstance(inner := call.get(kind), dict):
            return {**call, kind: {**inner, member: arguments}}
    return call
