"""Chat Completions: every message is an element, and instructions stand among them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

import msgspec

from lab.formats.format import Called, Element, Reading, dicts, elements_of, events_of, member_of, object_of, whole_of
from lab.formats.sent import SentMessage


class ChatCompletions:
    name = "chat_completions"
    path = "/v1/chat/completions"
    history = "messages"
    beside: Sequence[str] = ()
    begins_with_user = False

    def raw_messages(self, body: bytes) -> list[bytes]:
        return elements_of(member_of(body, self.history))

    def prompt_of(self, body: bytes) -> bytes:
        return member_of(body, self.history)

    def message(self, raw: bytes) -> SentMessage:
        value = object_of(raw)
        read = self.reading(value)
        return SentMessage(
            raw=raw,
            role=read.role,
            pieces=read.pieces,
            texts=len(read.texts),
            plain=not read.calls and isinstance(value.get("content"), str),
            calls=tuple(call.id for call in read.calls),
            answers=read.answers,
            frame=_frame(value, read.calls),
        )

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

    def is_answer(self, elements: Sequence[Element], place: int) -> bool:
        return place > 0 and elements[place].get("role") == "assistant"

    def is_instruction(self, element: Element) -> bool:
        return element.get("role") == "system"

    def renamed(self, elements: Sequence[Element], number: int) -> list[Element]:
        """Elements with the ids of their calls made anew, in order."""
        names: dict[str, str] = {}
        made: list[Element] = []
        numbers = count()
        for element in elements:
            if calls := element.get("tool_calls"):
                for call in calls:
                    names[call["id"]] = f"call_{number}_{next(numbers)}"
                made.append({**element, "tool_calls": [{**call, "id": names[call["id"]]} for call in calls]})
            elif element["role"] == "tool" and element.get("tool_call_id") in names:
                made.append({**element, "tool_call_id": names[element["tool_call_id"]]})
            else:
                made.append(element)
        return made


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


def text_parts(element: Element) -> list[Element]:
    """Parts of a message that are text, refusals included."""
    return [part for part in dicts(element.get("content")) if _is_text(part) or part.get("type") == "refusal"]


def _texts(content: Any) -> list[str]:
    if isinstance(content, str):
        return [content]
    return [part["text"] for part in dicts(content) if _is_text(part)]


def _is_text(part: Any) -> bool:
    return isinstance(part, dict) and isinstance(part.get("text"), str)
