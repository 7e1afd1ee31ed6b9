"""The judge of a request: what Anthropic would refuse in it, but for its size. Pure: tests judge with it, too."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from lab.simulator.messages.binding import check_thinking
from lab.simulator.messages.blocks import (
    ARGUMENTS,
    BETAS,
    CACHED,
    IN_RESULTS,
    MEMBERS,
    REQUIRED,
    SAID_BY,
    SERVER_RESULTS,
    blocks_of,
)
from lab.simulator.messages.refusals import missing, refusal, require, unknown, unreadable, wrong_tag
from lab.simulator.refusals import Refused

Json = Mapping[str, Any]
Messages = Sequence[Json]

MOST_MARKS = 4
LEAST_THINKING = 1_024
_ID = re.compile(r"[a-zA-Z0-9_-]+")
_BLOCK_BINDING = "thinking-binding-controls-2026-08-01"
_MESSAGE = frozenset({"role", "content"})
_SYSTEM_MESSAGE = _MESSAGE | {"clear_at", "output_config"}
_THINKING = ["adaptive", "between_tools", "disabled", "enabled"]
_TYPES = {"string": str, "valid list": list, "valid dictionary": dict, "valid integer": int, "valid boolean": bool}
_MEMBER_TYPES = {
    "valid boolean": ("stream",),
    "string": ("model",),
    "valid list": ("messages", "tools"),
    "valid dictionary": ("compaction", "thread", "context_management", "thinking"),
    "valid integer": ("max_tokens",),
}
_SERVER_USES = {"server_tool_use", "mcp_tool_use"}
_OLD = re.compile(r"claude-(2|3|instant|(opus|sonnet|haiku)-4(-[0-5])?(-\d{8})?$)")


def check(
    request: Any, betas: Collection[str] = (), required: Collection[str] = ("max_tokens",), alternating: bool = False
) -> None:
    """Raise what the provider would say. `betas` are the values of the `anthropic-beta` header, `required` what a
    request needs beside model and messages; `alternating`: to a provider that wants users and assistants in turn."""
    _check_arguments(request, betas, required)
    messages: Messages = request["messages"]
    _check_messages(messages, has_beta(betas, ("compact-",)))
    _check_order(messages, str(request["model"]))
    if alternating:
        _check_alternation(messages)
    _check_cache_marks(request)
    _check_pairs(request)
    _check_server_pairs(messages)
    check_thinking(request)


def has_beta(betas: Collection[str], starts: Collection[str]) -> bool:
    return any(beta.startswith(tuple(starts)) for beta in betas)


def is_old(model: str) -> bool:
    """True for models up to Claude 4.5, which go on with an assistant's message, and refuse what prompt and answer
    cannot fit in."""
    return bool(_OLD.match(model))


# Members


def _check_arguments(request: Any, betas: Collection[str], required: Collection[str]) -> None:
    if not isinstance(request, dict):
        raise unreadable()
    for name in ("model", "messages", *required):
        if request.get(name) is None:
            raise missing(name)
    for name in request:
        if name not in ARGUMENTS or (name in BETAS and not has_beta(betas, BETAS[name])):
            raise unknown(name)
    for expected, names in _MEMBER_TYPES.items():
        for name in names:
            if request.get(name) is not None:
                _require(name, request[name], expected)
    require((request.get("max_tokens") or 1) >= 1, "max_tokens: Input should be greater than or equal to 1")
    if request.get("system") is not None and not isinstance(request["system"], str):
        _check_content("system", request["system"], frozenset({"text"}))
    _check_thinking_member(request, betas)


def _require(path: str, value: Any, expected: str) -> None:
    is_other = isinstance(value, bool) and expected != "valid boolean"
    require(isinstance(value, _TYPES[expected]) and not is_other, f"{path}: Input should be a {expected}")


def _check_thinking_member(request: Json, betas: Collection[str]) -> None:
    thinking = request.get("thinking")
    if thinking is None:
        return
    kind, budget = thinking.get("type"), thinking.get("budget_tokens")
    if kind not in _THINKING:
        raise missing("thinking.type") if kind is None else wrong_tag("thinking", str(kind), _THINKING)
    if "block_binding" in thinking and not has_beta(betas, (_BLOCK_BINDING,)):
        raise unknown(f"thinking.{kind}.block_binding")
    if kind == "enabled":
        path = "thinking.enabled.budget_tokens"
        if budget is None:
            raise missing(path)
        _require(path, budget, "valid integer")
        require(budget >= LEAST_THINKING, f"{path}: Input should be greater than or equal to {LEAST_THINKING}")
        most = request.get("max_tokens")
        require(most is None or budget < most, "`max_tokens` must be greater than `thinking.budget_tokens`.")


def _check_messages(messages: Sequence[Any], has_compaction: bool) -> None:
    require(messages, "messages: at least one message is required")
    for index, message in enumerate(messages):
        path = f"messages.{index}"
        _require(path, message, "valid dictionary")
        role = message.get("role")
        if role is None:
            raise missing(f"{path}.role")
        known = isinstance(role, str) and role in SAID_BY
        require(known, f"{path}.role: Input should be 'user', 'assistant' or 'system'")
        for name in message:
            if name not in (_SYSTEM_MESSAGE if role == "system" else _MESSAGE):
                raise unknown(f"{path}.{name}")
        content = message.get("content")
        if content is None:
            raise missing(f"{path}.content")
        if not isinstance(content, str):
            allowed = SAID_BY[role] if has_compaction else SAID_BY[role] - {"compaction"}
            _check_content(f"{path}.content", content, allowed)


def _check_content(path: str, content: Any, allowed: Collection[str]) -> None:
    _require(path, content, "valid list")
    for index, block in enumerate(content):
        _check_block(f"{path}.{index}", block, allowed)


def _check_block(path: str, block: Any, allowed: Collection[str]) -> None:
    _require(path, block, "valid dictionary")
    kind = block.get("type")
    if kind is None:
        raise missing(f"{path}.type")
    _require(f"{path}.type", kind, "string")
    if kind not in allowed:
        raise _not_allowed(path, kind, allowed)
    inside = f"{path}.{kind}"
    _check_names(inside, block, kind)
    _check_mark(inside, block.get(CACHED))
    match kind:
        case "text":
            _check_text(path, block)
        case "tool_use" | "server_tool_use" | "mcp_tool_use":
            for name, expected in (("id", "string"), ("name", "string"), ("input", "valid dictionary")):
                _require(f"{inside}.{name}", block[name], expected)
            require(_ID.fullmatch(block["id"]), f"{inside}.id: String should match pattern '^[a-zA-Z0-9_-]+$'")
        case "tool_result":
            _require(f"{inside}.tool_use_id", block["tool_use_id"], "string")
            if block.get("content") is not None and not isinstance(block["content"], str):
                _check_result(f"{inside}.content", block["content"])


def _not_allowed(path: str, kind: str, allowed: Collection[str]) -> Refused:
    speakers = [each for each, kinds in SAID_BY.items() if kind in kinds]
    if path.startswith("messages.") and speakers and kind != "compaction":
        message = path.rpartition(".content")[0]
        return refusal(f"{message}: `{kind}` blocks can only be in `{speakers[0]}` messages")
    return wrong_tag(path, kind, sorted(allowed))


def _check_names(path: str, block: Json, kind: str) -> None:
    for name in REQUIRED[kind]:
        if name not in block:
            raise missing(f"{path}.{name}")
    for name in block:
        if name not in MEMBERS[kind]:
            raise unknown(f"{path}.{name}")


def _check_result(path: str, content: Any) -> None:
    _require(path, content, "valid list")
    for index, part in enumerate(content):
        _require(f"{path}.{index}", part, "valid dictionary")
        if part.get("type") not in IN_RESULTS:
            raise wrong_tag(f"{path}.{index}", str(part.get("type")), sorted(IN_RESULTS))
        if part["type"] == "text":
            _check_block(f"{path}.{index}", part, IN_RESULTS)


def _check_mark(path: str, mark: Any) -> None:
    if mark is None:
        return
    _require(f"{path}.{CACHED}", mark, "valid dictionary")
    require(mark.get("type") == "ephemeral", f"{path}.{CACHED}.type: Input should be 'ephemeral'")
    require(mark.get("ttl", "5m") in ("5m", "1h"), f"{path}.{CACHED}.ttl: Input should be '5m' or '1h'")


def _check_text(path: str, block: Json) -> None:
    where = path.partition(".")[0]
    _require(f"{path}.text.text", block["text"], "string")
    text, is_marked = block["text"], block.get(CACHED) is not None
    require(text or not is_marked, f"{path}.text: cache_control cannot be set for empty text blocks")
    require(text, f"{where}: text content blocks must be non-empty")
    require(text.strip(), f"{where}: text content blocks must contain non-whitespace text")


# Order


def _check_order(messages: Messages, model: str) -> None:
    last = len(messages) - 1
    for index, message in enumerate(messages):
        text = f"messages.{index}: all messages must have non-empty content"
        is_last = index == last and message["role"] == "assistant"
        require(message["content"] or is_last, f"{text} except for the optional final assistant message")
    is_first = messages[0]["role"] == "user" or _begins_compacted(messages[0])
    require(is_first, 'messages: first message must use the "user" role')
    _check_system_messages(messages)
    if messages[-1]["role"] == "assistant":
        _check_prefill(blocks_of(messages[-1]["content"]), model)


def _check_alternation(messages: Messages) -> None:
    """Refuse neighbours of one role for providers that join none, as the API itself did until 2024. Instructions among
    them do not count."""
    roles = [message["role"] for message in messages if message["role"] != "system"]
    for before, after in pairwise(roles):
        text = f'messages: roles must alternate between "user" and "assistant", but found multiple "{after}" roles'
        require(before != after, f"{text} in a row")


def _begins_compacted(message: Json) -> bool:
    blocks = blocks_of(message["content"])
    return message["role"] == "assistant" and bool(blocks) and blocks[0]["type"] == "compaction"


def _check_system_messages(messages: Messages) -> None:
    """The rules are documented; their wording here is the simulator's own."""
    roles = [message["role"] for message in messages]
    for index, role in enumerate(roles):
        if role != "system":
            continue
        before = next((each for each in reversed(roles[:index]) if each != "system"), None)
        after = next((each for each in roles[index:] if each != "system"), None)
        text = f"messages.{index}: a `system` message must"
        require(before == "user", f"{text} directly follow a user turn")
        require(after != "user", f"{text} be last or be followed by an assistant turn")


