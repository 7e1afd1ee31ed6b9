"""Requests of Messages, token costs of Claude, and the `WireFormat`.

Claude's costs follow Anthropic's documentation as far as possible. Other models cost the same in every format. The
constants are in Claude's own tokens. Estimates are in tokens of o200k_base. Calibration converts them to Claude's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from msgspec.structs import replace

from app.conversation.reasons import Code, Reason
from app.formats.format import WireFormat
from app.formats.messages.answers import MessageEditor
from app.formats.messages.messages import (
    BREAKPOINTS,
    SPEC,
    SYSTEM,
    blocks_of,
    holds_compaction,
    is_beside,
    is_compaction,
    is_result,
    read_message,
    render,
    texts_in,
)
from app.formats.raw_json import RawObject, decoded_object, object_of, objects_in, text_at
from app.formats.requests import Headers, WireRequest, check_compaction, elements_of, tool_of, unread
from app.tokens.calibration import claude_version, whole_ratio
from app.tokens.counting_rules import WHOLE, CountingRules, Encrypted, OneByOne, Pages, claude_pictures, rules_for
from app.tokens.estimate import Declarations, ResponseFormat

COMPACTION_PROMPTS = (
    "You are performing a CONTEXT CHECKPOINT COMPACTION",
    "CRITICAL: Respond with TEXT ONLY. Do NOT call any tools.",
)
"""A request's last text begins with one of these if the client compacts its history itself."""
BETAS = b"anthropic-beta"
BINDING_MEMBER = b"block_binding"
"""Option in the `thinking` member. The provider names it if it refuses thinking that was signed for another prompt."""
_THINKING_REFUSED = re.compile(
    rb"(?:signature|data). in .(?:redacted_)?thinking. block"
    rb"|blocks in the latest assistant message cannot be modified"
    rb"|Expected .thinking. or .redacted_thinking."
)
_WINDOW = re.compile(rb"\bcontext-(\d{1,2})m-")


class MessagesRequest(WireRequest, frozen=True):
    """A request of Messages.

    The value of `system`, if any, is the first raw message. A history that the provider compacted is one raw message.
    """

    SPEC = SPEC

    @classmethod
    def split(cls, source: RawObject, elements: tuple[bytes, ...]) -> tuple[tuple[bytes, ...], tuple[bytes, ...]]:
        system = source.raw(SYSTEM)
        leading = (system,) if system is not None and is_beside(system) else ()
        return leading, _behind_compaction(source, elements)

    @classmethod
    def members_in(cls, source: RawObject, elements: Sequence[bytes]) -> dict[str, Any]:
        thinking, choice = object_of(source.value("thinking")), object_of(source.value("tool_choice"))
        tokens, kind = thinking.get("budget_tokens"), thinking.get("type")
        return {
            "answer": {"thinking": tokens if isinstance(tokens, int) and tokens > 0 else 0},
            "hands_off": _hands_off(source, elements),
            "forbids_tools": choice.get("type") == "none",
            "thinking": "" if kind in (None, "disabled") else str(kind),
        }

    @property
    def is_typical(self) -> bool:
        clears = any(edit.get("keep") != "all" for edit in edits_in(self.source))
        return not clears and super().is_typical

    def declarations(self) -> Declarations:
        source = self.source
        tools, choice = elements_of(source, "tools"), object_of(source.value("tool_choice"))
        answer = object_of(object_of(source.value("output_config")).get("format") or source.value("output_format"))
        own = [tool.get("type") in SPEC.client_tools for tool, _ in tools]
        return Declarations(
            tools=tuple(tool_of(tool, "input_schema") for (tool, _), is_own in zip(tools, own, strict=True) if is_own),
            choice=text_at(choice, "type"),
            forced=text_at(choice, "name"),
            must_call=text_at(choice, "type") not in ("", "auto", "none"),
            response_format=ResponseFormat("", "", object_of(answer.get("schema")))
            if answer.get("type") == "json_schema"
            else None,
            others=(
                *(text for (_, text), is_own in zip(tools, own, strict=True) if not is_own),
                *unread(source, SPEC.declaring_members),
            ),
        )

    @classmethod
    def beside(cls, raw: bytes) -> bytes | None:
        return b'"%b":%b' % (SYSTEM.encode(), raw) if is_beside(raw) else None


def window_asked(headers: Headers) -> int | None:
    """Return the window in tokens that a beta header asks for, such as `context-1m-2025-08-07`."""
    betas = (value for name, value in headers if name == BETAS)
    found = next((found for value in betas if (found := _WINDOW.search(value))), None)
    return int(found[1]) * 1_000_000 if found else None


def _behind_compaction(source: RawObject, elements: tuple[bytes, ...]) -> tuple[bytes, ...]:
    """Join all messages up to and including the provider's last compaction into one message. The provider reads no
    message before this compaction. If the next message has tool results, join this next message, too."""
    marked = (i for i in range(len(elements) - 1, -1, -1) if b'"compaction"' in elements[i])
    last = next((i for i in marked if holds_compaction(decoded_object(elements[i]))), None)
    if last is None:
        return elements
    for block in filter(is_compaction, blocks_of(decoded_object(elements[last]).get("content"))):
        check_compaction(block, "messages")
    following = elements[last + 1 : last + 2]
    if any(is_result(block) for raw in following for block in blocks_of(decoded_object(raw).get("content"))):
        last += 1
    array, start, stop = source.raw("messages") or b"", 1, 1
    start = array.find(elements[0])
    for element in elements[: last + 1]:
        stop = array.find(element, stop) + len(element)
    return (array[start:stop], *elements[last + 1 :])


