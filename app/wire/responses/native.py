"""The provider's own compaction: asked for at a path of its own, by the last item, or by a threshold; answered with an
item that the client sends back. And its truncation, which leaves out what is too long."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from time import time
from typing import Any

import msgspec
from msgspec.structs import replace

from app.core.history.messages import Kind
from app.core.stages.edits import Edits, Made
from app.wire.edits import ServerEdits
from app.wire.members import RawObject, Unreadable, split_array
from app.wire.missing_paths import says_no_such_path
from app.wire.native import AnswerExtension, MadeCompaction, NativeCompaction
from app.wire.objects import decoded_object
from app.wire.requests import repinned
from app.wire.responses.answers import EDITS, frame, new_id, response
from app.wire.responses.items import CALLS, COMPACTION, PLACED, ROLES, is_reference, type_of
from app.wire.responses.payload import note
from app.wire.responses.request import PATH, as_item, elements_in, is_compaction_entry, is_trigger
from app.wire.sse import data_of, event
from app.wire.types import WireRequest

COMPACT_PATH = PATH + b"/compact"
_LAST_FRAME = b'"response.completed"'


class ResponsesEdits(ServerEdits):
    REFUSED = re.compile(EDITS, re.IGNORECASE)

    def are_asked(self, request: WireRequest) -> bool:
        return EDITS in request.source and request.source.value(EDITS) == "auto"

    def asked(self, request: WireRequest) -> Edits:  # noqa: ARG002 - there is one
        return Edits(fits=True)

    def unasked(self, request: WireRequest) -> WireRequest:
        return replace(request, source=RawObject(request.source.spliced(remove=(EDITS,))))

    def told(self, edits: Edits, made: Made) -> bytes:  # noqa: ARG002 - it is only said whether
        return b'"auto"'


class ResponsesCompaction(NativeCompaction):
    path = COMPACT_PATH
    closing = note("")

    def refused_in(self, status: int, refusal: bytes, path: bytes) -> bool:
        return super().refused_in(status, refusal, path) or (
            path == COMPACT_PATH and says_no_such_path(status, refusal)
        )

    def unasked(self, request: WireRequest) -> bytes:
        elements = elements_in(request.source)
        return _unasked(request, elements, _untriggered(elements))

    def closed(self, request: WireRequest, answer: Sequence[bytes] = ()) -> WireRequest:
        history = tuple(raw for raw in request.raw_messages if not is_trigger(raw))
        return super().closed(replace(request, raw_messages=history), answer)

    def resolved(self, request: WireRequest, text: str) -> bytes:
        elements = request.source.elements("input")
        place = max(place for place, raw in enumerate(elements) if is_reference(raw))
        behind = note(text), *elements[place + 1 :]
        items = [*filter(_stays, elements[:place]), *behind]
        pins = repinned(request.source, [*elements[:place], *behind], items)
        return request.source.spliced({"input": _array(items), **pins})

    def compacted(self, request: WireRequest, text: str) -> bytes:
        elements = elements_in(request.source)
        return _unasked(request, elements, [*filter(_stays, _untriggered(elements)), note(text)])

    def alone(self, request: WireRequest, made: MadeCompaction, path: bytes) -> bytes:
        if path != COMPACT_PATH:
            usage, output = _usage(made), [_item(made)]
            ended = response(new_id(), request.model, "completed", output=output, usage=usage)
            return msgspec.json.encode(ended)
        users = (said for raw in _untriggered(elements_in(request.source)) if (said := _said_by_user(raw)) is not None)
        return msgspec.json.encode(
            {
                "id": new_id(),
                "object": "response.compaction",
                "created_at": int(time()),
                "output": [*users, _item(made)],
                "usage": _usage(made),
            }
        )

    def extension(self, request: WireRequest, made: MadeCompaction | None) -> CompactionBehind:  # noqa: ARG002 - it is last
        return CompactionBehind(self, request)


@dataclass(frozen=True, slots=True)
class CompactionBehind(AnswerExtension):
    """An item behind all others. Not where the answer calls tools: what is open cannot be compacted."""

    native: ResponsesCompaction
    request: WireRequest

    def frame_closes(self, frame: bytes) -> WireRequest | None:
        ended = _ending(frame)
        return None if ended is None else self.body_closes(ended.raw("response") or b"")

    def body_closes(self, body: bytes) -> WireRequest | None:
        try:
            ended = RawObject(body)
            output = split_array(ended.raw("output") or b"[]")
            if ended.value("status") != "completed" or any(_is_open(raw) for raw in output):
                return None
        except Unreadable:
            return None
        return self.native.closed(self.request, output)

    def frame(self, frame: bytes, made: MadeCompaction | None) -> bytes:
        ended = _ending(frame) if made is not None else None
        return frame if ended is None or made is None else b"".join(_frames(ended, made))

    def body(self, body: bytes, made: MadeCompaction | None) -> bytes:
        return body if made is None else _with_item(RawObject(body), _item(made))


def _frames(ended: RawObject, made: MadeCompaction) -> Iterator[bytes]:
    """The item's, then the frame that ends the answer."""
    number, whole, item = ended.value("sequence_number"), RawObject(ended.raw("response") or b"{}"), _item(made)
    first = number if isinstance(number, int) else 0
    at = {"output_index": len(split_array(whole.raw("output") or b"[]"))}
    yield frame("response.output_item.added", first, {**at, "item": {**item, "encrypted_content": ""}})
    yield frame("response.output_item.done", first + 1, {**at, "item": item})
    numbered = {"sequence_number": b"%d" % (first + 2)} if isinstance(number, int) else {}
    yield event(ended.spliced({"response": _with_item(whole, item), **numbered}), "response.completed")


