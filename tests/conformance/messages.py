"""Samples of Messages."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tests.conformance.samples import loaded

_READ = ("text", "title", "url", "stdout", "content")


def _texts(value: Any) -> list[str]:
    """What a reader finds who walks through everything that is no source and no thought."""
    if isinstance(value, list):
        return [text for item in value for text in _texts(item)]
    if not isinstance(value, dict):
        return []
    found = []
    for key, held in value.items():
        if isinstance(held, str):
            found += [held] if key in _READ else []
        elif key not in ("source", "input"):
            found += _texts(held)
    return found


def _text_of(raw: bytes) -> str:
    held = json.loads(raw)
    return held if isinstance(held, str) else "\n".join(_texts(held))


def frame(kind: str, **members: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), json.dumps({"type": kind, **members}).encode())


def start(**usage: int) -> bytes:
    head = {"id": "msg_theirs", "type": "message", "role": "assistant", "model": "claude-sonnet-4-5-2025"}
    ends: dict[str, Any] = {"content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
    return frame("message_start", message={**head, **ends}, x_unknown=1.5)


def delta(reason: str, **usage: int) -> bytes:
    return frame("message_delta", delta={"stop_reason": reason, "stop_sequence": None}, usage=usage)


def text(index: int, *pieces: str) -> tuple[bytes, ...]:
    return (
        frame("content_block_start", index=index, content_block={"type": "text", "text": ""}),
        *(frame("content_block_delta", index=index, delta={"type": "text_delta", "text": piece}) for piece in pieces),
        frame("content_block_stop", index=index),
    )


def _told_in(sent: bytes) -> Mapping[str, object]:
    lines = [line for line in sent.splitlines() if not line.startswith((b"event:", b":"))]
    text = b"\n".join(lines).strip().removeprefix(b"data:").strip()
    if not text.startswith(b"{"):
        return {}
    told: Mapping[str, object] = json.loads(text)
    return told


def _check_stream(frames: Sequence[bytes]) -> None:
    """The order that the SDKs and the AI SDK insist on: one beginning, whole blocks in their order, one end."""
    events = [_told_in(each) for each in frames if not each.startswith(b":")]
    for each, told in zip([each for each in frames if not each.startswith(b":")], events, strict=True):
        assert each.startswith(b"event: %b\n" % str(told["type"]).encode()), "an event has its type for a name"
    kinds = [str(told["type"]) for told in events if told["type"] != "ping"]
    assert kinds[0] == "message_start"
    assert kinds.count("message_start") == 1
    opened: list[object] = []
    for told in events:
        match told["type"]:
            case "content_block_start":
                assert told["index"] == len(opened)
                opened.append(told["content_block"])
            case "content_block_delta" | "content_block_stop":
                assert told["index"] == len(opened) - 1
    assert kinds.count("content_block_start") == kinds.count("content_block_stop")
    assert "error" in kinds[-1:] or kinds[-2:] == ["message_delta", "message_stop"]


SAMPLES = loaded("messages", text_of=_text_of, check_stream=_check_stream, told_in=_told_in)
STREAM, WHOLE = SAMPLES.stream, SAMPLES.whole