def _check_prefill(blocks: Sequence[Json], model: str) -> None:
    """A turn that the provider paused in the middle of a server's tool goes on; calls are refused as pairs are."""
    if blocks and blocks[-1]["type"] in (*_SERVER_USES, "compaction", "tool_use"):
        return
    text = "This model does not support assistant message prefill. The conversation must end with a user message."
    require(is_old(model), text)
    end = blocks[-1]["text"] if blocks and blocks[-1]["type"] == "text" else ""
    require(end == end.rstrip(), "messages: final assistant content cannot end with trailing whitespace")


def _check_cache_marks(request: Json) -> None:
    marks = [(path, mark) for path, holder in _holders(request) if (mark := holder.get(CACHED)) is not None]
    text = f"A maximum of {MOST_MARKS} blocks with cache_control may be provided. Found {len(marks)}."
    require(len(marks) <= MOST_MARKS, text)
    short = False
    for path, mark in marks:
        text = f"{path}.cache_control.ttl: a ttl='1h' cache_control block must not come after a ttl='5m' "
        order = "Note that blocks are processed in the following order: `tools`, `system`, `messages`."
        is_short = mark.get("ttl") != "1h"
        require(is_short or not short, f"{text}cache_control block. {order}")
        short = short or is_short


def _holders(request: Json) -> Iterator[tuple[str, Json]]:
    """Holders of marks in the order of processing; a mark on the whole request stands for one on its last block."""
    for member in ("tools", "system"):
        for index, block in enumerate(blocks_of(request.get(member))):
            yield f"{member}.{index}", block
    for index, message in enumerate(request["messages"]):
        for place, block in enumerate(blocks_of(message["content"])):
            path = f"messages.{index}.content.{place}"
            inner = block.get("content") if block["type"] == "tool_result" else None
            for inside, part in enumerate(inner if isinstance(inner, list) else ()):
                yield f"{path}.content.{inside}", part
            yield path, block
    yield "cache_control", request


