"""The format: its requests, its summary calls, what its prompts cost, and the list of its parts.

The history is `input`: a text, or items. `instructions` stand beside it and are the first of the raw messages, with
their key. What a provider keeps itself, or is asked to compact itself, is handed off. OpenAI's models are shown tools,
calls and schemas otherwise than in Chat Completions; what runs elsewhere counts alike in both. Measured on prompts
whose size the providers reported (docs/estimates.md).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, ClassVar

import msgspec
from msgspec.structs import replace

from app.compaction.prompts import SummaryRequest
from app.conversation.reasons import Code, Reason
from app.formats.format import WireFormat
from app.formats.raw_json import RawObject, decoded_object, object_of, objects_in, text_at
from app.formats.requests import WireRequest, check_compaction, elements_of, response_format_of, tool_of, unread
from app.formats.responses.answers import ResponsesAnswers
from app.formats.responses.items import (
    BREAKPOINTS,
    INSTRUCTIONS,
    as_item,
    compacted_upto,
    read_item,
    render,
    slots,
    stands_beside,
    type_of,
)
from app.formats.responses.spec import SPEC
from app.formats.summaries import Json, SummaryDialect, SummaryReader
from app.tokens.declarations import Declarations
from app.tokens.rules import GPT_5_TOOLS, WHOLE, CountingRules, Encrypted, Pages, rules_for

STATE_MEMBERS = ("previous_response_id", "conversation")
"""Members that name what the provider has kept, and puts before the input."""
CODEX_METADATA = "x-codex-turn-metadata"
CODEX_PROMPT = "You are performing a CONTEXT CHECKPOINT COMPACTION"
"""Beginning of Codex's request to a model that does not compact by itself."""


class ResponsesRequest(WireRequest, frozen=True):
    """A request as far as Steno reads it."""

    SPEC = SPEC

    @classmethod
    def elements_in(cls, source: RawObject) -> tuple[bytes, ...]:
        raw = source.raw("input") or b"null"
        if raw.startswith(b'"'):  # A text.
            return (raw,)
        return () if raw == b"null" else tuple(source.elements("input"))

    @classmethod
    def split(cls, source: RawObject, elements: tuple[bytes, ...]) -> tuple[tuple[bytes, ...], tuple[bytes, ...]]:
        member = source.members.get("instructions") if isinstance(source.value("instructions"), str) else None
        leading = () if member is None else (source.text[member.key_start : member.stop],)
        if not (compacted := compacted_upto(elements)):
            return leading, elements
        check_compaction(decoded_object(elements[compacted - 1], "An item"), "input")
        return leading, (b",".join(elements[:compacted]), *elements[compacted:])

    @classmethod
    def members_in(cls, source: RawObject, elements: Sequence[bytes]) -> dict[str, Any]:
        return {"hands_off": _hands_off(source, elements)}

    @property
    def is_typical(self) -> bool:
        return self.source.value("truncation") != "auto" and super().is_typical

    def declarations(self) -> Declarations:
        source = self.source
        tools, choice = elements_of(source, "tools"), source.value("tool_choice")
        answer = object_of(object_of(source.value("text")).get("format"))
        return Declarations(
            tools=tuple(tool_of(tool) for tool, _ in tools if tool.get("type") == "function"),
            choice=choice if isinstance(choice, str) else "",
            forced=text_at(object_of(choice), "name"),
            response_format=response_format_of(answer) if answer.get("type") == "json_schema" else None,
            others=(
                *(text for tool, text in tools if tool.get("type") != "function"),
                *unread(source, SPEC.declaring_members),
            ),
        )

    def with_messages(self, raw_messages: Iterable[bytes], ask_usage: bool = False) -> bytes:  # noqa: ARG002 - it is given unasked
        """The body with other items; an input that was a text becomes a list only where it has others beside it."""
        items = [raw for raw in raw_messages if not INSTRUCTIONS.match(raw)]
        if len(items) == 1 and items[0].startswith(b'"'):
            return self.source.spliced({"input": items[0]}, SPEC.own_members)
        return self.source.spliced({"input": b"[" + b",".join(map(as_item, items)) + b"]"}, SPEC.own_members)


