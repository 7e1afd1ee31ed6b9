"""Frames of ours on a stream of this format: a response that begins, and one that fails."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from time import time
from typing import Any

import msgspec

from app.wire.sse import event

UNSAID: dict[str, Any] = {
    **dict.fromkeys(
        ("error", "incomplete_details", "instructions", "max_output_tokens", "temperature", "top_p", "usage")
    ),
    "output": [],
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
    "metadata": {},
}
"""Members that clients' types want of every response."""
FAILED = "server_error"
"""The code of a failure that has none."""


def new_id() -> str:
    return f"resp_{secrets.token_hex(24)}"


def response(id_: str, model: str, status: str, **members: Any) -> dict[str, Any]:
    """A response without output, as clients read it."""
    head = {"id": id_, "object": "response", "created_at": int(time()), "status": status, "model": model}
    return {**head, **UNSAID, **members}


def frame(type_: str, number: int, members: Mapping[str, Any]) -> bytes:
    return event(msgspec.json.encode({"type": type_, "sequence_number": number, **members}), type_)


def error_frames(envelope: bytes) -> bytes:
    """A refusal in a stream: as an error, flat and nested, because clients read either; then as the response's end,
    which is all that some of them show. An editor sets the numbers and the id right where others came before.
    """
    error: dict[str, Any] = msgspec.json.decode(envelope)["error"]
    flat = {name: error.get(name) for name in ("code", "message", "param")}
    failed = response(new_id(), "", "failed", error={"code": error.get("code") or FAILED, "message": flat["message"]})
    begun = frame("error", 0, {**flat, "error": error})
    return begun + frame("response.failed", 1, {"response": failed})
