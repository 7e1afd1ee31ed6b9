"""Prompt tokens of a chat request, by the rules that real providers charge by: those that Steno estimates with, too.

What is counted is the lab's own reading of the request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Any

import msgspec

from app.core.history.messages import History, Kind, Media, Message, ToolCall
from app.core.tokens.declarations import Declarations, ResponseFormat, Tool
from app.core.tokens.estimate import Count
from app.core.view.view import Costs
from app.providers.estimator import Estimator
from lab.formats.chat_completions import text_parts
from lab.formats.format import Element, dicts, elements_of, object_of
from lab.formats.known import CHAT_COMPLETIONS
from lab.formats.media import pixels

KINDS = {
    "system": Kind.INSTRUCTIONS,
    "developer": Kind.INSTRUCTIONS,
    "user": Kind.USER,
    "assistant": Kind.ASSISTANT,
    "tool": Kind.RESULT,
    "function": Kind.RESULT,
}
MEDIA = {"image_url": "image", "input_audio": "audio", "file": "file"}
BYTES_PER_SECOND = 32_000
"""Bytes of a second of sound, whatever its format."""
DECLARING = ("tools", "functions", "tool_choice", "function_call", "response_format")
_CACHED_MESSAGES = 50_000


@dataclass(frozen=True, slots=True)
class ChatWords:
    """One text counter for all encodings."""

    count: Count
    missing: tuple[str, ...] = ()

    def counter(self, _: str) -> Count:
        return self.count


class ChatCounting:
    """Counts requests; a message that was counted before costs a look-up. Not for several threads."""

    def __init__(self, count: Count) -> None:
        self._estimator = Estimator(ChatWords(count))
        self._message = lru_cache(_CACHED_MESSAGES)(counted_message)

    def costs(self, model: str, parts: Sequence[bytes], raw: Mapping[str, msgspec.Raw]) -> Costs:
        """Tokens of each message, and of what is declared beside them."""
        declared = {name: raw[name] for name in DECLARING if name in raw}
        source = msgspec.json.encode(declared)
        messages = History(map(self._message, parts))
        return self._estimator.prompt(model, messages, source, lambda: declarations_in(declared)).costs()


def counted_message(raw: bytes) -> Message:
    """A message as far as its cost depends on it."""
    element = object_of(raw)
    read = CHAT_COMPLETIONS.reading(element)
    kind = KINDS.get(read.role, Kind.OTHER)
    refusal, name, answers = (_text(element, key) for key in ("refusal", "name", "tool_call_id"))
    calls = [ToolCall(*call) for call in read.calls]
    if legacy := _object(element.get("function_call")):
        calls.append(ToolCall("", _text(legacy, "name"), _text(legacy, "arguments")))
    return Message(
        kind=kind,
        role=read.role,
        texts=(*read.texts, refusal) if refusal else read.texts,
        raw=raw,
        digest=blake2b(raw, digest_size=16).digest(),
        name=name,
        calls=tuple(calls),
        answers=(answers,) if kind is Kind.RESULT else (),
        media=tuple(_media(part) for part in dicts(element.get("content")) if part not in text_parts(element)),
    )


def declarations_in(declared: Mapping[str, msgspec.Raw]) -> Declarations:
    """Tools and response format of a request that was accepted."""
    held = {name: msgspec.json.decode(value) for name, value in declared.items()}
    tools, functions = dicts(held.get("tools")), dicts(held.get("functions"))
    texts = elements_of(bytes(declared.get("tools", b"[]")))
    choice = held.get("tool_choice") or held.get("function_call")
    named = _object(choice)
    schema = _object(_object(held.get("response_format")).get("json_schema"))
    return Declarations(
        tools=tuple(map(_tool, (*(tool["function"] for tool in tools if "function" in tool), *functions))),
        legacy=bool(functions),
        choice=choice if isinstance(choice, str) else "",
        forced=_text(_object(named.get("function", named)), "name"),
        response_format=_response_format(schema) if schema else None,
        others=tuple(text.decode() for text in texts if "function" not in object_of(text)),
    )


def _tool(function: Element) -> Tool:
    return Tool(_text(function, "name"), _text(function, "description"), _object(function.get("parameters")))


def _response_format(schema: Element) -> ResponseFormat:
    return ResponseFormat(_text(schema, "name"), _text(schema, "description"), _object(schema.get("schema")))


def _media(part: Element) -> Media:
    kind = str(part.get("type"))
    held = _object(part.get(kind))
    size = sum(len(value) for value in held.values() if isinstance(value, str))
    width, height = pixels(_text(held, "url"))
    seconds = size * 3 // 4 / BYTES_PER_SECOND if kind == "input_audio" else 0.0
    return Media(MEDIA.get(kind, kind), size, _text(held, "detail"), width, height, seconds)


def _object(value: Any) -> Element:
    return value if isinstance(value, dict) else {}


def _text(held: Mapping[str, Any], key: str) -> str:
    value = held.get(key)
    return value if isinstance(value, str) else ""
