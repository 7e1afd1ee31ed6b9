"""The stream that was asked for, out of a message in one piece."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from time import time
from typing import Any

import msgspec

from app.errors import UpstreamUnreadable
from app.wire.members import RawObject, Unreadable, split_array
from app.wire.messages.errors import refusal_frame
from app.wire.sse import event
from app.wire.streamed import read_whole, taken_apart

_ENDS = ("stop_reason", "stop_sequence", "stop_details", "container")
"""Members that a stream gives where the message ends."""
_GROWN = {
    "text": (("text", "text_delta", "text"),),
    "thinking": (("thinking", "thinking_delta", "thinking"), ("signature", "signature_delta", "signature")),
}
"""Texts by the type of a block: those that come in deltas, with the delta's type and member."""
_USES = frozenset({"tool_use", "server_tool_use", "mcp_tool_use"})


def frames_of(body: bytes, headers: Sequence[tuple[bytes, bytes]]) -> Iterator[bytes]:
    """The frames of a whole message."""
    with taken_apart("message"):
        message = read_whole(body)
        blocks = split_array(message.raw("content") or b"null") if "content" in message else None
    if message.value("type") == "error" or message.value("error"):
        yield refusal_frame(200, headers, body, time())
        return
    if blocks is None:
        raise UpstreamUnreadable("The provider's answer is no message: it has no content.")
    ends = {name: msgspec.Raw(message.raw(name) or b"null") for name in _ENDS if name in message}
    begun = message.spliced(
        {"content": b"[]", **dict.fromkeys((n for n in ("stop_reason", "stop_sequence") if n in message), b"null")}
    )
    yield _event("message_start", message=msgspec.Raw(begun))
    for index, raw in enumerate(blocks):
        yield from _block_frames(index, raw)
    usage = {"usage": msgspec.Raw(message.raw("usage") or b"{}")}
    yield _event("message_delta", delta={"stop_reason": "end_turn", **ends}, **usage)
    yield _event("message_stop")


def _block_frames(index: int, raw: bytes) -> Iterator[bytes]:
    try:
        block = RawObject(raw)
    except Unreadable as error:
        raise UpstreamUnreadable("The provider's answer is no message: a block of it is no object.") from error
    kind = block.value("type")
    emptied: dict[str, bytes] = {}
    deltas: list[dict[str, Any]] = []
    for name, delta, member in _GROWN.get(kind, ()) if isinstance(kind, str) else ():
        if block.value(name):
            emptied[name] = b'""'
            deltas.append({"type": delta, member: msgspec.Raw(block.raw(name) or b'""')})
    if kind in _USES and "input" in block:
        emptied["input"] = b"{}"
        deltas.append({"type": "input_json_delta", "partial_json": (block.raw("input") or b"{}").decode()})
    if kind == "compaction":
        held = {name: msgspec.Raw(block.raw(name) or b"null") for name in ("content", "encrypted_content")}
        emptied = {name: b"null" for name in held if name in block}
        deltas.append({"type": "compaction_delta", **held})
    yield _event("content_block_start", index=index, content_block=msgspec.Raw(block.spliced(emptied)))
    for piece in deltas:
        yield _event("content_block_delta", index=index, delta=piece)
    yield _event("content_block_stop", index=index)


def _event(kind: str, **members: Any) -> bytes:
    return event(msgspec.json.encode({"type": kind, **members}), kind)