def _ending(frame: bytes) -> RawObject | None:
    """The response in a frame that ends it well."""
    if _LAST_FRAME not in frame or (data := data_of(frame)) is None:
        return None
    try:
        ended = RawObject(frame[slice(*data)])
    except Unreadable:
        return None
    return ended if ended.value("type") == "response.completed" else None


def _with_item(whole: RawObject, item: dict[str, Any]) -> bytes:
    output = [*split_array(whole.raw("output") or b"[]"), msgspec.json.encode(item)]
    return whole.spliced({"output": _array(output)})


def _item(made: MadeCompaction) -> dict[str, Any]:
    # By the reference, so that the same item has the same id in every frame.
    own = made.reference[-32:].replace("-", "0").replace("_", "0")
    return {"id": f"cmp_{own}", "type": COMPACTION, "encrypted_content": made.reference}


def _usage(made: MadeCompaction) -> dict[str, Any]:
    return {
        "input_tokens": made.before,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": made.after,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": made.before + made.after,
    }


def _untriggered(elements: Sequence[bytes]) -> list[bytes]:
    return [raw for raw in elements if not is_trigger(raw)]


def _unasked(request: WireRequest, elements: Sequence[bytes], items: Sequence[bytes]) -> bytes:
    """The body with other items in place of its elements, and without what asks for a compaction."""
    source, removed = request.source, []
    replaced = repinned(source, elements, items)
    if not (len(items) == 1 and items[0].startswith(b'"')):
        replaced["input"] = _array(items)
    managed = source.value("context_management")
    if isinstance(managed, list):
        if left := [entry for entry in managed if not is_compaction_entry(entry)]:
            replaced["context_management"] = msgspec.json.encode(left)
        else:
            removed.append("context_management")
    return source.spliced(replaced, removed)


def _array(items: Sequence[bytes]) -> bytes:
    return b"[" + b",".join(map(as_item, items)) + b"]"


def _stays(raw: bytes) -> bool:
    """Whether an item is sent though it stands before a compaction of ours, which says nothing of it."""
    if raw.startswith(b'"'):
        return False
    item = decoded_object(raw, "An item")
    type_ = type_of(item)
    if type_ == "message":
        return ROLES.get(str(item.get("role"))) is Kind.INSTRUCTIONS
    return type_ in PLACED or (type_ == COMPACTION and not is_reference(raw))


def _is_open(raw: bytes) -> bool:
    return raw.startswith(b"{") and type_of(decoded_object(raw, "An item")) in CALLS


def _said_by_user(raw: bytes) -> dict[str, Any] | None:
    """A user's message as an answer has it; None for another item."""
    item = decoded_object(as_item(raw), "An item")
    if type_of(item) != "message" or item.get("role") != "user":
        return None
    content = item.get("content")
    parts = [{"type": "input_text", "text": content}] if isinstance(content, str) else content
    return {"id": f"msg_{secrets.token_hex(24)}", **item, "type": "message", "status": "completed", "content": parts}
