"""Requests and token costs of Responses, and the `WireFormat`.

The history is `input`, a text or items. Steno forwards a request unchanged if the provider stores the history, or if
the client asks the provider to compact it.

OpenAI's models see tools, calls and schemas in another form than in Chat Completions, so the costs differ. Grok's costs
differ, too. Costs are from prompts whose size the providers reported: see docs/estimates.md.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any

import msgspec
from msgspec.structs import replace

from app.conversation.reasons import Code, Reason
from app.formats.format import WireFormat
from app.formats.raw_json import RawObject, decoded_object, object_of, objects_in, text_at
from app.formats.requests import WireRequest, check_compaction, elements_of, response_format_of, tool_of, unread
from app.formats.responses.answers import ResponsesEditor
from app.formats.responses.items import BREAKPOINTS, SPEC, as_item, compacted_upto, read_item, render, texts_of, type_of
from app.tokens.counting_rules import GPT_5_TOOLS, WHOLE, CountingRules, Encrypted, Pages, rules_for
from app.tokens.estimate import Declarations

STATE_MEMBERS = ("previous_response_id", "conversation")
"""Members that refer to stored history, which the provider puts before the input."""
CODEX_METADATA = "x-codex-turn-metadata"
CODEX_PROMPT = "You are performing a CONTEXT CHECKPOINT COMPACTION"
"""Beginning of Codex's request for a summary. Codex sends it to providers that cannot compact."""


class ResponsesRequest(WireRequest, frozen=True):
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
        return {"hands_off": _hands_off(source, elements), "forbids_tools": source.value("tool_choice") == "none"}

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

    @classmethod
    def array(cls, raw_messages: Sequence[bytes]) -> bytes:
        """Return the input. A single text stays a text; any other input becomes a list of items."""
        if len(raw_messages) == 1 and raw_messages[0].startswith(b'"'):
            return raw_messages[0]
        return b"[%b]" % b",".join(map(as_item, raw_messages))


def _hands_off(source: RawObject, elements: Sequence[bytes]) -> Reason | None:
    """Return the reason to forward a request unchanged, or None.

    One such reason is a reference by id to a stored item. Steno cannot read the item: a summary would omit the item,
    and a cut might separate a result from its call.
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
    # Nearly all items have a type or a role; parsing each one would be slow.
    if b'"item_reference"' not in raw and (b'"type"' in raw or b'"role"' in raw):
        return False
    return raw.startswith(b"{") and type_of(decoded_object(raw, "An item")) == "item_reference"


def _asks_for_compaction(source: RawObject, elements: Sequence[bytes]) -> bool:
    """Return whether the client asks the provider to compact: either now, or when the prompt exceeds a threshold."""
    last = elements[-1] if elements else b""
    if b'"compaction_trigger"' in last and type_of(decoded_object(last, "An item")) == "compaction_trigger":
        return True
    return any(entry.get("type") == "compaction" for entry in objects_in(source.value("context_management")))


def _compacts_itself(source: RawObject, elements: Sequence[bytes]) -> bool:
    """Return whether this request is the client's own compaction. Codex says so in its metadata or its prompt."""
    turn = text_at(object_of(source.value("client_metadata")), CODEX_METADATA)
    with suppress(msgspec.DecodeError, RecursionError):
        if turn and object_of(msgspec.json.decode(turn)).get("request_kind") == "compaction":
            return True
    last = elements[-1] if elements else b""
    if CODEX_PROMPT.encode() not in last or not last.startswith(b"{"):
        return False
    return any(text.startswith(CODEX_PROMPT) for text in texts_of(decoded_object(last, "An item")))


VARIANT = "items"
TOOLS_BEFORE = -3
"""Fixed tokens of the tools in models before gpt-5. It is negative: Steno counts headings that their prompts lack."""
CALL, UNKEPT_CALL_BEFORE = 1, -2
"""`CALL`: additional tokens of a call. `UNKEPT_CALL_BEFORE`: those of a call without an id, in models before gpt-5."""
REQUIRED = 8
"""Additional tokens of the tools at gpt-5 if the request requires a call."""
PAGES = Pages(8, file=6)
"""Fixed tokens of each page and of each file, in addition to the file's text."""
SCHEMA_BEFORE = 1
"""Fixed tokens of the response format, in addition to its text, in models before gpt-5."""
GROK_PREAMBLE, GROK_TOOLS = 185, 50
"""`GROK_PREAMBLE`: tokens at the beginning of every prompt of Grok. `GROK_TOOLS`: fixed tokens of Grok's tools."""
GROK_ENCRYPTED = Encrypted(0, 5.8)
"""Cost of encrypted reasoning. Grok also reads the reasoning of earlier turns."""

_OPENAI = re.compile(r"(?:.*/)?(?:openai\.)?(?P<name>(?:ft:)?(?:chatgpt|gpt-(?!oss)|codex|computer-use|o\d).*)")


@lru_cache(maxsize=1_024)
def token_rules(model: str, host: str = "") -> CountingRules:
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


RESPONSES = WireFormat(SPEC, ResponsesRequest, ResponsesEditor, read_item, render, BREAKPOINTS, token_rules=token_rules)
