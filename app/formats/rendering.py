"""Rendering: which raw messages a view becomes, as far as all formats do it alike, and the cache breakpoints in them.

Some providers find a prompt in their cache only where a breakpoint stood. The quotation before the last user message
goes with the next turn, so nothing behind it is found then. Where the client sets breakpoints and one more is allowed,
the end of what stands before the quotation gets a breakpoint of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from app.compaction import prompts
from app.compaction.view import Altered, Carried, Conversation, Note, Pinned, Recalled, Summary, Verbatim, View
from app.formats.raw_json import (
    RawObject,
    Unreadable,
    decoded_object,
    decoded_value,
    object_of,
    objects_in,
    spliced,
    split_array,
)

OPENER = "[Earlier messages of this conversation are left out here.]"
"""Text in front of a history that would begin with the assistant, where a provider wants the user's first."""


class Placed(NamedTuple):
    raw: bytes
    place: int | None = None
    """Index of the transcript's message; None for one of our own, and for the leading instructions."""
    role: str = ""
    """Role of the client's message; empty for one of our own, which the user says."""
    own: bool = False
    """Written by us: a summary or a note."""
    summary: Summary | None = None


def placed(
    conversation: Conversation,
    view: View,
    user_message: Callable[[str], Mapping[str, Any]],
    altered: Callable[[bytes, Altered], bytes | None],
    unthinking: Callable[[bytes], bytes | None] = lambda raw: raw,
) -> list[Placed]:
    """The payload's raw messages in order. `user_message` makes a message of Steno's text; `altered` applies a view's
    changes, and `unthinking` removes signed thinking; both return None if nothing is left."""
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
            case Note(text=text) | Recalled(text=text):
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
"""A text as a member of what holds it."""
Edit = Callable[[dict[str, Any]], dict[str, Any] | None]
"""Function from a part to its remainder: the same object if unchanged, None if nothing is left."""


def edited(raw: bytes, edit: Edit, member: str = "content") -> bytes:
    """A message with its parts edited; those that stay keep their bytes. Empty where no part is left."""
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
    """Texts, media and calls in the parts of a message, which a view may change."""

    texts: Callable[[dict[str, Any]], Iterable[Place]]
    in_words: Callable[[dict[str, Any], Iterator[str]], dict[str, Any]]
    """Replaces a part's media by words; returns the same part if it has none."""
    emptied: Callable[[dict[str, Any]], dict[str, Any] | None]
    """Finishes a part with a changed text; None if the text is empty, which some providers refuse."""

    def altered(
        self, raw: bytes, texts: Sequence[str], media: Sequence[str], member: str = "content", call: Edit | None = None
    ) -> bytes:
        """A message with its texts replaced in order, words in place of its media, and its calls as `call` edits them;
        the rest keeps its bytes. Empty where no part is left."""
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
    except Unreadable:  # A key that stands twice, for one: as it was read, with the last of them.
        return [*map(msgspec.json.encode, decoded_object(raw).get(member) or ())]


