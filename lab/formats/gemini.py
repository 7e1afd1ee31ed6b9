"""Gemini's generateContent: contents hold parts, and results stand in a user's content; the path names the model."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from lab.formats.format import (
    Called,
    Element,
    Reading,
    ReplayFormat,
    dicts,
    elements_of,
    events_of,
    member_of,
    object_of,
    whole_of,
    written,
)

POSTED = re.compile(r"/(v1|v1beta)/models/([^/:]+):(generateContent|streamGenerateContent)")
"""Version, model and method."""

_FREE = frozenset({
    "args", "response", "parameters", "parametersJsonSchema", "responseSchema", "responseJsonSchema", "partMetadata",
    "_responseJsonSchema",
})  # fmt: skip
"""Members whose keys are the client's own."""


class Gemini(ReplayFormat):
    name = "gemini"
    path = "/v1beta/models/gemini-2.5-pro:generateContent"
    history = "contents"
    instructions = "systemInstruction"
    beside = ("systemInstruction", "tools")
    begins_with_user = True
    ids = ("id",)

    def is_posted(self, path: str) -> bool:
        return POSTED.fullmatch(path) is not None

    def posted(self, model: str, stream: bool) -> tuple[str, dict[str, Any]]:
        method = "streamGenerateContent?alt=sse" if stream else "generateContent"
        return f"/v1beta/models/{model}:{method}", {}

    def key_headers(self, api_key: str) -> dict[str, str]:
        return {"x-goog-api-key": api_key}

    def said(self, role: str, text: str) -> Element:
        return {"role": {"assistant": "model"}.get(role, role), "parts": [{"text": text}]}

    def raw_messages(self, body: bytes) -> list[bytes]:
        told = _instructions(body)
        first = [msgspec.json.encode({**object_of(told), "role": "system"})] if told not in (b"", b"null") else []
        return [*first, *elements_of(member_of(body, self.history))]

    def prompt_of(self, body: bytes) -> bytes:
        return _instructions(body) + member_of(body, self.history)

    def reading(self, element: Element) -> Reading:
        said = [part for part in parts_of(element) if not part.get("thought")]
        calls = [part["functionCall"] for part in said if "functionCall" in part]
        answers = [part["functionResponse"] for part in said if "functionResponse" in part]
        role = {"model": "assistant"}.get(str(element.get("role")), str(element.get("role") or "user"))
        return Reading(
            role="tool" if answers and len(answers) == len(said) else role,
            texts=tuple(text for part in said if (text := _text(part)) is not None),
            calls=tuple(Called(_id(call), str(call.get("name")), written(call.get("args") or {})) for call in calls),
            answers=tuple(map(_id, answers)),
        )

    def traits(self, element: Element, read: Reading) -> dict[str, Any]:  # noqa: ARG002
        parts = parts_of(element)
        said = [part for part in parts if not part.get("thought")]
        known = ("text", "functionCall", "functionResponse")
        return {
            "plain": all("text" in part or "functionResponse" in part for part in said),
            "frame": msgspec.json.encode([element.get("role"), *map(_framed, said)], order="sorted"),
            "sealed": bool(parts) and not said,
            "opaque": any(not any(name in part for name in known) for part in said),
            "tied": len(said) < len(parts) or any("thoughtSignature" in part for part in said),
        }

    def answered(self, body: bytes) -> str | None:
        chunks = events_of(body) or [whole_of(body), *map(object_of, elements_of(body))]
        candidates = [candidate for chunk in chunks for candidate in dicts(chunk.get("candidates"))]
        said = [self.reading(candidate.get("content") or {}).text for candidate in candidates]
        return "".join(said) if any(each.get("finishReason") == "STOP" for each in candidates) else None

    def is_answer(self, elements: Sequence[Element], place: int) -> bool:
        return place > 0 and elements[place].get("role") == "model" != elements[place - 1].get("role")


def camel_case(value: Any) -> Any:
    """A value with its members' names in camelCase; the API takes snake_case, too, and both in one object."""
    if isinstance(value, list):
        return [camel_case(each) for each in value]
    if not isinstance(value, dict):
        return value
    named = {re.sub(r"(?<=[a-z])_([a-z])", lambda found: found[1].upper(), key): each for key, each in value.items()}
    return {key: each if key in _FREE else camel_case(each) for key, each in named.items()}


def parts_of(content: Any) -> list[Element]:
    """Parts of a content, with their members' names in camelCase."""
    return dicts(camel_case(content.get("parts"))) if isinstance(content, dict) else []


def _instructions(body: bytes) -> bytes:
    return member_of(body, "systemInstruction") or member_of(body, "system_instruction")


def _id(called: Element) -> str:
    """The id of a call or a result; its name where it has none."""
    return str(called.get("id") or called.get("name"))


def _text(part: Element) -> str | None:
    """The text of a part; of a result its only string, or all of it as JSON."""
    if "functionResponse" not in part:
        return part.get("text")
    response = part["functionResponse"].get("response")
    values = list(response.values()) if isinstance(response, dict) else []
    return written(values[0] if len(values) == 1 and isinstance(values[0], str) else response)


def _framed(part: Element) -> Element:
    """A part without its text and arguments, and without its signature."""
    left = {key: inner for key, inner in part.items() if key not in ("text", "thoughtSignature")}
    for name in ("functionCall", "functionResponse"):
        if name in left:
            left[name] = {key: inner for key, inner in left[name].items() if key not in ("args", "response")}
    return left