def _hands_off(source: RawObject, elements: Sequence[bytes]) -> Reason | None:
    """Reason to leave a request to the provider, or None.

    The content of an item that refers to another by its id cannot be seen: a summary would leave it out, and a cut
    might part it from its call. Reasoning without content is sealed anyway, and no such item.
    """
    if any(source.value(name) is not None for name in STATE_MEMBERS) or any(map(_is_reference, elements)):
        return Reason(Code.SERVER_STATE)
    if source.value("prompt") is not None:
        return Reason(Code.PROMPT_TEMPLATE)
    if source.value("background") is True:
        return Reason(Code.BACKGROUND)
    if _asks_for_compaction(source, elements):
        return Reason(Code.NATIVE_COMPACTION)
    return Reason(Code.CLIENT_COMPACTION) if _compacts_itself(source, elements) else None


def _is_reference(raw: bytes) -> bool:
    # Nearly all items say what they are; reading each of them would take as long as reading the request.
    if b'"item_reference"' not in raw and (b'"type"' in raw or b'"role"' in raw):
        return False
    return raw.startswith(b"{") and type_of(decoded_object(raw, "An item")) == "item_reference"


def _asks_for_compaction(source: RawObject, elements: Sequence[bytes]) -> bool:
    """Whether the provider is asked to compact: now, in place of an answer, or from a threshold on."""
    last = elements[-1] if elements else b""
    if b'"compaction_trigger"' in last and type_of(decoded_object(last, "An item")) == "compaction_trigger":
        return True
    return any(entry.get("type") == "compaction" for entry in objects_in(source.value("context_management")))


def _compacts_itself(source: RawObject, elements: Sequence[bytes]) -> bool:
    """Whether the client compacts its history itself, as Codex says beside its input, or in what it asks for."""
    turn = text_at(object_of(source.value("client_metadata")), CODEX_METADATA)
    with suppress(msgspec.DecodeError, RecursionError):
        if turn and object_of(msgspec.json.decode(turn)).get("request_kind") == "compaction":
            return True
    last = elements[-1] if elements else b""
    if CODEX_PROMPT.encode() not in last or not last.startswith(b"{"):
        return False
    return any(text.startswith(CODEX_PROMPT) for _, text in slots(decoded_object(last, "An item")))


CAP = "max_output_tokens"
SAID: Json = {"stream": True, "store": False}


class _Answer(SummaryReader):
    """The texts of a response's messages. Its reason to finish is its status, or the reason that it gives for another
    one."""

    SPEC = SPEC

    def _take(self, said: Json) -> None:
        match said:
            case {"type": "response.output_text.delta", "delta": str(text)}:
                self._add(text)
            case {"type": "response.refusal.delta" | "response.refusal.done"}:
                self._refused = True
            case {"type": "response.output_item.added", "item": {"type": str(item)}}:
                self._calls = self._calls or item.endswith("_call")
            case {"type": "response.completed" | "response.incomplete", "response": dict(response)}:
                # Some servers say all of it at the end only.
                if self._texts or not self._take_whole(response):
                    self._take_end(response)
            case _:
                return
        self._begun = True

    def _take_whole(self, said: Json) -> bool:
        if not isinstance(said.get("output"), list):
            return False
        for item in objects_in(said["output"]):
            self._calls = self._calls or str(item.get("type")).endswith("_call")
            for part in objects_in(item.get("content")) if item.get("type") == "message" else ():
                self._add(text_at(part, "text"))
                self._refused = self._refused or part.get("type") == "refusal"
        self._take_end(said)
        self._begun = True
        return True

    def _take_end(self, response: Json) -> None:
        status = response.get("status", "completed")
        details = response.get("incomplete_details")
        self._finish(details.get("reason") if isinstance(details, dict) and status != "completed" else status)
        self._usage = response.get("usage")
        self._take_names(response)


