"""The stream that was asked for, out of a response in one piece."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from time import time

import msgspec

from app.wire.members import RawObject, Unreadable, split_array
from app.wire.provider_errors import error_body
from app.wire.responses.frames import error_frames
from app.wire.sse import event
from app.wire.streamed import read_whole, taken_apart, written

MOST_ITEMS = 10_000
"""Most items of an output."""
UNWRITTEN = {
    "message": ("content", b"[]"),
    "function_call": ("arguments", b'""'),
    "custom_tool_call": ("input", b'""'),
    "compaction": ("encrypted_content", b'""'),
}
"""Members that an item begins without, by type, and their empty values."""
WRITTEN = {
    "function_call": ("response.function_call_arguments", "arguments"),
    "custom_tool_call": ("response.custom_tool_call_input", "input"),
}
TEXTS = {"output_text": ("response.output_text", "text"), "refusal": ("response.refusal", "refusal")}
ENDS = {"incomplete": "response.incomplete", "failed": "response.failed"}
_Members = Mapping[str, bytes]


def frames_of(body: bytes, headers: Sequence[tuple[bytes, bytes]]) -> Iterator[bytes]:
    """The frames of a whole response: that it begins, each of its items, how it ends."""
    with taken_apart("response"):
        whole = read_whole(body)
        items = [RawObject(raw) for raw in split_array(whole.raw("output") or b"[]")]
        if len(items) > MOST_ITEMS:
            raise Unreadable(f"It has over {MOST_ITEMS} items.")
        if whole.value("error") and "output" not in whole:
            yield error_frames(error_body(200, headers, body, time()))
            return
        if "output" not in whole:
            raise Unreadable("It has no output.")
        events = [*_said(whole, items)]
    for number, (type_, members) in enumerate(events):
        yield event(written({"type": msgspec.json.encode(type_), "sequence_number": b"%d" % number, **members}), type_)


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
