"""Contents: their paths, the two spellings of their members, and what they say."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

Json = Mapping[str, Any]

POSTED = re.compile(r"/(v1|v1beta)/models/([^/:]+):(generateContent|streamGenerateContent)")
"""Version, model and method."""

_FREE = frozenset({
    "args", "response", "parameters", "parametersJsonSchema", "responseSchema", "responseJsonSchema", "partMetadata",
    "_responseJsonSchema",
})  # fmt: skip
"""Members whose keys are the client's own."""


def camel_case(value: Any) -> Any:
    """A value with its members' names in camelCase; the API takes snake_case, too, and both in one object."""
    if isinstance(value, list):
        return [camel_case(each) for each in value]
    if not isinstance(value, dict):
        return value
    named = {re.sub(r"(?<=[a-z])_([a-z])", lambda found: found[1].upper(), key): each for key, each in value.items()}
    return {key: each if key in _FREE else camel_case(each) for key, each in named.items()}


def role_of(content: Json) -> str:
    return str(content.get("role") or "user")


def speaker_of(content: Json) -> str:
    """`tool` for what only holds results: that is no user's."""
    if all("functionResponse" in part for part in content["parts"] if not part.get("thought")):
        return "tool"
    return "assistant" if role_of(content) == "model" else role_of(content)


def texts_in(content: Json) -> Iterator[str]:
    """Texts but for thoughts; of a result its only string, or all of it as JSON."""
    for part in content["parts"]:
        if "functionResponse" in part:
            response = part["functionResponse"].get("response")
            values = list(response.values()) if isinstance(response, dict) else []
            is_one = len(values) == 1 and isinstance(values[0], str)
            yield values[0] if is_one else msgspec.json.encode(response).decode()
        elif "text" in part and not part.get("thought"):
            yield part["text"]