# Calls and their results: each answered once, in the very next message, before anything else is said


def _check_pairs(request: Json) -> None:
    messages: Messages = request["messages"]
    if not request.get("tools") and not request.get("mcp_servers"):
        kinds = {block["type"] for message in messages for block in blocks_of(message["content"])}
        text = "Requests which include `tool_use` or `tool_result` blocks must define tools."
        require(not kinds & {"tool_use", "tool_result"}, text)
    seen: set[str] = set()
    called: list[str] = []
    for index, message in enumerate(messages):
        if message["role"] == "system":
            require(not called, _unanswered(index - 1, called))
            continue
        blocks = blocks_of(message["content"])
        _check_results(index, blocks, called)
        called = [block["id"] for block in blocks if block["type"] == "tool_use"]
        new = set(called)
        require(len(new) == len(called) and not seen & new, "messages: `tool_use` ids must be unique")
        seen |= new
    require(not called, _unanswered(len(messages) - 1, called))


def _check_results(index: int, blocks: Sequence[Json], called: Sequence[str]) -> None:
    """Check that results stand first: one behind another block answers nothing."""
    answered: list[str] = []
    first = True
    for place, block in enumerate(blocks):
        if block["type"] != "tool_result":
            first = False
            continue
        call, path = block["tool_use_id"], f"messages.{index}.content.{place}"
        require(call in called, _stray(path, "tool_result", "tool_use", call))
        text = f"{path}: each tool_use must have a single result. Found multiple `tool_result` blocks with id"
        require(call not in answered, f"{text}: {call}")
        if first:
            answered.append(call)
    left = [call for call in called if call not in answered]
    require(not left, _unanswered(index - 1, left))


