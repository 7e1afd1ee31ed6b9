"""Counters of other libraries, for the same scoring as `benchmarks.counters`.

They need packages that Steno does not, in an environment of their own (docs/estimates.md).
"""

from __future__ import annotations

from typing import Any

import tiktoken

Request = dict[str, Any]


def litellm(request: Request) -> int:
    """LiteLLM's `token_counter`, with all it takes of a request."""
    from litellm.utils import token_counter  # noqa: PLC0415 - only where it is scored

    choice = request.get("tool_choice")
    return token_counter(
        model=request["model"],
        messages=request["messages"],
        tools=request.get("tools"),
        tool_choice=choice if choice is not None else None,
    )


def cookbook(request: Request) -> int:
    """The formula of OpenAI's cookbook for messages and for tools."""
    count = _count(request["model"])
    tokens = 3
    for message in request["messages"]:
        tokens += 3
        for key, value in message.items():
            tokens += count(value) if isinstance(value, str) else 0
            tokens += 1 if key == "name" else 0
    tools = request.get("tools") or ()
    for tool in tools:
        function = tool.get("function", {})
        line = f"{function.get('name')}:{(function.get('description') or '').rstrip('.')}"
        tokens += 7 + count(line)
        properties = (function.get("parameters") or {}).get("properties") or {}
        tokens += 3 if properties else 0
        for name, value in properties.items():
            tokens += 3 + count(f"{name}:{value.get('type')}:{(value.get('description') or '').rstrip('.')}")
            if "enum" in value:
                tokens += -3 + sum(3 + count(str(item)) for item in value["enum"])
    return tokens + (12 if tools else 0)


def texts(request: Request) -> int:
    """Naive tiktoken: the texts of the messages and nothing else."""
    count = _count(request["model"])
    contents = (message.get("content") for message in request["messages"])
    return sum(count(text) for content in contents for text in _texts(content))


def _texts(content: object) -> list[str]:
    if isinstance(content, str):
        return [content]
    parts = content if isinstance(content, list) else []
    return [part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str)]


def _count(model: str) -> Any:
    try:
        encoding = tiktoken.encoding_for_model(model)
    except KeyError:
        encoding = tiktoken.get_encoding("o200k_base")
    return lambda text: len(encoding.encode(text, disallowed_special=()))
