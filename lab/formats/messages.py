"""Messages: results stand in a user's message, and the system prompt beside all of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from lab.formats.format import Called, Element, Reading, ReplayFormat, dicts, events_of, whole_of, written

RESULT, USE, MARK = "tool_result", "tool_use", "cache_control"
THINKING = frozenset({"thinking", "redacted_thinking"})
MOST_OUTPUT = 1_024
"""Tokens of an answer that a request allows: Messages have to name them."""
READ = frozenset({"text", "tool_use", "tool_result", "search_result"})
"""Blocks of which a reader is shown the texts and the arguments, and nothing else."""


class Messages(ReplayFormat):
    name = "messages"
    path = "/v1/messages"
    instructions = "system"
    beside = ("system", "tools")
    begins_with_user = True
    ids = ("id", "tool_use_id")

    def posted(self, model: str, stream: bool) -> tuple[str, dict[str, Any]]:
        path, members = super().posted(model, stream)
        return path, {**members, "max_tokens": MOST_OUTPUT}

    def key_headers(self, api_key: str) -> dict[str, str]:
        return {"x-api-key": api_key, "anthropic-version": "2023-06-01"}

    def traits(self, element: Element, read: Reading) -> dict[str, Any]:  # noqa: ARG002
        blocks = blocks_of(element.get("content"))
        said = [block for block in blocks if block.get("type") not in THINKING]
        others = {key: inner for key, inner in element.items() if key != "content"}
        return {
            "plain": all(block.get("type") in ("text", RESULT) for block in said),
            "frame": msgspec.json.encode([others, *map(_framed, said)], order="sorted"),
            "sealed": bool(blocks) and not said,
            "opaque": any(block.get("type") not in READ for block in said),
            "tied": len(said) < len(blocks) or any(map(_is_marked, said)),
        }

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


def _is_marked(block: Element) -> bool:
    inner = block.get("content")
    return MARK in block or any(map(_is_marked, dicts(inner)))


def _framed(block: Element) -> Element:
    """A block without its texts and arguments, and without its mark."""
    left = {key: inner for key, inner in block.items() if key not in (MARK, "text", "input")}
    if block.get("type") in (RESULT, "search_result"):
        left["content"] = [_framed(inner) for inner in blocks_of(block.get("content")) if inner.get("type") != "text"]
    return left