def _check_server_pairs(messages: Messages) -> None:
    """A server's own call has its result behind it; the last message may be one that was paused before it."""
    called: dict[str, tuple[int, Json]] = {}
    for index, message in enumerate(messages):
        for place, block in enumerate(blocks_of(message["content"])):
            if block["type"] in _SERVER_USES:
                called[block["id"]] = index, block
            elif block["type"] in SERVER_RESULTS | {"mcp_tool_result"}:
                call, kind = str(block.get("tool_use_id")), block["type"]
                use = "mcp_tool_use" if kind == "mcp_tool_result" else "server_tool_use"
                require(call in called, _stray(f"messages.{index}.content.{place}", kind, use, call))
                del called[call]
    for index, left in called.values():
        text = f"messages.{index}: `{left['name']}` tool use with id `{left['id']}` was found without a"
        is_paused = all(message["role"] != "assistant" for message in messages[index + 1 :])
        require(is_paused, f"{text} corresponding result block")


def _unanswered(index: int, ids: Sequence[str]) -> str:
    return (
        f"messages.{index}: `tool_use` ids were found without `tool_result` blocks immediately after: "
        f"{', '.join(ids)}. "
        "Each `tool_use` block must have a corresponding `tool_result` block in the next message."
    )


def _stray(path: str, kind: str, use: str, call_id: str) -> str:
    where = "in the previous message" if use == "tool_use" else "before it"
    return (
        f"{path}: unexpected `tool_use_id` found in `{kind}` blocks: {call_id}. "
        f"Each `{kind}` block must have a corresponding `{use}` block {where}."
    )
