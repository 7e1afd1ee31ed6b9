"""Messages: results stand in a user's message, and the system prompt beside all of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from lab.formats.format import (
    Called,
    Element,
    Reading,
    dicts,
    elements_of,
    events_of,
    member_of,
    object_of,
    whole_of,
    written,
)
from lab.formats.sent import SentMessage

RESULT, USE, MARK = "tool_result", "tool_use", "cache_control"
THINKING = frozenset({"thinking", "redacted_thinking"})
READ = frozenset({"text", "tool_use", "tool_result", "search_result"})
"""Blocks of which a reader is shown the texts and the arguments, and nothing else."""
IDS = ("id", "tool_use_id")


class Messages:
    name = "messages"
    path = "/v1/messages"
    history = "messages"
    beside: Sequence[str] = ("system", "tools")
    begins_with_user = True

    def raw_messages(self, body: bytes) -> list[bytes]:
        system = member_of(body, "system")
        first = [b'{"role":"system","content":%b}' % system] if system not in (b"", b"null") else []
        return [*first, *elements_of(member_of(body, self.history))]

    def prompt_of(self, body: bytes) -> bytes:
        return member_of(body, "system") + member_of(body, self.history)

    def message(self, raw: bytes) -> SentMessage:
        value = object_of(raw)
        read = self.reading(value)
        blocks = blocks_of(value.get("content"))
        said = [block for block in blocks if block.get("type") not in THINKING]
        others = {key: inner for key, inner in value.items() if key != "content"}
        return SentMessage(
            raw=raw,
            role=read.role,
            pieces=read.pieces,
            texts=len(read.texts),
            plain=all(block.get("type") in ("text", RESULT) for block in said),
            calls=tuple(call.id for call in read.calls),
            answers=read.answers,
            frame=msgspec.json.encode([others, *map(_framed, said)], order="sorted"),
            sealed=bool(blocks) and not said,
            opaque=any(block.get("type") not in READ for block in said),
            tied=len(said) < len(blocks) or MARK.encode() in raw,
        )

    def reading(self, element: Element) -> Reading:
        said = [block for block in blocks_of(element.get("content")) if block.get("type") not in THINKING]
        answers = tuple(str(block.get("tool_use_id")) for block in said if block.get("type") == RESULT)
        uses = (block for block in said if block.get("type") == USE)
        return Reading(
            role="tool" if answers and len(answers) == len(said) else str(element.get("role")),
            texts=tuple(_texts(said)),
            calls=tuple(Called(str(use.get("id")), str(use.get("name")), written(use.get("input"))) for use in uses),
            answers=answers,
        )

    def answered(self, body: bytes) -> str | None:
        if events := events_of(body):
            said = [str((event.get("delta") or {}).get("text") or "") for event in events]
            return "".join(said) if any(event.get("type") == "message_stop" for event in events) else None
        whole = whole_of(body)
        return self.reading(whole).text if whole.get("type") == "message" else None

    def is_answer(self, elements: Sequence[Element], place: int) -> bool:
        return place > 0 and elements[place].get("role") == "assistant"

    def is_instruction(self, element: Element) -> bool:  # noqa: ARG002 - it stands beside them
        return False

    def renamed(self, elements: Sequence[Element], number: int) -> list[Element]:
        return [_renamed(element, number) for element in elements]


def _renamed(element: Element, number: int) -> Element:
    if not isinstance(element.get("content"), list):
        return element
    named = [
        {key: f"{inner}_{number}" if key in IDS else inner for key, inner in block.items()}
        for block in dicts(element["content"])
    ]
    return {**element, "content": named}


def blocks_of(content: Any) -> list[Element]:
    """Blocks of a content; a string is one block of text."""
    return [{"type": "text", "text": content}] if isinstance(content, str) else dicts(content)


def _texts(blocks: Sequence[Element]) -> Iterator[str]:
    for block in blocks:
        match block:
            case {"type": "text", "text": str(text)}:
                yield text
            case {"type": "document", "source": {"type": "text", "data": str(text)}}:
                yield text
            case {"type": "tool_result" | "search_result"}:
                yield from _texts(blocks_of(block.get("content")))


def _framed(block: Element) -> Element:
    """A block without its texts and arguments, and without its mark."""
    left = {key: inner for key, inner in block.items() if key not in (MARK, "text", "input")}
    if block.get("type") in (RESULT, "search_result"):
        left["content"] = [_framed(inner) for inner in blocks_of(block.get("content")) if inner.get("type") != "text"]
    return left
