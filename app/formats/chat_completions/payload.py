"""Payloads: a view as raw messages. What is verbatim keeps its bytes; what was cut is spliced into them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from app.compaction.view import Altered, Conversation, View
from app.formats.breakpoints import kept_breakpoint
from app.formats.chat_completions.messages import is_media, is_text
from app.formats.objects import decoded_object, spliced
from app.formats.rendering import contents_joined, joined, placed

Json = Mapping[str, Any]


def render(conversation: Conversation, view: View, alternate: bool = False) -> list[bytes]:
    """The payload's raw messages in order; what is verbatim keeps its bytes.

    `alternate`: for a provider that refuses two user messages in a row, each summary and each carried message is merged
    with the user message beside it, whose text stays whole.
    """
    payload = placed(conversation, view, _note, _left)
    return joined(payload, _joined) if alternate else [each.raw for each in payload]


def _note(text: str) -> bytes:
    return msgspec.json.encode({"role": "user", "content": text})


_joined = contents_joined("text")


def _left(raw: bytes, part: Altered) -> bytes:
    left = _altered(raw, part.texts, part.calls)
    return _without_media(left, part.media) if part.media else left


def _without_media(raw: bytes, words: Sequence[str]) -> bytes:
    """A message with words in place of its parts that are no text, in order."""
    remaining = iter(words)
    content = [
        {"type": "text", "text": next(remaining), **kept_breakpoint(part)} if is_media(part) else part
        for part in decoded_object(raw).get("content") or ()
    ]
    return spliced(raw, {"content": msgspec.json.encode(content)})


def _altered(raw: bytes, texts: Sequence[str], calls: Sequence[tuple[int, str]] | None) -> bytes:
    """A message with its texts replaced in order, and its calls by those that are left; the rest keeps its bytes."""
    message = decoded_object(raw)
    replaced: dict[str, Any] = {}
    content = message.get("content")
    remaining = iter(texts)
    if isinstance(content, str):
        replaced["content"] = next(remaining)
    elif isinstance(content, list):
        replaced["content"] = [left for part in content if (left := _part_left(part, remaining)) is not None]
    encoded = {name: msgspec.json.encode(value) for name, value in replaced.items() if value != content}
    return spliced(raw, encoded) if calls is None else spliced(raw, *_with_calls(message, calls, encoded))


def _part_left(part: Any, texts: Iterator[str]) -> Any:
    """A part of a content with what is left of its text; None where that is nothing: some providers refuse it empty."""
    if not is_text(part):
        return part
    text = next(texts)
    return {**part, "text": text} if text or not part["text"] else None


def _with_calls(
    message: Json, calls: Sequence[tuple[int, str]], replaced: Mapping[str, bytes]
) -> tuple[Mapping[str, bytes], tuple[str, ...]]:
    """Members to replace and to remove. Providers refuse an empty list of calls."""
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
