"""Samples of Gemini's `generateContent`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tests.conformance.samples import loaded


def _text_of(raw: bytes) -> str:
    held = json.loads(b"{%b}" % raw) if raw.startswith(b'"') else json.loads(raw)
    content = held.get("systemInstruction", held)
    return "\n".join(text for part in content.get("parts", []) for text in _texts(part))


def _texts(part: Mapping[str, Any]) -> list[str]:
    if "thought" in part:
        return []
    result = part.get("functionResponse") or part.get("function_response")
    if result is None:
        return [part["text"]] if "text" in part else []
    values = list(result["response"].values())
    return [values[0] if len(values) == 1 else json.dumps(result["response"], separators=(",", ":"))]


def _told_in(sent: bytes) -> Mapping[str, object]:
    text = sent.strip().removeprefix(b"data: ")
    told: Mapping[str, object] = json.loads(text) if text.startswith(b"{") else {}
    return told


def _check_stream(frames: Sequence[bytes]) -> None:
    """Data alone, without names and comments; each with a part, or both SDKs' chats forget the turn; the last one ends
    the answer, or is an error that begins with its member."""
    for number, frame in enumerate(frames):
        assert frame.startswith(b'data: {"'), "Google's SDK takes every other line for JSON"
        told: Any = _told_in(frame)
        if "error" in told:
            assert list(told) == ["error"]
            assert 400 <= told["error"]["code"] <= 599
        else:
            [candidate] = told["candidates"]
            assert candidate["content"]["parts"]
            assert ("finishReason" in candidate) is (number == len(frames) - 1)


SAMPLES = loaded("gemini", text_of=_text_of, check_stream=_check_stream, told_in=_told_in)
