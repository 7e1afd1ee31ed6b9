"""Requests: a Messages body as far as Steno reads it, and the body that goes on in its place."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from app.conversation.reasons import Code, Reason
from app.formats.members import RawObject, Unreadable
from app.formats.messages.content import (
    blocks_of,
    decoded_message,
    is_compaction,
    is_result,
    texts_in,
)
from app.formats.messages.messages import SYSTEM, holds_compaction, is_beside
from app.formats.objects import object_of, objects_in, text_at
from app.formats.requests import (
    Body,
    check_compaction,
    elements_of,
    has_known_tools,
    is_given,
    request_of,
    tool_of,
    unread,
)
from app.formats.surrogates import decoded
from app.formats.types import Headers, Named, WireRequest
from app.tokens.declarations import Declarations, ResponseFormat

Json = Mapping[str, Any]

NAME = "messages"
PATH = b"/v1/messages"
COMPACTION_PROMPTS = (
    "You are performing a CONTEXT CHECKPOINT COMPACTION",
    "CRITICAL: Respond with TEXT ONLY. Do NOT call any tools.",
)
"""Beginnings of the last text of a request with which a client compacts its history itself."""
_decode_text = msgspec.json.Decoder(str).decode
_SESSION = re.compile(r"_session_([0-9a-fA-F-]{36})$")
"""End of the name that Claude Code gave its user, before that was JSON."""
BETAS = b"anthropic-beta"
BINDING_MEMBER = b"block_binding"
"""Member of `thinking`: what is to become of blocks that are signed over another prompt. Their refusal names it."""
_THINKING_REFUSED = re.compile(
    rb"(?:signature|data). in .(?:redacted_)?thinking. block"
    rb"|blocks in the latest assistant message cannot be modified"
    rb"|Expected .thinking. or .redacted_thinking."
)
_WINDOW = re.compile(rb"\bcontext-(\d{1,2})m-")
LONGEST_NAMES = 4_000
"""Bytes of a member that is looked into for a conversation's name."""


class MessagesRequest(WireRequest, frozen=True):
    """A request as far as Steno reads it.

    Its raw messages are the value of `system` first, where there is one, and what the provider compacted as one.
    """

    DECLARING_MEMBERS = ("tools", "tool_choice", "mcp_servers", "output_config", "output_format")
    TOOL_MEMBERS = ("tools", "mcp_servers")

    @staticmethod
    def names_in(source: RawObject) -> Iterator[Named]:
        return _names(source)

    @property
    def cache_key(self) -> None:
        """The format has none."""

    @property
    def thinks(self) -> bool:
        return _thinking(self.source).get("type") not in (None, "disabled")

    @property
    def demands_thinking(self) -> bool:
        return _thinking(self.source).get("type") == "enabled"

    def with_thinking_off(self, body: bytes) -> bytes:
        return RawObject(body).spliced({"thinking": b'{"type":"disabled"}'})

    @property
    def is_typical(self) -> bool:
        """Whether the costs of the prompt are known: not with text that the provider adds, for tools and schemas of its
        own, or with what it clears."""
        schema = b"json_schema" in (self.source.raw("output_config") or self.source.raw("output_format") or b"")
        clears = any(edit.get("keep") != "all" for edit in edits_in(self.source))
        added = any(is_given(self.source, name) for name in ("mcp_servers", "container"))
        return has_known_tools(self.source, _is_known) and not (schema or clears or added)

    @property
    def task_budget(self) -> int | None:
        """Tokens of `output_config.task_budget`: what remains, or all of it."""
        budget = object_of(object_of(self.source.value("output_config")).get("task_budget"))
        said = budget.get("total") if budget.get("remaining") is None else budget["remaining"]
        return said if isinstance(said, int) and not isinstance(said, bool) else None

    def with_task_budget(self, body: bytes, tokens: int) -> bytes:
        config = object_of(self.source.value("output_config"))
        lowered = {**config, "task_budget": {**object_of(config.get("task_budget")), "remaining": tokens}}
        return RawObject(body).spliced({"output_config": msgspec.json.encode(lowered)})

    def declarations(self) -> Declarations:
        return read_declarations(self.source)

    def with_messages(self, raw_messages: Iterable[bytes], ask_usage: bool = False) -> bytes:  # noqa: ARG002 - a stream gives it unasked
        among = list(raw_messages)
        replaced = {"messages": b"[%b]" % b",".join(raw for raw in among if not is_beside(raw))}
        if among and is_beside(among[0]):
            replaced[SYSTEM] = among[0]
        return self.source.spliced(replaced, self.OWN_MEMBERS)


def messages_request(body: Body) -> MessagesRequest:
    """The request in a body."""
    source, beside, elements = body.source, body.beside, body.elements
    raw_messages = (*beside, *_behind_compaction(source, elements))
    moved = len(raw_messages) - len(elements)
    hands_off, choice = _hands_off(source, elements), source.value("tool_choice")
    return request_of(
        MessagesRequest,
        body,
        raw_messages,
        lambda place: max(len(beside), place + moved),
        answer={"thinking": _thinking_tokens(source)},
        hands_off=hands_off,
        forbids_tools=isinstance(choice, dict) and choice.get("type") == "none",
    )


def _thinking_tokens(source: RawObject) -> int:
    """Tokens for thinking, which the provider wants to be less than `max_tokens`."""
    tokens = _thinking(source).get("budget_tokens")
    return tokens if isinstance(tokens, int) and tokens > 0 else 0


def _is_known(tool: object) -> bool:
    return isinstance(tool, dict) and is_own(tool)


