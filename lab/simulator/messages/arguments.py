"""The shape of a request: known members, the right types, blocks that their role may say."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from lab.simulator.messages.blocks import ARGUMENTS, BETAS, CACHED, IN_RESULTS, MEMBERS, REQUIRED, SAID_BY
from lab.simulator.messages.refusals import Refusal, missing, unknown, unreadable, wrong_pattern, wrong_tag
from lab.simulator.refusals import Refused

ID = re.compile(r"[a-zA-Z0-9_-]+")
LEAST_THINKING = 1_024
_TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_MESSAGE = frozenset({"role", "content"})
_SYSTEM_MESSAGE = _MESSAGE | {"clear_at", "output_config"}
_FLAGS = ("stream",)
_EDITS = {
    "clear_thinking_20251015": ("context-management-", "compact-2026-01-12"),
    "clear_tool_uses_20250919": ("context-management-", "compact-2026-01-12"),
    "compact_20260112": ("compact-2026-01-12",),
}
_TYPES = {"string": str, "valid list": list, "valid dictionary": dict, "valid integer": int}


def check_arguments(request: Any, betas: Collection[str], required: Collection[str]) -> Mapping[str, Any]:
    """The request, as an object whose messages and blocks have the right shape."""
    if not isinstance(request, dict):
        raise Refused(unreadable())
    for name in ("model", "messages", *required):
        if request.get(name) is None:
            raise Refused(missing(name))
    model = request["model"]
    _require("model", model, "string")
    for name in request:
        if name not in ARGUMENTS or not _is_known(name, betas):
            raise Refused(unknown(name))
    _check_numbers(request)
    for name in _FLAGS:
        if not isinstance(request.get(name, False), bool):
            raise Refused(Refusal(f"{name}: Input should be a valid boolean"))
    _check_system(request.get("system"))
    _check_tools(request.get("tools"))
    for name in ("tool_choice", "compaction", "thread"):
        if request.get(name) is not None:
            _require(name, request[name], "valid dictionary")
    _check_thinking(request)
    _check_edits(request, betas)
    _check_messages(request["messages"], betas)
    return request


def has_beta(betas: Collection[str], starts: Iterable[str]) -> bool:
    return any(beta.startswith(tuple(starts)) for beta in betas)


def _is_known(name: str, betas: Collection[str]) -> bool:
    return name not in BETAS or has_beta(betas, BETAS[name])


def _require(path: str, value: Any, expected: str) -> None:
    if not isinstance(value, _TYPES[expected]) or isinstance(value, bool):
        raise Refused(Refusal(f"{path}: Input should be a {expected}"))


def _check_numbers(request: Mapping[str, Any]) -> None:
    if request.get("max_tokens") is not None:
        _require("max_tokens", request["max_tokens"], "valid integer")
        if request["max_tokens"] < 1:
            raise Refused(Refusal("max_tokens: Input should be greater than or equal to 1"))
    for name in ("temperature", "top_p"):
        value = request.get(name)
        if value is not None and not (isinstance(value, int | float) and 0 <= value <= 1):
            raise Refused(Refusal(f"{name}: range: 0..1"))


def _check_system(system: Any) -> None:
    if system is None or isinstance(system, str):
        return
    _require("system", system, "valid list")
    for index, block in enumerate(system):
        _check_block(f"system.{index}", block, frozenset({"text"}))
        _check_text("system", f"system.{index}", block)


def _check_tools(tools: Any) -> None:
    if tools is None:
        return
    _require("tools", tools, "valid list")
    names = []
    for index, tool in enumerate(tools):
        _require(f"tools.{index}", tool, "valid dictionary")
        if tool.get("type") in (None, "custom"):
            path = f"tools.{index}.custom"
            for name in ("name", "input_schema"):
                if tool.get(name) is None:
                    raise Refused(missing(f"{path}.{name}"))
            if not _TOOL_NAME.fullmatch(str(tool["name"])):
                raise Refused(wrong_pattern(f"{path}.name", "^[a-zA-Z0-9_-]{1,128}$"))
            _require(f"{path}.input_schema", tool["input_schema"], "valid dictionary")
        names.append(tool.get("name"))
    named = [name for name in names if name is not None]
    if len(set(named)) < len(named):
        raise Refused(Refusal("tools: Tool names must be unique."))


def _check_thinking(request: Mapping[str, Any]) -> None:
    thinking = request.get("thinking")
    if thinking is None:
        return
    _require("thinking", thinking, "valid dictionary")
    kinds = ["adaptive", "between_tools", "disabled", "enabled"]
    kind = thinking.get("type")
    if kind not in kinds:
        raise Refused(missing("thinking.type") if kind is None else wrong_tag("thinking", str(kind), kinds))
    _require(f"thinking.{kind}.block_binding", thinking.get("block_binding") or {}, "valid dictionary")
    if kind == "enabled":
        _check_thinking_budget(thinking.get("budget_tokens"), request.get("max_tokens"))
    forced = (request.get("tool_choice") or {}).get("type") in ("any", "tool")
    if kind in ("enabled", "adaptive") and forced:
        raise Refused(Refusal("Thinking may not be enabled when tool_choice forces tool use."))


def _check_thinking_budget(budget: Any, max_tokens: int | None) -> None:
    path = "thinking.enabled.budget_tokens"
    if budget is None:
        raise Refused(missing(path))
    _require(path, budget, "valid integer")
    if budget < LEAST_THINKING:
        raise Refused(Refusal(f"{path}: Input should be greater than or equal to {LEAST_THINKING}"))
    if max_tokens is not None and budget >= max_tokens:
        raise Refused(Refusal("`max_tokens` must be greater than `thinking.budget_tokens`."))


def _check_edits(request: Mapping[str, Any], betas: Collection[str]) -> None:
    managed = request.get("context_management")
    if managed is None:
        return
    _require("context_management", managed, "valid dictionary")
    known = sorted(kind for kind, starts in _EDITS.items() if has_beta(betas, starts))
    _require("context_management.edits", managed.get("edits", []), "valid list")
    for index, edit in enumerate(managed.get("edits", [])):
        path = f"context_management.edits.{index}"
        _require(path, edit, "valid dictionary")
        if edit.get("type") not in known:
            raise Refused(wrong_tag(path, str(edit.get("type")), known))
        if (trigger := edit.get("trigger")) is not None and edit["type"] == "compact_20260112":
            _require(f"{path}.trigger", trigger, "valid dictionary")
            _require(f"{path}.trigger.value", trigger.get("value"), "valid integer")


def _check_messages(messages: Any, betas: Collection[str]) -> None:
    _require("messages", messages, "valid list")
    if not messages:
        raise Refused(Refusal("messages: at least one message is required"))
    compaction = has_beta(betas, ("compact-",))
    for index, message in enumerate(messages):
        path = f"messages.{index}"
        _require(path, message, "valid dictionary")
        role = message.get("role")
        if role is None:
            raise Refused(missing(f"{path}.role"))
        if not isinstance(role, str) or role not in SAID_BY:
            raise Refused(Refusal(f"{path}.role: Input should be 'user', 'assistant' or 'system'"))
        for name in message:
            if name not in (_SYSTEM_MESSAGE if role == "system" else _MESSAGE):
                raise Refused(unknown(f"{path}.{name}"))
        allowed = SAID_BY[role] if compaction else SAID_BY[role] - {"compaction"}
        _check_content(path, role, message.get("content"), allowed)


def _check_content(path: str, role: str, content: Any, allowed: Collection[str]) -> None:
    if content is None:
        raise Refused(missing(f"{path}.content"))
    if isinstance(content, str):
        return
    if not isinstance(content, list):
        raise Refused(Refusal(f"{path}.content: Input should be a valid list"))
    for index, block in enumerate(content):
        inside = f"{path}.content.{index}"
        _check_block(inside, block, allowed, role)
        _check_text("messages", inside, block)


def _check_block(path: str, block: Any, allowed: Collection[str], role: str = "") -> None:
    _require(path, block, "valid dictionary")
    kind = block.get("type")
    if kind is None:
        raise Refused(missing(f"{path}.type"))
    _require(f"{path}.type", kind, "string")
    if kind not in allowed:
        sayers = [each for each, kinds in SAID_BY.items() if kind in kinds]
        if role and sayers and kind != "compaction":
            text = f"{path.rpartition('.content')[0]}: `{kind}` blocks can only be in `{sayers[0]}` messages"
            raise Refused(Refusal(text))
        raise Refused(wrong_tag(path, str(kind), sorted(allowed)))
    inside = f"{path}.{kind}"
    for name in REQUIRED.get(kind, ()):
        if name not in block:
            raise Refused(missing(f"{inside}.{name}"))
    for name in block:
        if name not in MEMBERS[kind]:
            raise Refused(unknown(f"{inside}.{name}"))
    _check_mark(inside, block.get(CACHED))
    if kind in ("tool_use", "server_tool_use", "mcp_tool_use"):
        _check_use(inside, block)
    if kind == "tool_result":
        _check_result(inside, block)


def _check_mark(path: str, mark: Any) -> None:
    if mark is None:
        return
    _require(f"{path}.{CACHED}", mark, "valid dictionary")
    if mark.get("type") != "ephemeral":
        raise Refused(Refusal(f"{path}.{CACHED}.type: Input should be 'ephemeral'"))
    if mark.get("ttl", "5m") not in ("5m", "1h"):
        raise Refused(Refusal(f"{path}.{CACHED}.ttl: Input should be '5m' or '1h'"))
    for name in mark:
        if name not in ("type", "ttl"):
            raise Refused(unknown(f"{path}.{CACHED}.{name}"))


def _check_use(path: str, block: Mapping[str, Any]) -> None:
    _require(f"{path}.id", block["id"], "string")
    if not ID.fullmatch(block["id"]):
        raise Refused(wrong_pattern(f"{path}.id", "^[a-zA-Z0-9_-]+$"))
    _require(f"{path}.name", block["name"], "string")
    _require(f"{path}.input", block["input"], "valid dictionary")


def _check_result(path: str, block: Mapping[str, Any]) -> None:
    _require(f"{path}.tool_use_id", block["tool_use_id"], "string")
    content = block.get("content")
    if content is None or isinstance(content, str):
        return
    _require(f"{path}.content", content, "valid list")
    for index, part in enumerate(content):
        inside = f"{path}.content.{index}"
        _require(inside, part, "valid dictionary")
        if part.get("type") not in IN_RESULTS:
            raise Refused(wrong_tag(inside, str(part.get("type")), sorted(IN_RESULTS)))
        if part["type"] == "text":
            _check_block(inside, part, IN_RESULTS)
            _check_text("messages", inside, part)


def _check_text(where: str, path: str, block: Mapping[str, Any]) -> None:
    if block["type"] != "text":
        return
    _require(f"{path}.text.text", block["text"], "string")
    if block["text"] == "" and block.get(CACHED) is not None:
        raise Refused(Refusal(f"{path}.text: cache_control cannot be set for empty text blocks"))
    if block["text"] == "":
        raise Refused(Refusal(f"{where}: text content blocks must be non-empty"))
    if not block["text"].strip():
        raise Refused(Refusal(f"{where}: text content blocks must contain non-whitespace text"))
