"""Chat Completions, as the judge reads them: every message is one, and instructions stand among them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

import msgspec

from lab.replay.formats.format import Element, elements_of, member_of
from lab.replay.sent import SentMessage


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
        decoded = msgspec.json.decode(raw)
        value: Mapping[str, Any] = decoded if isinstance(decoded, dict) else {}
        texts = _texts(value.get("content"))
        calls = [call for call in value.get("tool_calls") or () if isinstance(call, dict)]
        functions: Sequence[Mapping[str, Any]] = [call.get("function") or {} for call in calls]
        called = [str(function.get(key) or "") for function in functions for key in ("name", "arguments")]
        return SentMessage(
            raw=raw,
            role=str(value.get("role")),
            pieces=tuple(texts + called),
            texts=len(texts),
            plain=not calls and isinstance(value.get("content"), str),
            calls=tuple(str(call.get("id")) for call in calls),
            answers=(str(value["tool_call_id"]),) if value.get("role") == "tool" else (),
            frame=_frame(value, calls),
        )

    def is_answer(self, elements: Sequence[Element], place: int) -> bool:
        return place > 0 and elements[place].get("role") == "assistant"

    def is_instruction(self, element: Element) -> bool:
        return element.get("role") == "system"

    def renamed(self, elements: Sequence[Element], number: int) -> list[Element]:
        """With the ids of their calls made anew, in order."""
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


def _frame(value: Mapping[str, Any], calls: Sequence[Mapping[str, Any]]) -> bytes:
    content = value.get("content")
    parts = content if isinstance(content, list) else []
    left = {
        "content": [part for part in parts if not _is_text(part)],
        "calls": [(call.get("id"), (call.get("function") or {}).get("name")) for call in calls],
    }
    others = {key: inner for key, inner in value.items() if key not in ("content", "tool_calls")}
    return msgspec.json.encode([others, left], order="sorted")


def _texts(content: Any) -> list[str]:
    if isinstance(content, str):
        return [content]
    parts = content if isinstance(content, list) else []
    return [part["text"] for part in parts if _is_text(part)]


def _is_text(part: Any) -> bool:
    return isinstance(part, dict) and isinstance(part.get("text"), str)
