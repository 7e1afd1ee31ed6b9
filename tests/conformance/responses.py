"""Samples of Responses."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tests.conformance.samples import loaded


def _text_of(raw: bytes) -> str:
    held = json.loads(b"{%b}" % raw) if raw.startswith(b'"instructions"') else json.loads(raw)
    if isinstance(held, str):
        return held
    if held.get("type", "message") not in ("message", "function_call_output") and "instructions" not in held:
        return "" if held["type"] == "reasoning" else raw.decode()
    content = held.get("content", held.get("output", held.get("instructions")))
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def frame(type_: str, number: int, **members: Any) -> bytes:
    data = json.dumps({"type": type_, "sequence_number": number, **members})
    return b"event: %b\ndata: %b\n\n" % (type_.encode(), data.encode())


def response(status: str, output: Sequence[Any] = (), **members: Any) -> dict[str, Any]:
    head = {"id": "resp_theirs", "object": "response", "created_at": 7, "model": "gpt-4o-2024", "error": None}
    return {**head, "status": status, "output": list(output), "usage": None, **members}


def ends(number: int, status: str = "completed", output: Sequence[Any] = (), **members: Any) -> bytes:
    return frame(f"response.{status}", number, response=response(status, output, **members))


def _check_stream(frames: Sequence[bytes]) -> None:
    """Comments aside: it begins once and ends once, its numbers have no gaps, its id stays, items are added before
    anything is said of them, and done once."""
    told = [dict(_told_in(each)) for each in frames if not each.startswith(b":")]
    types = [str(members["type"]) for members in told]
    assert types[0] == "response.created"
    assert types.count("response.created") == 1
    assert [members["sequence_number"] for members in told] == list(range(len(told)))
    assert types[-1] in ("response.completed", "response.incomplete", "response.failed", "error")
    assert sum(type_ in ("response.completed", "response.incomplete", "response.failed") for type_ in types) <= 1
    ids = {held["id"] for members in told if isinstance(held := members.get("response"), dict)}
    assert len(ids) == 1
    added: set[object] = set()
    for members in told:
        if members["type"] == "response.output_item.added":
            assert members["output_index"] == len(added)
            added.add(members["output_index"])
        elif "output_index" in members:
            assert members["output_index"] in added
    begun = types.index("response.output_item.added") if "response.output_item.added" in types else len(types)
    assert not {"response.in_progress", "response.queued"} & set(types[begun:])


def _told_in(sent: bytes) -> Mapping[str, object]:
    text = sent.partition(b"data: ")[2] or sent
    if not text.startswith(b"{"):
        return {}
    told: Mapping[str, object] = json.loads(text)
    return told


SAMPLES = loaded("responses", text_of=_text_of, check_stream=_check_stream, told_in=_told_in)
STREAM = SAMPLES.stream
BEGINNING = STREAM[:-1]
