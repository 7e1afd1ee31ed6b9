"""Gemini's requests, token costs and `WireFormat`.

The path names the model and whether to stream; on Steno's own routes the body does. A request with `cachedContent`
contains only the contents after the cached ones. Costs are from prompts whose size Google reported (docs/estimates.md).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any
from urllib.parse import unquote_to_bytes

from msgspec.structs import replace

from app.conversation.reasons import Code, Reason
from app.formats.format import WireFormat
from app.formats.gemini.answers import GeminiEditor
from app.formats.gemini.contents import read_content, render
from app.formats.gemini.spec import ADDRESS, COMPACTION_PROMPT, SPEC, camel
from app.formats.raw_json import RawObject, json_text, object_of, objects_in, text_at
from app.formats.requests import WireRequest, tool_of, unread
from app.tokens.declarations import Declarations
from app.tokens.rules import CountingRules, Encrypted, OneByOne, Pages, Tiles, rules_for


class GeminiRequest(WireRequest, frozen=True):
    SPEC = SPEC

    @classmethod
    def asked_at(cls, source: RawObject, target: bytes) -> tuple[object, bool]:
        if (found := ADDRESS.match(target)) is None:
            return source.value("model"), source.value("stream") is True
        # Without `alt=sse` the answer is one JSON array.
        streams = found["method"] == b"streamGenerateContent" and re.search(rb"[?&]alt=sse(?:&|$)", target) is not None
        return unquote_to_bytes(found["model"]).decode("utf-8", "replace"), streams

    @classmethod
    def output_in(cls, source: RawObject) -> object:
        return _config(source).get("maxOutputTokens")

    @classmethod
    def split(cls, source: RawObject, elements: tuple[bytes, ...]) -> tuple[tuple[bytes, ...], tuple[bytes, ...]]:
        for name in ("systemInstruction", "system_instruction"):
            if isinstance(source.value(name), dict):
                member = source.members[name]
                return (source.text[member.key_start : member.stop],), elements
        return (), elements

    @classmethod
    def members_in(cls, source: RawObject, elements: Sequence[bytes]) -> dict[str, Any]:  # noqa: ARG003
        choices, hands_off = _config(source).get("candidateCount"), None
        if any(source.value(name) for name in ("cachedContent", "cached_content")):
            hands_off = Reason(Code.SERVER_STATE)
        elif COMPACTION_PROMPT in source.text:
            parts = objects_in(object_of(_member(source, "systemInstruction")).get("parts"))
            if any(text_at(part, "text").lstrip().startswith(COMPACTION_PROMPT.decode()) for part in parts):
                hands_off = Reason(Code.CLIENT_COMPACTION)
        calling = object_of(object_of(_member(source, "toolConfig")).get("functionCallingConfig"))
        return {
            "answer": {"choices": choices if isinstance(choices, int) else 1},
            "hands_off": hands_off,
            "forbids_tools": calling.get("mode") == "NONE",
        }

    @property
    def is_typical(self) -> bool:
        return all(set(tool) <= {"functionDeclarations"} for tool in _tools(self.source)) and super().is_typical

    def declarations(self) -> Declarations:
        source = self.source
        calling = object_of(object_of(_member(source, "toolConfig")).get("functionCallingConfig"))
        tools = [*_tools(source)]
        declared = [each for tool in tools for each in objects_in(tool.get("functionDeclarations"))]
        others = ({name: held for name, held in tool.items() if name != "functionDeclarations"} for tool in tools)
        return Declarations(
            tools=tuple(
                tool_of(each, "parameters" if "parameters" in each else "parametersJsonSchema") for each in declared
            ),
            choice=text_at(calling, "mode").lower(),
            must_call=calling.get("mode") == "ANY",
            others=(*map(json_text, filter(None, others)), *unread(source, SPEC.declaring_members)),
        )

    def with_output_cap(self, body: bytes, tokens: int) -> bytes:
        source = RawObject(body)
        for name in ("generationConfig", "generation_config"):
            if (raw := source.raw(name)) is not None and raw.startswith(b"{"):
                config = RawObject(raw)
                higher = (
                    member
                    for member in SPEC.output_members
                    if isinstance(given := config.value(member), int) and given > tokens
                )
                source = RawObject(source.spliced({name: config.spliced(dict.fromkeys(higher, b"%d" % tokens))}))
        return source.text


def _member(source: RawObject, name: str) -> object:
    """Return a member, named in camelCase or snake_case, with its keys in camelCase."""
    snake = re.sub(r"([A-Z])", lambda found: "_" + found[1].lower(), name)
    return camel(source.value(name) if name in source else source.value(snake))


def _config(source: RawObject) -> dict[str, Any]:
    return object_of(_member(source, "generationConfig"))


def _tools(source: RawObject) -> Iterator[dict[str, Any]]:
    """Yield the tools (a list or one object) with keys in camelCase, except in schemas."""
    tools = source.value("tools")
    for tool in [tools] if isinstance(tools, dict) else objects_in(tools):
        yield object_of(camel(tool))


_VERSION = re.compile(r"gemini-(\d+)")
FREE = Encrypted(1 << 62, 1.0)
"""Signatures cost no tokens up to Gemini 2.5."""


@lru_cache(maxsize=1_024)
def token_rules(model: str, host: str = "") -> CountingRules:
    found = _VERSION.search(model.lower())
    is_new = found is None or int(found[1]) >= 3
    # Up to 2.0, and at Vertex, a content has no tokens around it.
    is_bare = "aiplatform" in host or re.search(r"gemini-(?:1|2\.0)", model.lower()) is not None
    return replace(
        rules_for(model, host),
        pictures=Tiles(1_090 if is_new else 258, 0),
        reply_prime=0,
        message=-1 if is_bare else 0,
        declares_apart=True,
        shows_schema=False,
        one_by_one=OneByOne(0, 0, 0, 0) if is_bare else OneByOne(0, 0, 8, 8),
        drops_reasoning=True,
        encrypted=Encrypted(100, 4.7) if is_new else FREE,
        files=Pages(525 if is_new else 258, unknown=525 if is_new else 258),
        variant="contents",
    )


GEMINI = WireFormat(SPEC, GeminiRequest, GeminiEditor, read_content, render, token_rules=token_rules)
