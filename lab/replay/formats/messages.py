"""Messages, as the judge reads them: results stand in a user's message, and the system prompt beside all of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from lab.replay.formats.format import Element, dicts, elements_of, member_of, object_of, written
from lab.replay.sent import SentMessage

RESULT, USE, MARK = "tool_result", "tool_use", "cache_control"
THOUGHTS = frozenset({"thinking", "redacted_thinking"})
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
        blocks = _blocks(value.get("content"))
        said = [block for block in blocks if block.get("type") not in THOUGHTS]
        answers = tuple(str(block.get("tool_use_id")) for block in said if block.get("type") == RESULT)
        uses = [block for block in said if block.get("type") == USE]
        texts = list(_texts(said))
        called = [text for use in uses for text in (str(use.get("name")), written(use.get("input")))]
        others = {key: inner for key, inner in value.items() if key != "content"}
        return SentMessage(
            raw=raw,
            role="tool" if answers and len(answers) == len(said) else str(value.get("role")),
            pieces=(*texts, *called),
            texts=len(texts),
            plain=all(block.get("type") in ("text", RESULT) for block in said),
            calls=tuple(str(use.get("id")) for use in uses),
            answers=answers,
            frame=msgspec.json.encode([others, *map(_framed, said)], order="sorted"),
            sealed=bool(blocks) and not said,
            opaque=any(block.get("type") not in READ for block in said),
            tied=len(said) < len(blocks) or MARK.encode() in raw,
        )

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


def _blocks(content: Any) -> list[Element]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else dicts(content)


def _texts(blocks: Sequence[Element]) -> Iterator[str]:
    for block in blocks:
        match block:
            case {"type": "text", "text": str(text)}:
                yield text
            case {"type": "document", "source": {"type": "text", "data": str(text)}}:
                yield text
            case {"type": "tool_result" | "search_result"}:
                yield from _texts(_blocks(block.get("content")))


def _framed(block: Element) -> Element:
    """A block without its texts and arguments, and without its mark."""
    left = {key: inner for key, inner in block.items() if key not in (MARK, "text", "input")}
    if block.get("type") in (RESULT, "search_result"):
        left["content"] = [_framed(inner) for inner in _blocks(block.get("content")) if inner.get("type") != "text"]
    return left
