"""The stream that was asked for, out of a response in one piece."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from time import time

import msgspec

from app.errors import UpstreamUnreadable
from app.wire.members import RawObject, Unreadable, holds_more_values, split_array
from app.wire.provider_errors import error_body
from app.wire.responses.frames import error_frames
from app.wire.sse import event
from app.wire.streamed import IN_ONE_LINE, MOST_RAW, streamed

MOST_ITEMS = 10_000
"""Of an output."""
UNWRITTEN = {
    "message": ("content", b"[]"),
    "function_call": ("arguments", b'""'),
    "custom_tool_call": ("input", b'""'),
    "compaction": ("encrypted_content", b'""'),
}
"""What an item begins without, by type, and comes afterwards."""
WRITTEN = {
    "function_call": ("response.function_call_arguments", "arguments"),
    "custom_tool_call": ("response.custom_tool_call_input", "input"),
}
TEXTS = {"output_text": ("response.output_text", "text"), "refusal": ("response.refusal", "refusal")}
ENDS = {"incomplete": "response.incomplete", "failed": "response.failed"}
_Members = Mapping[str, bytes]


def as_stream(
    chunks: AsyncIterator[bytes], *, is_stream: bool, headers: Sequence[tuple[bytes, bytes]] = ()
) -> AsyncIterator[bytes]:
    """The frames of an answer with status 200, as they come. `is_stream`: its content type says so.

    Raises `UpstreamUnreadable` for an answer that is neither a stream nor a response.
    """
    return streamed(chunks, lambda body: _frames(body, headers), "response", is_stream=is_stream)


def _frames(body: bytes, headers: Sequence[tuple[bytes, bytes]]) -> Iterator[bytes]:
    """A whole response: that it begins, each of its items, how it ends."""
    if holds_more_values(body, MOST_RAW):
        raise UpstreamUnreadable(f"The provider's answer is no response: it has over {MOST_RAW} values.")
    try:
        whole = RawObject(body.translate(IN_ONE_LINE))
        items = [RawObject(raw) for raw in split_array(whole.raw("output") or b"[]")]
        if len(items) > MOST_ITEMS:
            raise Unreadable(f"It has over {MOST_ITEMS} items.")
        if whole.value("error") and "output" not in whole:
            yield error_frames(error_body(200, headers, body, time()))
            return
        if "output" not in whole:
            raise Unreadable("It has no output.")
        events = [*_said(whole, items)]
    except Unreadable as error:
        raise UpstreamUnreadable("The provider's answer is no response.") from error
    for number, (type_, members) in enumerate(events):
        yield event(_object({"type": _json(type_), "sequence_number": b"%d" % number, **members}), type_)


def _said(whole: RawObject, items: Sequence[RawObject]) -> Iterator[tuple[str, _Members]]:
    """The frames' types and members."""
    empty = {name: raw for name, raw in (("output", b"[]"), ("usage", b"null")) if name in whole}
    running = {"status": b'"in_progress"'} if "status" in whole else {}
    begun = whole.spliced(empty | running)
    yield "response.created", {"response": begun}
    yield "response.in_progress", {"response": begun}
    for place, item in enumerate(items):
        yield from _item(b"%d" % place, item)
    yield ENDS.get(str(whole.value("status")), "response.completed"), {"response": whole.text}


def _item(place: bytes, item: RawObject) -> Iterator[tuple[str, _Members]]:
    type_, at = str(item.value("type")), {"output_index": place}
    member, nothing = UNWRITTEN.get(type_, ("", b""))
    running = {"status": b'"in_progress"'} if "status" in item else {}
    begun = item.spliced(({member: nothing} if member in item else {}) | running)
    yield "response.output_item.added", {**at, "item": begun}
    within = {"item_id": item.raw("id") or b'""', **at}
    if type_ == "message":
        for number, part in enumerate(split_array(item.raw("content") or b"[]")):
            yield from _part({**within, "content_index": b"%d" % number}, RawObject(part))
    elif type_ in WRITTEN:
        event_, member = WRITTEN[type_]
        written = item.raw(member) or b'""'
        yield f"{event_}.delta", {**within, "delta": written}
        yield f"{event_}.done", {**within, member: written}
    yield "response.output_item.done", {**at, "item": item.text}


def _part(at: _Members, part: RawObject) -> Iterator[tuple[str, _Members]]:
    event_, member = TEXTS.get(str(part.value("type")), ("", ""))
    text = part.raw(member)
    yield "response.content_part.added", {**at, "part": part.spliced({member: b'""'} if text else {})}
    if text:
        logprobs = {"logprobs": b"[]"} if member == "text" else {}
        yield f"{event_}.delta", {**at, "delta": text, **logprobs}
        yield f"{event_}.done", {**at, member: text, **logprobs}
    yield "response.content_part.done", {**at, "part": part.text}


def _json(value: str) -> bytes:
    return msgspec.json.encode(value)


def _object(members: _Members) -> bytes:
    return b"{" + b",".join(_json(name) + b":" + value for name, value in members.items()) + b"}"
