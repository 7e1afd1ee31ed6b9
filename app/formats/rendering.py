"""Rendering in all formats: turn a view (a planned payload) into raw messages, and add a cache breakpoint.

Some providers cache a prompt only up to its breakpoints. Recalled text is a quotation before the last user message.
Steno removes the quotation in the next turn, so the cached prefix must end before the quotation. Steno adds a
breakpoint before the quotation if the client sets breakpoints itself and the provider allows one more.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from app.compaction import prompts
from app.compaction.view import Altered, Carried, Conversation, Note, Pinned, Summary, Verbatim, View
from app.formats.raw_json import RawObject, Unreadable, decoded_object, object_of, spliced, split_array
from app.formats.spec import CACHE_CONTROL, PROMPT_CACHE_BREAKPOINT

OPENER = "[Earlier messages of this conversation are left out here.]"
"""User message that Steno inserts before an assistant message if the provider demands a user message there."""


class Placed(NamedTuple):
    raw: bytes
    place: int | None = None
    """Index in the history after the leading instructions; None for a leading instruction and a message by Steno."""
    role: str = ""
    """Role of the client's message. Empty for a message by Steno, whose role is always the user's."""
    own: bool = False
    """Whether Steno wrote the message: a summary or a note."""
    summary: Summary | None = None


def placed(
    conversation: Conversation,
    view: View,
    user_message: Callable[[str], Mapping[str, Any]],
    altered: Callable[[bytes, Altered], bytes | None],
    unthinking: Callable[[bytes], bytes | None] = lambda raw: raw,
) -> list[Placed]:
    """Return the payload's raw messages in order. `user_message` makes a message from text. `altered` applies a view's
    changes to a message, and `unthinking` removes signed thinking. Both return None if nothing is left."""
    payload = [Placed(message.raw, role=message.role) for message in conversation.instructions]
    messages = conversation.transcript.messages

    def add(index: int, raw: bytes | None) -> None:
        left = unthinking(raw) if raw is not None and index in view.without_thinking else raw
        if left is not None:
            payload.append(Placed(left, index, messages[index].role))

    for part in view.parts:
        match part:
            case Summary(chunk):
                note = msgspec.json.encode(user_message(prompts.chunk_text(chunk)))
                payload.append(Placed(note, own=True, summary=part))
            case Note(text=text):
                payload.append(Placed(msgspec.json.encode(user_message(text)), own=True))
            case Verbatim(start, stop) | Pinned(start, stop):
                for index in range(start, stop):
                    add(index, messages[index].raw)
            case Carried(index):
                add(index, messages[index].raw)
            case Altered(index):
                add(index, altered(messages[index].raw, part))
    return payload


Place = tuple[dict[str, Any], str]
"""Object that contains a text, and the key of the text."""
Edit = Callable[[dict[str, Any]], dict[str, Any] | None]
"""Function that edits a part. It returns the same object for an unchanged part, and None for a part to remove."""


def edited(raw: bytes, edit: Edit, member: str = "content") -> bytes:
    """Return a message with its parts edited. Unchanged parts keep their bytes. Empty if no part is left."""
    held = decoded_object(raw).get(member)
    if not isinstance(held, list):
        return raw
    kept, changed = [], False
    for part, element in zip(held, raw_parts(raw, member), strict=True):
        left = edit(part) if isinstance(part, dict) else part
        changed = changed or left is not part
        if left is not None:
            kept.append(element if left is part else msgspec.json.encode(left))
    if not kept:
        return b""
    return spliced(raw, {member: b"[%b]" % b",".join(kept)}) if changed else raw


class Parts(Struct, frozen=True):
    """Functions that edit the texts and media in the parts of a message."""

    texts: Callable[[dict[str, Any]], Iterable[Place]]
    in_words: Callable[[dict[str, Any], Iterator[str]], dict[str, Any]]
    """Function that replaces the media of a part by the next text. It returns a part without media unchanged."""
    emptied: Callable[[dict[str, Any]], dict[str, Any] | None]
    """Function that removes empty texts from a part, because some providers refuse them; None if the part is empty."""

    def altered(
        self, raw: bytes, texts: Sequence[str], media: Sequence[str], member: str = "content", call: Edit | None = None
    ) -> bytes:
        """Return a message with its texts replaced in order, its media replaced by the texts in `media`, and its calls
        edited by `call`. Other bytes stay the same. The result is empty if no part is left."""
        remaining, words, held = iter(texts), iter(media), decoded_object(raw).get(member)
        if isinstance(held, str):
            text = next(remaining)
            return raw if text == held else spliced(raw, {member: msgspec.json.encode(text)})

        def edit(part: dict[str, Any]) -> dict[str, Any] | None:
            changed = False
            for holder, key in list(self.texts(part)):
                before, holder[key] = holder[key], next(remaining)
                changed = changed or holder[key] != before
            left = self.emptied({**part}) if changed else part if call is None else call(part)
            return left if left is None or not media else self.in_words(left, words)

        return edited(raw, edit, member)


def raw_parts(raw: bytes, member: str) -> list[bytes]:
    try:
        return split_array(RawObject(raw).raw(member) or b"[]")
    except Unreadable:  # For example, a key is repeated. The decoder keeps its last value.
        return [*map(msgspec.json.encode, decoded_object(raw).get(member) or ())]


def joined(
    payload: list[Placed],
    text_type: str = "",
    member: str = "content",
    as_object: Callable[[bytes], bytes] = bytes,
    goes_first: Callable[[bytes], bool] = lambda _: False,
) -> list[bytes]:
    """Join user messages that are adjacent only in the payload, for a provider that refuses two in a row.

    A string in `member` becomes a part of the type `text_type`. `as_object` makes a JSON object from any raw message.
    `goes_first` tells whether a part must precede other parts. Messages that are adjacent in the history stay separate.
    """

    def parts(raw: bytes) -> list[bytes]:
        if isinstance(held := decoded_object(raw).get(member), str):
            return [msgspec.json.encode({"type": text_type, "text": held})]
        return raw_parts(raw, member)

    merged: list[bytes] = []
    before: Placed | None = None
    for each in payload:
        were_neighbours = before is not None and before.place is not None and each.place == before.place + 1
        if before is not None and not were_neighbours and {before.role or "user", each.role or "user"} == {"user"}:
            one, other = as_object(merged[-1]), as_object(each.raw)
            both = sorted((*parts(one), *parts(other)), key=lambda part: not goes_first(part))
            # The client's message keeps its other members.
            merged[-1] = spliced(one if each.own else other, {member: b"[%b]" % b",".join(both)})
        else:
            merged.append(each.raw)
        before = each
    return merged


MOST_BREAKPOINTS = 4
"""Maximum number of breakpoints in a request, at Anthropic and at OpenAI."""
PROMPT_CACHE_OPTIONS = "prompt_cache_options"
MESSAGE_PARTS = ("content", "output")
"""Members that contain the parts of a message or an item."""

Json = Mapping[str, Any]


class Breakpoints(Struct, frozen=True):
    members: tuple[str, ...] = ()
    """Names of members with a breakpoint. Steno writes the first name that the client uses."""
    types: frozenset[str] = frozenset()
    text_type: Callable[[Json], str | None] = lambda _: None
    """Function that returns the type of the text part that Steno makes of a content string; None to keep the string."""

    def may_be_set(self, source: RawObject) -> bool:
        """Return whether the client may have set breakpoints. The text search is fast, but only False is certain."""
        return PROMPT_CACHE_OPTIONS in source or any(member.encode() in source.text for member in self.members)

    def added(self, source: RawObject, payload: Sequence[bytes], quotation: str) -> list[bytes] | None:
        """Return the payload with one more breakpoint, on the last possible part before the quotation.

        Return None if the client sets no breakpoints, or if the payload has the maximum number. Also return None if no
        part before the quotation can get a breakpoint, or the last such part has one. `source`: the client request.
        """
        for member in self.members:
            # Unless the mode is `explicit`, OpenAI sets one breakpoint itself, which counts towards the limit.
            is_explicit = object_of(source.value(PROMPT_CACHE_OPTIONS)).get("mode") == "explicit"
            automatic = member == PROMPT_CACHE_BREAKPOINT and not is_explicit
            marks = _marks(source, payload, member) if member.encode() in source.text else []
            if marks or (automatic and PROMPT_CACHE_OPTIONS in source):
                has_room = len(marks) + automatic < MOST_BREAKPOINTS
                return self._added(payload, member, marks, quotation) if has_room else None
        return None

    def _added(
        self, payload: Sequence[bytes], member: str, marks: Sequence[tuple[int, bytes]], quotation: str
    ) -> list[bytes] | None:
        quoted = msgspec.json.encode(quotation)
        last = next((place for place in range(len(payload) - 1, -1, -1) if quoted in payload[place]), -1)
        for index in range(last, -1, -1):
            raw = payload[index]
            try:
                message = decoded_object(raw)
            except Unreadable:  # Instructions outside of the messages, or a history that the provider compacted.
                return None
            holder = next((name for name in MESSAGE_PARTS if name in message), "content")
            held = message.get(holder)
            if isinstance(held, str):
                parts: list[Any] = [{"type": self.text_type(message), "text": held}]
                elements = [msgspec.json.encode(parts[0])]
            else:
                parts, elements = (held, raw_parts(raw, holder)) if isinstance(held, list) else ([], [])
            quotations = [place for place, part in enumerate(parts) if index == last and _text_of(part) == quotation]
            stop = quotations[-1] if quotations else len(parts)
            may_have_one = (
                place
                for place in range(stop - 1, -1, -1)
                if object_of(parts[place]).get("type") in self.types and _text_of(parts[place]) != ""
            )
            if (place := next(may_have_one, None)) is None:
                continue
            if parts[place].get(member):
                return None
            # Copy the next breakpoint, or else the last: a one-hour breakpoint may not follow a five-minute one.
            following = (mark for at, mark in marks if at >= index)
            value = next(following, marks[-1][1] if marks else b'{"mode":"explicit"}')
            part = RawObject(RawObject(elements[place]).spliced(remove=(member,)))
            elements[place] = part.spliced(add=b"%b:%b" % (msgspec.json.encode(member), value))
            marked = spliced(raw, {holder: b"[%b]" % b",".join(elements)})
            return [*payload[:index], marked, *payload[index + 1 :]]
        return None


def kept_breakpoint(part: Json) -> Json:
    return {name: part[name] for name in (CACHE_CONTROL, PROMPT_CACHE_BREAKPOINT) if name in part}


def _marks(source: RawObject, payload: Sequence[bytes], member: str) -> list[tuple[int, bytes]]:
    """Return, for each breakpoint in order, the index of its message (-1 for a tool) and its JSON."""
    # A breakpoint outside of the messages: the provider applies it to the last possible part.
    whole = b'"%b":%b' % (member.encode(), source.raw(member) or b"null")
    holders = enumerate((source.raw("tools") or b"", *payload, whole), -1)
    return [(place, mark) for place, raw in holders for mark in marks_in(raw, member)]


def marks_in(raw: bytes, member: str) -> list[bytes]:
    """Return the JSON of each breakpoint, in order. Texts about breakpoints never match: JSON escapes their quotes."""
    return re.findall(rb'"%b"\s*+:\s*+(\{[^{}]{0,100}"(?:ephemeral|explicit)"[^{}]{0,100}\})' % member.encode(), raw)


def _text_of(part: object) -> object:
    return part.get("text") if isinstance(part, dict) else None
