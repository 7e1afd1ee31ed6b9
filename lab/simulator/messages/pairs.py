"""Calls and their results: each answered once, in the very next message, before anything else is said."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lab.formats.messages import blocks_of
from lab.simulator.messages.blocks import SERVER_RESULTS
from lab.simulator.messages.refusals import Refusal, repeated_result, stray_result, unanswered
from lab.simulator.refusals import Refused

_RESULTS = SERVER_RESULTS | {"mcp_tool_result"}
_USES = {"server_tool_use", "mcp_tool_use"}

Messages = Sequence[Mapping[str, Any]]


def check_tools(request: Mapping[str, Any]) -> None:
    """Calls in the history need tools in the request."""
    if request.get("tools") or request.get("mcp_servers"):
        return
    kinds = {block["type"] for message in request["messages"] for block in blocks_of(message["content"])}
    if kinds & {"tool_use", "tool_result"}:
        text = "Requests which include `tool_use` or `tool_result` blocks must define tools."
        raise Refused(Refusal(text))


def check_pairs(messages: Messages) -> None:
    seen: set[str] = set()
    called: list[str] = []
    for index, message in enumerate(messages):
        if message["role"] == "system":
            if called:
                raise Refused(unanswered(index - 1, called))
            continue
        blocks = blocks_of(message["content"])
        _check_results(index, blocks, called)
        called = [block["id"] for block in blocks if block["type"] == "tool_use"]
        if len(set(called)) < len(called) or seen & set(called):
            raise Refused(Refusal("messages: `tool_use` ids must be unique"))
        seen |= set(called)
    if called:
        raise Refused(unanswered(len(messages) - 1, called))


def _check_results(index: int, blocks: Sequence[Mapping[str, Any]], called: Sequence[str]) -> None:
    """Check that results stand first: one behind another block answers nothing."""
    answered: list[str] = []
    first = True
    for place, block in enumerate(blocks):
        if block["type"] != "tool_result":
            first = False
            continue
        call, path = block["tool_use_id"], f"messages.{index}.content.{place}"
        if call not in called:
            raise Refused(stray_result(path, "tool_result", "tool_use", call))
        if call in answered:
            raise Refused(repeated_result(path, call))
        if first:
            answered.append(call)
    if left := [call for call in called if call not in answered]:
        raise Refused(unanswered(index - 1, left))


def check_server_pairs(messages: Messages) -> None:
    """A server's own call has its result behind it; the last message may be one that was paused before it."""
    opened: dict[str, tuple[int, Mapping[str, Any]]] = {}
    for index, message in enumerate(messages):
        for place, block in enumerate(blocks_of(message["content"])):
            if block["type"] in _USES:
                opened[block["id"]] = index, block
            elif block["type"] in _RESULTS:
                call, kind = str(block.get("tool_use_id")), block["type"]
                use = "mcp_tool_use" if kind == "mcp_tool_result" else "server_tool_use"
                if call not in opened:
                    raise Refused(stray_result(f"messages.{index}.content.{place}", kind, use, call))
                del opened[call]
    for index, left in opened.values():
        if any(message["role"] == "assistant" for message in messages[index + 1 :]):
            kind = "mcp_tool_result" if left["type"] == "mcp_tool_use" else f"{left['name']}_tool_result"
            raise Refused(
                Refusal(
                    f"messages.{index}: `{left['name']}` tool use with id `{left['id']}` was found without a "
                    f"corresponding `{kind}` block"
                )
            )