def joined(
    payload: list[Placed],
    text_type: str = "",
    member: str = "content",
    as_object: Callable[[bytes], bytes] = bytes,
    goes_first: Callable[[bytes], bool] = lambda _: False,
) -> list[bytes]:
    """The raw messages for a provider that refuses two user messages in a row. Messages that were not neighbours in the
    client's history are joined.

    `text_type`: the type of a part with the text of a message whose `member` is no list. `as_object`: makes one of a
    raw message that is none. `goes_first`: whether a part has to stand before the others.
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
            # The message that is no note keeps its other members.
            merged[-1] = spliced(one if each.own else other, {member: b"[%b]" % b",".join(both)})
        else:
            merged.append(each.raw)
        before = each
    return merged


MOST_BREAKPOINTS = 4
"""Breakpoints that a request may have, at Anthropic and at OpenAI."""
CACHE_CONTROL, PROMPT_CACHE_BREAKPOINT = "cache_control", "prompt_cache_breakpoint"
PROMPT_CACHE_OPTIONS = "prompt_cache_options"
MESSAGE_PARTS = ("content", "output")
"""Members of a message or an item that hold parts."""
_HOLDERS = (*MESSAGE_PARTS, "source", "tool_calls", "function")
"""Members in which something with a breakpoint may stand."""

Json = Mapping[str, Any]


class Breakpoints(Struct, frozen=True):
    members: tuple[str, ...] = ()
    """Members that are a breakpoint. Steno writes the first of them that the client uses."""
    types: frozenset[str] = frozenset()
    text_type: Callable[[Json], str | None] = lambda _: None
    """Gives the type of a part with the whole text of a message whose content is a string; None where it may have no
    parts."""

    def may_be_set(self, source: RawObject) -> bool:
        """Whether the client may have set breakpoints, by the words in its body: `added` reads them."""
        return PROMPT_CACHE_OPTIONS in source or any(member.encode() in source.text for member in self.members)

    def added(self, source: RawObject, payload: Sequence[bytes], quotation: str) -> list[bytes] | None:
        """The raw messages of a payload with one more breakpoint, at the end of what stands before the quotation.

        None where the client sets no breakpoints, the payload has as many as it may, or nothing before the quotation
        may have one, or has one already. `source`: the client's request.
        """
        for member in self.members:
            # OpenAI sets one of its own, which counts, unless it is told not to.
            is_explicit = object_of(source.value(PROMPT_CACHE_OPTIONS)).get("mode") == "explicit"
            automatic = member == PROMPT_CACHE_BREAKPOINT and not is_explicit
            marks = list(_marks(source, payload, member)) if member.encode() in source.text else []
            if marks or (automatic and PROMPT_CACHE_OPTIONS in source):
                has_room = len(marks) + automatic < MOST_BREAKPOINTS
                return self._added(payload, member, marks, quotation) if has_room else None
        return None

    def _added(
        self, payload: Sequence[bytes], member: str, marks: Sequence[tuple[int, object]], quotation: str
    ) -> list[bytes] | None:
        quoted = msgspec.json.encode(quotation)
        last = next((place for place in range(len(payload) - 1, -1, -1) if quoted in payload[place]), -1)
        for index in range(last, -1, -1):
            raw = payload[index]
            try:
                message = decoded_object(raw)
            except Unreadable:  # It stands beside the messages, or is a history that the provider compacted.
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
            # The value of the next one, else of the one before: none of an hour stands behind one of five minutes.
            following = (mark for at, mark in marks if at >= index)
            value = msgspec.json.encode(next(following, marks[-1][1] if marks else {"mode": "explicit"}))
            part = RawObject(RawObject(elements[place]).spliced(remove=(member,)))
            elements[place] = part.spliced(add=b"%b:%b" % (msgspec.json.encode(member), value))
            marked = spliced(raw, {holder: b"[%b]" % b",".join(elements)})
            return [*payload[:index], marked, *payload[index + 1 :]]
        return None


def kept_breakpoint(part: Json) -> Json:
    return {name: part[name] for name in (CACHE_CONTROL, PROMPT_CACHE_BREAKPOINT) if name in part}


def _marks(source: RawObject, payload: Sequence[bytes], member: str) -> Iterator[tuple[int, object]]:
    """Yield a payload's breakpoints in order, each with its message's position; -1 for tools."""
    for tool in objects_in(source.value("tools")):
        yield from ((-1, mark) for mark in _marks_in(tool, member))
    for place, raw in enumerate(payload):
        if member.encode() in raw:
            with suppress(Unreadable):  # It stands beside the messages, with its key.
                # Some are a list, or several messages.
                yield from ((place, mark) for mark in _marks_in(decoded_value(b"[%b]" % raw), member))
    if mark := source.value(member):  # On the last part that may have one.
        yield len(payload), mark


def _marks_in(value: object, member: str) -> Iterator[object]:
    if isinstance(value, list):
        for each in value:
            yield from _marks_in(each, member)
    elif isinstance(value, dict):
        for holder in _HOLDERS:
            yield from _marks_in(value.get(holder), member)
        if mark := value.get(member):
            yield mark


def _text_of(part: object) -> object:
    return part.get("text") if isinstance(part, dict) else None