class ResponsesSummaries(SummaryDialect):
    """The dialect: asked with `input`, answered with the messages of `output`."""

    spec = SPEC
    own_members = frozenset(
        {"model", "input", "instructions", CAP, "tools", "tool_choice", "parallel_tool_calls", "background", *SAID}
    )
    optional = ("reasoning", "store", "stream")
    caps = (CAP, CAP)
    least_output = 16
    restrained: ClassVar[Json] = {"reasoning": {"effort": "low"}}
    said = SAID
    reader = _Answer

    def quoting(self, request: SummaryRequest, model: str, options: Json) -> bytes:
        said = {"model": model, "instructions": request.instructions, "input": request.transcript}
        return msgspec.json.encode({**said, **options})

    def continuing(
        self, messages: Sequence[bytes], cached: Mapping[str, bytes], instructions: str, model: str, options: Json
    ) -> bytes:
        members: dict[str, Any] = {"model": model}
        # Tools have to stay, they are a part of the cached prompt; without any, providers refuse a choice among them.
        members |= {name: msgspec.Raw(raw) for name, raw in cached.items()}
        if cached.get("tools", b"null") not in (b"null", b"[]"):
            members["tool_choice"] = "none"
        content = [{"type": "input_text", "text": instructions}]
        last = msgspec.json.encode({"type": "message", "role": "user", "content": content})
        items = (as_item(raw) for raw in (*messages, last) if not INSTRUCTIONS.match(raw))
        members["input"] = msgspec.Raw(b"[" + b",".join(items) + b"]")
        beside = b"".join(raw + b"," for raw in messages if INSTRUCTIONS.match(raw))
        return b"{" + beside + msgspec.json.encode({**members, **options})[1:]


VARIANT = "items"
TOOLS_BEFORE = -3
"""Tokens of its predecessors' tools: their tools have no headings here, which are counted with them."""
CALL, UNKEPT_CALL_BEFORE = 1, -2
"""Tokens that a call costs more; the latter of gpt-5's predecessors, where it has no id of its own."""
REQUIRED = 8
"""Tokens that gpt-5's tools cost more where one has to be called."""
PAGES = Pages(8, file=6)
"""Costs of a file: its text, but for a few tokens around it and its pages."""
SCHEMA_BEFORE = 1
"""Tokens around the response format, which gpt-5 has not."""
GROK_PREAMBLE, GROK_TOOLS = 185, 50
"""Tokens with which every prompt of grok's begins, and tokens around its tools."""
GROK_ENCRYPTED = Encrypted(0, 5.8)
"""Tokens of grok's earlier reasoning, which it reads again in every turn."""

_OPENAI = re.compile(r"(?:.*/)?(?:openai\.)?(?P<name>(?:ft:)?(?:chatgpt|gpt-(?!oss)|codex|computer-use|o\d).*)")


@lru_cache(maxsize=1_024)
def token_rules(model: str, host: str = "") -> CountingRules:
    """Rules by which a model at a host counts."""
    if "grok" in model.lower():
        rules = rules_for(model, host)
        return replace(
            rules,
            reply_prime=rules.reply_prime + GROK_PREAMBLE,
            declares_apart=True,
            tools_alone=GROK_TOOLS,
            encrypted=GROK_ENCRYPTED,
            variant=WHOLE,
        )
    if not (found := _OPENAI.fullmatch(model.lower())):
        return replace(rules_for(model, host), drops_reasoning=True)
    # Codex's own small model is a tuned o4-mini.
    rules = rules_for("o4-mini" if found["name"].startswith("codex") else found["name"], host)
    return replace(
        rules,
        declares_apart=True,
        tools_alone=GPT_5_TOOLS if rules.gpt_5 else TOOLS_BEFORE,
        call_extra=CALL,
        unstored_call_extra=CALL if rules.gpt_5 else UNKEPT_CALL_BEFORE,
        required_extra=REQUIRED if rules.gpt_5 else 0,
        files=PAGES,
        schema_extra=0 if rules.gpt_5 else SCHEMA_BEFORE,
        drops_reasoning=True,
        variant=VARIANT,
    )


class Responses(WireFormat):
    spec = SPEC
    summaries = ResponsesSummaries()
    answers = ResponsesAnswers()
    breakpoints = BREAKPOINTS
    request = ResponsesRequest
    token_rules = staticmethod(token_rules)
    message = staticmethod(read_item)
    render = staticmethod(render)

    def alone(self, raw: bytes) -> bytes:
        """A raw message as JSON. The instructions beside the input are the whole member, with its key."""
        return b"{%b}" % raw if INSTRUCTIONS.match(raw) else raw

    def raw_of(self, alone: bytes) -> bytes:
        return alone[1:-1] if stands_beside(alone) else alone

    def assembled(self, model: str, messages: Sequence[bytes], output: int | None = None) -> bytes:  # noqa: ARG002 - nobody has to say
        members = [b'"model":%b' % msgspec.json.encode(model)]
        if messages and stands_beside(messages[0]):
            members.append(messages[0][1:-1])
            messages = messages[1:]
        members.append(b'"input":[%b]' % b",".join(map(as_item, messages)))
        return b"{%b}" % b",".join(members)


RESPONSES: WireFormat = Responses()
