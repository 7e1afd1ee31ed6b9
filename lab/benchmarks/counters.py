"""Counters of other libraries, for the same scoring as `lab.benchmarks.accuracy`.

    grep -Ev '"class": "(other-|image-url|audio|file)' ROWS > CORE    # the rivals would fetch the rest
    python token_accuracy.py lab.benchmarks.counters:litellm CORE --path .    # also :cookbook, :texts

They need packages that Steno does not, in an environment of their own: litellm 1.106.2 and tiktoken 0.14.0, with
HF_HUB_OFFLINE=1, LITELLM_LOCAL_MODEL_COST_MAP=True and TIKTOKEN_CACHE_DIR=.tables. Each is given the best that its
documentation allows: the name without a provider before it, and `functions`, which none of them knows, as tools.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import tiktoken

Request = dict[str, Any]


def litellm(request: Request) -> int:
    """LiteLLM's `token_counter`, with all it takes of a request."""
    from litellm.utils import token_counter  # noqa: PLC0415 - only where it is scored

    choice = request.get("tool_choice") or request.get("function_call")
    if isinstance(choice, dict) and "name" in choice:
        choice = {"type": "function", "function": choice}
    tokens: int = token_counter(
        model=_model(request), messages=request["messages"], tools=_tools(request) or None, tool_choice=choice
    )
    return tokens


def cookbook(request: Request) -> int:
    """The formulas of OpenAI's cookbook for messages and for tools.

    As written they raise on content parts, on calls and on what a schema leaves out: here parts are texts, calls are
    left out, and what is missing is empty.
    """
    count = _count(request)
    tokens = 3
    for message in request["messages"]:
        tokens += 3 + sum(map(count, _texts(message.get("content"))))
        tokens += sum(count(value) for key, value in message.items() if key != "content" and isinstance(value, str))
        tokens += 1 if "name" in message else 0
    tools = _tools(request)
    opening = 10 if _model(request).startswith(("gpt-3.5", "gpt-4-")) or _model(request) == "gpt-4" else 7
    return tokens + sum(opening + _function(tool.get("function", {}), count) for tool in tools) + (12 if tools else 0)


def texts(request: Request) -> int:
    """Naive tiktoken: the texts of the messages and nothing else."""
    count = _count(request)
    return sum(count(text) for message in request["messages"] for text in _texts(message.get("content")))


def _function(function: dict[str, Any], count: Callable[[str], int]) -> int:
    tokens = count(f"{function.get('name')}:{_sentence(function)}")
    properties: dict[str, Any] = (function.get("parameters") or {}).get("properties") or {}
    tokens += 3 if properties else 0
    for name, value in properties.items():
        tokens += 3 + count(f"{name}:{value.get('type', '')}:{_sentence(value)}")
        if "enum" in value:
            tokens += -3 + sum(3 + count(str(item)) for item in value["enum"])
    return tokens


def _sentence(described: dict[str, Any]) -> str:
    return (described.get("description") or "").removesuffix(".")


def _tools(request: Request) -> list[dict[str, Any]]:
    wrapped = [{"type": "function", "function": function} for function in request.get("functions") or ()]
    return [*(request.get("tools") or ()), *wrapped]


def _texts(content: object) -> Iterable[str]:
    if isinstance(content, str):
        return [content]
    parts = content if isinstance(content, list) else []
    return [part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str)]


def _model(request: Request) -> str:
    name: str = request["model"]
    return name.rsplit("/", 1)[-1]


def _count(request: Request) -> Callable[[str], int]:
    try:
        encoding = tiktoken.encoding_for_model(_model(request))
    except KeyError:
        encoding = tiktoken.get_encoding("o200k_base")
    return lambda text: len(encoding.encode(text, disallowed_special=()))
