"""Payloads: a view as raw messages. What is verbatim keeps its bytes; what was cut is spliced into them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import msgspec

from app.compaction.view import Altered, Conversation, View
from app.formats.breakpoints import kept_breakpoint
from app.formats.objects import decoded_object, spliced
from app.formats.rendering import Placed, contents_joined, joined, placed
from app.formats.responses.items import CALLS, HOLDING_PARTS, NAMED_BY_ID, Path, is_media, slots, type_of
from app.formats.responses.request import as_item


def render(conversation: Conversation, view: View, alternate: bool = False) -> list[bytes]:
    """The payload's raw messages in order; what is verbatim keeps its bytes.

    `alternate`: for a model whose template refuses two user messages in a row.
    """
    payload = _unbound(conversation, placed(conversation, view, note, _left))
    return joined(payload, _joined) if alternate else [each.raw for each in payload]


def note(text: str) -> bytes:
    """A text of ours. Without an id: the provider knows of no such item."""
    content = [{"type": "input_text", "text": text}]
    return msgspec.json.encode({"type": "message", "role": "user", "content": content})


def _unbound(conversation: Conversation, payload: Sequence[Placed]) -> list[Placed]:
    """The payload, in which what stood behind reasoning that is gone has no id: by that the provider would look for the
    reasoning."""
    messages = conversation.transcript.messages
    before: int | None = None
    left: list[Placed] = []
    for each in payload:
        place = each.place
        if place and messages[place - 1].bound and before != place - 1:
            left.append(each._replace(raw=_without_id(each.raw)))
        else:
            left.append(each)
        before = place
    return left


def _without_id(raw: bytes) -> bytes:
    item = decoded_object(raw, "An item")
    return raw if "id" not in item or type_of(item) in NAMED_BY_ID else spliced(raw, {}, ("id",))


_joined = contents_joined("input_text", as_item)


def _left(raw: bytes, part: Altered) -> bytes | None:
    left = _altered(raw, part)
    if left is None or not part.media:
        return left
    item, words = decoded_object(left, "An item"), iter(part.media)
    held = {
        member: [*map(partial(_in_words, words), item[member])]
        for member in HOLDING_PARTS
        if isinstance(item.get(member), list)
    }
    return spliced(left, {member: msgspec.json.encode(parts) for member, parts in held.items()})


def _in_words(words: Iterator[str], part: Any) -> Any:
    if not isinstance(part, dict) or not is_media(part):
        return part
    return {"type": "input_text", "text": next(words), **kept_breakpoint(part)}


def _altered(raw: bytes, part: Altered) -> bytes | None:
    """An item with its texts replaced in order, or a call with other arguments; None for one that is taken out."""
    if raw.startswith(b'"'):
        return msgspec.json.encode(part.texts[0])
    item = decoded_object(raw, "An item")
    type_ = type_of(item)
    if type_ not in CALLS:
        return _with_texts(raw, item, part.texts)
    if part.calls is None:
        return raw
    if not part.calls:
        return None
    [(_, arguments)] = part.calls
    member = CALLS[type_].member
    held = _with_arguments(item.get(member), arguments, CALLS[type_].long_text)
    return raw if held == item.get(member) else spliced(raw, {member: msgspec.json.encode(held)})


def _with_arguments(held: Any, arguments: str, long_text: Path) -> Any:
    """Arguments of a call, in the form they had. An object with a place for a long text gets it there."""
    if not isinstance(held, dict | list):
        return arguments
    if msgspec.json.encode(held).decode() == arguments:
        return held
    if not long_text or not isinstance(held, dict):
        return json.loads(arguments)
    [key] = long_text
    return {**held, key: [arguments] if isinstance(held.get(key), list) else arguments}


def _with_texts(raw: bytes, item: dict[str, Any], texts: Sequence[str]) -> bytes:
    """An item with other texts. A part that has become empty goes, where there are others: some providers refuse it."""
    changed: set[str | int] = set()
    emptied: list[tuple[str | int, str | int]] = []
    for (path, before), text in zip(slots(item), texts, strict=True):
        if not path or text == before:
            continue
        changed.add(path[0])
        if len(path) == 1:
            item[str(path[0])] = text
            continue
        member, place, key = path
        item[str(member)][place][key] = text
        if not text and key == "text":
            emptied.append((member, place))
    for member, place in reversed(emptied):
        if len(item[str(member)]) > 1:
            del item[str(member)][place]
    return spliced(raw, {str(member): msgspec.json.encode(item[str(member)]) for member in changed}) if changed else raw
