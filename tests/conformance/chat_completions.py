"""Samples of Chat Completions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tests.conformance.samples import loaded


def _text_of(raw: bytes) -> str:
    content = json.loads(raw)["content"]
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def _check_stream(frames: Sequence[bytes]) -> None:
    """Nothing but chunks, of one head and with one role; an error or the end last."""
    told = [_told_in(each) for each in frames]
    assert all("choices" in _told_in(each) or "error" in _told_in(each) for each in frames if each[:7] == b"data: {")
    chunks = [members for members in told if "choices" in members]
    assert len({(members["id"], members["created"], members["model"]) for members in chunks}) == 1
    deltas = [choice["delta"] for members in chunks for choice in members["choices"]]
    assert [delta.get("role") for delta in deltas if "role" in delta] == ["assistant"]
    assert "role" in deltas[0]
    assert frames[-1] == b"data: [DONE]\n\n" or "error" in told[-1]


def _told_in(sent: bytes) -> Mapping[str, Any]:
    text = sent.removeprefix(b"data: ")
    if not text.startswith(b"{"):
        return {}
    told: Mapping[str, object] = json.loads(text)
    return told


SAMPLES = loaded("chat_completions", text_of=_text_of, check_stream=_check_stream, told_in=_told_in)
MESSAGES = SAMPLES.messages