def window_asked(headers: Headers) -> int | None:
    """The window that a beta is about: `context-1m-2025-08-07`."""
    betas = (value for name, value in headers if name == BETAS)
    found = next((found for value in betas if (found := _WINDOW.search(value))), None)
    return int(found[1]) * 1_000_000 if found else None


def system_of(source: RawObject) -> tuple[bytes, ...]:
    """The value of `system`, where it holds any."""
    system = source.raw(SYSTEM)
    return (system,) if system is not None and is_beside(system) else ()


def _behind_compaction(source: RawObject, elements: Sequence[bytes]) -> Sequence[bytes]:
    """The messages, those as one, as they stand, that the provider no longer reads: up to its last compaction, and to
    the results of what was called beside it."""
    marked = (i for i in range(len(elements) - 1, -1, -1) if b'"compaction"' in elements[i])
    last = next((i for i in marked if holds_compaction(decoded_message(elements[i]))), None)
    if last is None:
        return elements
    for block in filter(is_compaction, blocks_of(decoded_message(elements[last]).get("content"))):
        check_compaction(block, "messages")
    following = elements[last + 1 : last + 2]
    if any(is_result(block) for raw in following for block in blocks_of(decoded_message(raw).get("content"))):
        last += 1
    array, start, stop = source.raw("messages") or b"", 1, 1
    start = array.find(elements[0])
    for element in elements[: last + 1]:
        stop = array.find(element, stop) + len(element)
    return (array[start:stop], *elements[last + 1 :])


def _hands_off(source: RawObject, elements: Sequence[bytes]) -> Reason | None:
    if source.raw("thread") not in (None, b"null"):
        return Reason(Code.SERVER_STATE)
    if _asks_for_compaction(source):
        return Reason(Code.NATIVE_COMPACTION)
    if elements and any(prompt.encode() in elements[-1] for prompt in COMPACTION_PROMPTS):
        texts = [holder[key] for holder, key in texts_in(decoded_message(elements[-1]))]
        if texts and texts[-1].lstrip().startswith(COMPACTION_PROMPTS):
            return Reason(Code.CLIENT_COMPACTION)
    return None


def _asks_for_compaction(source: RawObject) -> bool:
    """Whether the provider is asked to compact: now, or from a threshold on. To clear results or thinking is not
    that."""
    summarises = source.value("compaction") if "compaction" in source else None
    return (isinstance(summarises, dict) and summarises.get("type") == "summarize") or any(
        str(edit.get("type")).startswith("compact_") for edit in edits_in(source)
    )


def _thinking(source: RawObject) -> Json:
    thinking = source.value("thinking")
    return thinking if isinstance(thinking, dict) else {}


def refuses_thinking(refusal: bytes, request: MessagesRequest, *, changed: bool) -> bool:
    """Whether signed thinking is refused: because of what stands before it, or, where the history was `changed`, for
    another reason. Not where the client itself says what is to become of such thinking."""
    if BINDING_MEMBER.decode() in _thinking(request.source):
        return False
    return BINDING_MEMBER in refusal or (changed and _THINKING_REFUSED.search(refusal) is not None)


def edits_in(source: RawObject) -> Sequence[Json]:
    """Edits of the history that are asked of the provider."""
    management = source.value("context_management") if "context_management" in source else None
    edits = management.get("edits") if isinstance(management, dict) else None
    return objects_in(edits)


def _names(source: RawObject) -> Iterator[Named]:
    if (raw := source.raw("conversation_id")) is not None:
        yield "conversation_id", raw
    metadata = _metadata(source)
    for name in ("conversation_id", "session_id"):
        if (raw := metadata.get(name)) is not None:
            yield f"metadata.{name}", raw
    if session := _session_of(metadata.get("user_id", b"")):
        yield "metadata.user_id", msgspec.json.encode(session)


def _metadata(source: RawObject) -> dict[str, bytes]:
    raw = source.raw("metadata")
    if raw is None or len(raw) > LONGEST_NAMES:
        return {}
    try:
        held = RawObject(raw)
    except Unreadable:  # It is the provider's.
        return {}
    return {name: value for name in held.members if (value := held.raw(name)) is not None}


def _session_of(user: bytes) -> str:
    """Claude Code's session: a member of the JSON that its user is named by, or the end of an older name."""
    try:
        named = decoded(user, _decode_text)
        if found := _SESSION.search(named):
            return found[1]
        held = msgspec.json.decode(named, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""
    session = held.get("session_id")
    return session if isinstance(session, str) else ""


def read_declarations(source: RawObject) -> Declarations:
    """The declarations, without whatever is of the wrong type."""
    tools = elements_of(source, "tools")
    choice = object_of(source.value("tool_choice"))
    return Declarations(
        tools=tuple(tool_of(tool, "input_schema") for tool, _ in tools if is_own(tool)),
        choice=text_at(choice, "type"),
        forced=text_at(choice, "name"),
        must_call=text_at(choice, "type") not in ("", "auto", "none"),
        response_format=_response_format(source),
        others=(
            *(text for tool, text in tools if not is_own(tool)),
            *unread(source, MessagesRequest.DECLARING_MEMBERS),
        ),
    )


def is_own(tool: Mapping[str, Any]) -> bool:
    """Whether a tool is declared by the client, and none that the provider knows by its type."""
    return tool.get("type") in (None, "custom")


def _response_format(source: RawObject) -> ResponseFormat | None:
    given = object_of(object_of(source.value("output_config")).get("format") or source.value("output_format"))
    if given.get("type") != "json_schema":
        return None
    return ResponseFormat("", "", object_of(given.get("schema")))