def _hands_off(source: RawObject, elements: Sequence[bytes]) -> Reason | None:
    if source.raw("thread") not in (None, b"null"):
        return Reason(Code.SERVER_STATE)
    # True for compaction at once or from a threshold on. Edits that clear results or thinking do not count.
    edits = (str(edit.get("type")).startswith("compact_") for edit in edits_in(source))
    if object_of(source.value("compaction")).get("type") == "summarize" or any(edits):
        return Reason(Code.NATIVE_COMPACTION)
    if elements and any(prompt.encode() in elements[-1] for prompt in COMPACTION_PROMPTS):
        texts = [holder[key] for holder, key in texts_in(decoded_object(elements[-1]))]
        if texts and texts[-1].lstrip().startswith(COMPACTION_PROMPTS):
            return Reason(Code.CLIENT_COMPACTION)
    return None


def refuses_thinking(refusal: bytes, request: WireRequest, *, changed: bool) -> bool:
    """Return whether a refusal is about signed thinking: always False if the client sets `block_binding`. If Steno
    `changed` the history, every complaint about thinking counts."""
    if BINDING_MEMBER.decode() in object_of(request.source.value("thinking")):
        return False
    return BINDING_MEMBER in refusal or (changed and _THINKING_REFUSED.search(refusal) is not None)


def edits_in(source: RawObject) -> Sequence[Mapping[str, Any]]:
    return objects_in(object_of(source.value("context_management")).get("edits"))


REPLY, MESSAGE = 3, 3
"""`REPLY`: fixed tokens of each request. `MESSAGE`: fixed tokens of each message, including its role."""
CALL, RESULT = 30, 18
"""`CALL`: fixed tokens of each call, in addition to its name and arguments. `RESULT`: fixed tokens of each result."""
SCHEMA = 150
FILE = 25
PAGE = 1_570
"""Maximum tokens of the picture of a PDF's page."""
POINTS = 4.0
"""Pixels for each square point of a page: the provider draws pages at twice their width and height."""
UNKNOWN_FILE = 1_600
"""Assumed tokens of an unreadable file, about as many as for one page."""
ENCRYPTED = Encrypted(250, 4.9)
"""Cost of thinking by the length of its signature: a fixed number of characters is free, the others cost tokens."""

_PREAMBLES: tuple[tuple[str, int, int], ...] = (
    ("opus-5", 286, 406),
    ("opus-4-8", 290, 410),
    ("opus-4-7", 675, 804),
    ("opus-3", 530, 281),
    ("3-opus", 530, 281),
    ("3-sonnet", 159, 235),
    ("3-haiku", 264, 340),
    ("3-5-haiku", 264, 340),
)
"""Tokens as in `_PREAMBLES_SINCE`. The first value is a part of a model's name, not a version."""
_PREAMBLES_SINCE = (((4, 7), 354, 474), ((4, 5), 497, 589), ((0, 0), 346, 313))
"""Each entry: first version; tokens before the tools; these tokens if a call is forced. Newest version first."""


@lru_cache(maxsize=1_024)
def token_rules(model: str, host: str = "") -> CountingRules:
    rules = rules_for(model, host)
    version = claude_version(model)
    if version is None:
        return rules
    ratio = whole_ratio(model)
    pictures = claude_pictures(version, ratio)

    def own(tokens: int) -> int:
        return round(tokens / ratio)

    preamble, must_call = _preambles(model, version)
    return replace(
        rules,
        pictures=pictures,
        reply_prime=own(REPLY),
        message=MESSAGE - 1,
        schema_extra=own(SCHEMA),
        declares_apart=True,
        one_by_one=OneByOne(own(preamble), own(must_call), own(CALL), own(RESULT)),
        # Opus up to 4.1 and smaller models up to 4.5 do not read the thinking of earlier turns.
        drops_reasoning=version < ((4, 5) if "opus" in model.lower() else (4, 6)),
        encrypted=replace(ENCRYPTED, per_token=ENCRYPTED.per_token * ratio),
        files=Pages(own(PAGE), POINTS / pictures.pixels_per_token, own(FILE), own(UNKNOWN_FILE)),
        variant=WHOLE,
    )


def _preambles(model: str, version: tuple[int, int]) -> tuple[int, int]:
    name = model.lower().replace(".", "-")
    for known, preamble, must_call in _PREAMBLES:
        if known in name:
            return preamble, must_call
    return next((preamble, must_call) for since, preamble, must_call in _PREAMBLES_SINCE if version >= since)


MESSAGES = WireFormat(
    SPEC,
    MessagesRequest,
    MessageEditor,
    read_message,
    render,
    BREAKPOINTS,
    token_rules=token_rules,
    window_asked=window_asked,
    refuses_thinking=refuses_thinking,
)
