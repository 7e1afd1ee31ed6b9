"""Rendering, as far as it is alike in all formats: which raw messages a view becomes, and whence."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec

from app.compaction import prompts
from app.compaction.view import Altered, Carried, Conversation, Note, Pinned, Pruned, Recalled, Summary, Verbatim, View
from app.formats.objects import decoded_object, spliced


class Placed(NamedTuple):
    """A raw message of a payload."""

    raw: bytes
    place: int | None = None
    """Index of the transcript's message; None for one of our own, and for the leading instructions."""
    role: str = ""
    """Role of the client's message; empty for one of our own, which the user says."""
    own: bool = False
    """Written by us: a summary or a note."""
    summary: Summary | None = None
    """The summary from which it is written."""


def placed(
    conversation: Conversation,
    view: View,
    note: Callable[[str], bytes],
    altered: Callable[[bytes, Altered], bytes | None],
    unthinking: Callable[[bytes], bytes | None] = lambda raw: raw,
) -> list[Placed]:
    """The payload's raw messages in order. `note` writes a text of ours, `altered` what is left of a message, or None
    for nothing, and `unthinking` likewise what is left of it without signed thinking."""
    payload = [Placed(message.raw, role=message.role) for message in conversation.instructions]
    for each in _placed(conversation, view, note, altered):
        if each.place not in view.without_thinking:
            payload.append(each)
        elif (left := unthinking(each.raw)) is not None:
            payload.append(each._replace(raw=left))
    return payload


def _placed(
    conversation: Conversation,
    view: View,
    note: Callable[[str], bytes],
    altered: Callable[[bytes, Altered], bytes | None],
) -> Iterator[Placed]:
    messages = conversation.transcript.messages
    for part in view.parts:
        match part:
            case Summary(chunk):
                yield Placed(note(prompts.chunk_text(chunk)), own=True, summary=part)
            case Note(text=text) | Recalled(text=text):
                yield Placed(note(text), own=True)
            case Verbatim(start, stop) | Pinned(start, stop):
                yield from (Placed(messages[i].raw, i, messages[i].role) for i in range(start, stop))
            case Pruned():
                pass
            case Carried(index):
                yield Placed(messages[index].raw, index, messages[index].role)
            case Altered(index) if (left := altered(messages[index].raw, part)) is not None:
                yield Placed(left, index, messages[index].role)


def joined(payload: list[Placed], join: Callable[[bytes, bytes, bool], bytes], user: str = "user") -> list[bytes]:
    """The raw messages for a provider that refuses two user messages in a row: those that were no neighbours in the
    client's own history become one. `user`: the role of a user's message."""
    merged: list[bytes] = []
    before: Placed | None = None
    for each in payload:
        were_neighbours = before is not None and before.place is not None and each.place == before.place + 1
        if before is not None and not were_neighbours and {before.role or user, each.role or user} == {user}:
            # The message that is no note keeps its other members.
            merged[-1] = join(merged[-1], each.raw, each.own)
        else:
            merged.append(each.raw)
        before = each
    return merged


def contents_joined(
    text_type: str, as_object: Callable[[bytes], bytes] = bytes
) -> Callable[[bytes, bytes, bool], bytes]:
    """A function that joins two messages whose contents are a text or parts. `as_object`: makes one of a raw message
    that is none."""

    def parts(raw: bytes) -> list[Any]:
        content = decoded_object(as_object(raw)).get("content")
        return content if isinstance(content, list) else [{"type": text_type, "text": content or ""}]

    def join(one: bytes, other: bytes, keeps_first: bool) -> bytes:
        content = msgspec.json.encode([*parts(one), *parts(other)])
        return spliced(as_object(one if keeps_first else other), {"content": content})

    return join
