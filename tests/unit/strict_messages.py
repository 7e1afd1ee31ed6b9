"""A judge of Messages requests as strict as the API itself, written by its documents and refusals and not by Steno.

It knows nothing of views: it looks at a body as a provider does, and says what that would refuse.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

Json = Mapping[str, Any]
MOST_MARKS = 4


def refusals(body: Json) -> list[str]:
    """Why the API would refuse the body; empty where it would not."""
    messages: Sequence[Json] = body["messages"]
    if not messages:
        return ["messages: at least one message is required"]
    return [
        *_order(messages),
        *_contents(messages),
        *_tools(messages),
        *_served(messages),
        *_marks(body),
        *([] if _role(messages[-1]) != "assistant" or _is_paused(messages[-1]) else ["no prefill"]),
    ]


def _role(message: Json) -> str:
    role: str = message["role"]
    return role


def _blocks(content: Any) -> list[Json]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)


def _order(messages: Sequence[Json]) -> Iterator[str]:
    if _role(messages[0]) != "user":
        yield 'messages: first message must use the "user" role'
    for place, message in enumerate(messages):
        if _role(message) not in ("user", "assistant", "system"):
            yield f"messages.{place}.role: {_role(message)}"
        if _role(message) != "system":
            continue
        before = [_role(m) for m in messages[:place] if _role(m) != "system"]
        behind = [_role(m) for m in messages[place:] if _role(m) != "system"]
        if before[-1:] != ["user"] or behind[:1] not in ([], ["assistant"]):
            yield f"messages.{place}: a system message between {before[-1:]} and {behind[:1]}"


def _contents(messages: Sequence[Json]) -> Iterator[str]:
    for place, message in enumerate(messages):
        if not message["content"]:
            yield f"messages.{place}: all messages must have non-empty content"
        for block in _all_blocks(message["content"]):
            if block["type"] == "text" and not block["text"].strip():
                yield f"messages.{place}: text content blocks must be non-empty"
        if _blocks(message["content"])[-1]["type"] in ("thinking", "redacted_thinking"):
            yield f"messages.{place}: thinking stands last"


def _all_blocks(content: Any) -> Iterator[Json]:
    for block in _blocks(content):
        yield block
        if block["type"] == "tool_result" and "content" in block and block["content"] != "":
            yield from _all_blocks(block["content"])


def _turns(messages: Sequence[Json]) -> list[tuple[str, list[Json]]]:
    """Neighbours of one role are one turn."""
    said = (message for message in messages if _role(message) != "system")
    return [
        (role, [block for message in group for block in _blocks(message["content"])])
        for role, group in groupby(said, key=_role)
    ]


def _tools(messages: Sequence[Json]) -> Iterator[str]:
    turns = _turns(messages)
    seen: set[str] = set()
    for place, (role, blocks) in enumerate(turns):
        results = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
        calls: list[str] = []
        if place and role == "user":
            calls = [block["id"] for block in turns[place - 1][1] if block["type"] == "tool_use"]
        if role == "assistant" and results:
            yield f"turn {place}: tool_result blocks can only be in user messages"
        if role == "user":
            if sorted(results) != sorted(calls):
                yield f"turn {place}: `tool_use` ids {calls} are answered by {results}"
            if [block["type"] for block in blocks[: len(results)]] != ["tool_result"] * len(results):
                yield f"turn {place}: results do not stand first"
        for block in blocks:
            if block["type"] == "tool_use":
                if block["id"] in seen:
                    yield f"turn {place}: `tool_use` ids must be unique"
                if not isinstance(block["input"], dict):
                    yield f"turn {place}: input is no object"
                seen.add(block["id"])
    if turns[-1][0] == "assistant" and any(block["type"] == "tool_use" for block in turns[-1][1]):
        yield "the last calls have no results"


def _served(messages: Sequence[Json]) -> Iterator[str]:
    turns = _turns(messages)
    for place, (_, blocks) in enumerate(turns):
        opened: set[str] = set()
        for block in blocks:
            if block["type"] in ("server_tool_use", "mcp_tool_use"):
                opened.add(block["id"])
            elif block["type"].endswith("_tool_result"):
                if block["tool_use_id"] not in opened:
                    yield f"turn {place}: unexpected `tool_use_id` in {block['type']}"
                opened.discard(block["tool_use_id"])
        if opened and place < len(turns) - 1:
            yield f"turn {place}: {opened} have no results"


def _is_paused(message: Json) -> bool:
    return any(block["type"] == "server_tool_use" for block in _blocks(message["content"]))


def marks_of(body: Json) -> list[tuple[str, Json]]:
    """All marks in the order of the prompt: their time, and what they stand on."""
    marked = [*body.get("tools", ()), *_blocks(body.get("system", ()))]
    for message in body["messages"]:
        for block in _blocks(message["content"]):
            if isinstance(block.get("content"), list):
                marked += block["content"]
            marked.append(block)
    return [(held["cache_control"].get("ttl", "5m"), held) for held in marked if held.get("cache_control")]


def _marks(body: Json) -> Iterator[str]:
    marks = marks_of(body)
    if len(marks) > MOST_MARKS:
        yield f"A maximum of 4 blocks with cache_control may be provided. Found {len(marks)}."
    times = [time for time, _ in marks]
    if sorted(times) != times:  # "1h" sorts before "5m".
        yield "a ttl='1h' cache_control block must not come after a ttl='5m' cache_control block"
    for _, held in marks:
        if held.get("type") in ("thinking", "redacted_thinking") or held.get("text") == "":
            yield "cache_control on a block that takes none"
