"""Chat Completions: every message is an element, and instructions stand among them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from lab.formats.format import Called, Element, Reading, ReplayFormat, dicts, events_of, whole_of


class ChatCompletions(ReplayFormat):
    name = "chat_completions"
    path = "/v1/chat/completions"
    ids = ("id", "tool_call_id")

    def traits(self, element: Element, read: Reading) -> dict[str, Any]:
        plain = not read.calls and isinstance(element.get("content"), str)
        return {"plain": plain, "frame": _frame(element, read.calls)}

    def reading(self, element: Element) -> Reading:
        return Reading(
            role=str(element.get("role")),
            texts=tuple(_texts(element.get("content"))),
            calls=tuple(map(_called, dicts(element.get("tool_calls")))),
            answers=(str(element["tool_call_id"]),) if element.get("role") == "tool" else (),
        )

    def answered(self, body: bytes) -> str | None:
        if events := events_of(body):
            choices = [choice for event in events for choice in dicts(event.get("choices"))]
            said = [str((choice.get("delta") or {}).get("content") or "") for choice in choices]
            return "".join(said) if any(choice.get("finish_reason") for choice in choices) else None
        choices = dicts(whole_of(body).get("choices"))
        return self.reading(choices[0].get("message") or {}).text if choices else None


def _called(call: Element) -> Called:
    function = call.get("function") or call.get("custom") or {}
    return Called(
        str(call.get("id")),
        str(function.get("name") or ""),
        str(function.get("arguments") or function.get("input") or ""),
    )


def _frame(value: Mapping[str, Any], calls: Sequence[Called]) -> bytes:
    content = value.get("content")
    parts = content if isinstance(content, list) else []
    left = {
        "content": [part for part in parts if not _is_text(part)],
        "calls": [(call.id, call.name) for call in calls],
    }
    others = {key: inner for key, inner in value.items() if key not in ("content", "tool_calls")}
    return msgspec.json.encode([others, left], order="sorted")


def _texts(content: Any) -> list[str]:
    if isinstance(content, str):
        return [content]
    return [part["text"] for part in dicts(content) if _is_text(part)]


def _is_text(part: Any) -> bool:
    return isinstance(part, dict) and isinstance(part.get("text"), str)
