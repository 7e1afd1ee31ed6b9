"""A provider of Responses as strict as the real one about the order of items, written for itself: it decodes what would
be sent, knows which item stood behind which reasoning, and says in the provider's words what it refuses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Item = Mapping[str, Any]

PAIRS = {
    "function_call": "function_call_output",
    "custom_tool_call": "custom_tool_call_output",
    "computer_call": "computer_call_output",
    "local_shell_call": "local_shell_call_output",
    "shell_call": "shell_call_output",
    "apply_patch_call": "apply_patch_call_output",
    "program": "program_output",
    "tool_search_call": "tool_search_output",
    "mcp_approval_request": "mcp_approval_response",
}
"""By call what answers it."""
REQUIRED: Mapping[str, frozenset[str]] = {
    "message": frozenset({"role", "content"}),
    "reasoning": frozenset({"id", "summary"}),
    "function_call": frozenset({"call_id", "name", "arguments"}),
    "function_call_output": frozenset({"output"}),
    "custom_tool_call": frozenset({"call_id", "name", "input"}),
    "custom_tool_call_output": frozenset({"call_id", "output"}),
    "computer_call": frozenset({"id", "call_id", "pending_safety_checks", "status"}),
    "computer_call_output": frozenset({"call_id", "output"}),
    "local_shell_call": frozenset({"id", "call_id", "action", "status"}),
    "local_shell_call_output": frozenset({"id", "output"}),
    "shell_call": frozenset({"call_id", "action"}),
    "shell_call_output": frozenset({"call_id", "output"}),
    "apply_patch_call": frozenset({"call_id", "operation", "status"}),
    "apply_patch_call_output": frozenset({"call_id", "status"}),
    "program": frozenset({"id", "call_id", "code", "fingerprint"}),
    "program_output": frozenset({"id", "call_id", "result", "status"}),
    "tool_search_call": frozenset({"arguments"}),
    "tool_search_output": frozenset({"tools"}),
    "mcp_approval_request": frozenset({"id", "name", "arguments", "server_label"}),
    "mcp_approval_response": frozenset({"approval_request_id", "approve"}),
    "mcp_call": frozenset({"id", "name", "arguments", "server_label"}),
    "mcp_list_tools": frozenset({"id", "server_label", "tools"}),
    "web_search_call": frozenset({"id", "action", "status"}),
    "file_search_call": frozenset({"id", "queries", "status"}),
    "code_interpreter_call": frozenset({"id", "code", "container_id", "outputs", "status"}),
    "image_generation_call": frozenset({"id", "result", "status"}),
    "additional_tools": frozenset({"role", "tools"}),
    "configuration_update": frozenset(),
    "compaction": frozenset({"encrypted_content"}),
}
ROLES = ("user", "assistant", "system", "developer")


def refusals(items: Sequence[Item], history: Sequence[Item]) -> list[str]:
    """What a provider that made the history would refuse of these items."""
    found = [*_shapes(items), *_duplicates(items)]
    compacted = max((place for place, item in enumerate(items) if item.get("type") == "compaction"), default=-1)
    read = items[compacted + 1 :]
    return [*found, *_unpaired(read), *_parted(read, history)]


def _shapes(items: Sequence[Item]) -> Iterable[str]:
    for place, item in enumerate(items):
        type_ = item.get("type", "message")
        if type_ not in REQUIRED:
            yield f"Invalid value: '{type_}'."
            continue
        yield from (f"Missing required parameter: 'input[{place}].{name}'." for name in REQUIRED[type_] - set(item))
        if type_ == "message" and item.get("role") not in ROLES:
            yield f"Invalid value: '{item.get('role')}'."
        if type_ == "message" and isinstance(content := item.get("content"), list):
            wanted = ("output_text", "refusal") if item.get("role") == "assistant" else ("input_text", "input_image")
            yield from (f"Invalid value: '{part['type']}'." for part in content if part["type"] not in wanted)


def _duplicates(items: Sequence[Item]) -> Iterable[str]:
    seen: set[str] = set()
    for item in items:
        id_ = item.get("id")
        if id_ is not None and item.get("type") != "local_shell_call_output":
            if id_ in seen:
                yield f"Duplicate item found with id {id_}."
            seen.add(id_)


def _key(item: Item) -> str | None:
    if item.get("type") == "mcp_approval_request":
        return item.get("id")
    if item.get("type") == "mcp_approval_response":
        return item.get("approval_request_id")
    if item.get("type") == "local_shell_call_output":
        return item.get("id")
    return item.get("call_id")


def _unpaired(items: Sequence[Item]) -> Iterable[str]:
    answers = {answer: call for call, answer in PAIRS.items()}
    for place, item in enumerate(items):
        type_, key = item.get("type", ""), _key(item)
        if type_ in PAIRS and key is not None:
            behind = [each for each in items[place + 1 :] if each.get("type") == PAIRS[type_] and _key(each) == key]
            if len(behind) != 1:
                yield f"No tool output found for {type_} {key}: {len(behind)}."
        if type_ in answers and key is not None:
            before = [each for each in items[:place] if each.get("type") == answers[type_] and _key(each) == key]
            if len(before) != 1:
                yield f"No tool call found for {type_} with call_id {key}: {len(before)}."
        if type_ == "tool_search_call" and key is None and items[place + 1 :][:1] != [*_searched(items[place + 1 :])]:
            yield "No output found for a search for tools."


def _searched(items: Sequence[Item]) -> Iterable[Item]:
    yield from (item for item in items[:1] if item.get("type") == "tool_search_output")


def _parted(items: Sequence[Item], history: Sequence[Item]) -> Iterable[str]:
    followers = {
        item["id"]: history[place + 1]
        for place, item in enumerate(history[:-1])
        if item.get("type") == "reasoning" and history[place + 1].get("type") != "reasoning"
    }
    thought_of = {follower["id"]: thought for thought, follower in followers.items() if "id" in follower}
    for place, item in enumerate(items):
        before = items[place - 1] if place else {}
        if item.get("type") == "reasoning" and item["id"] in followers:
            if place + 1 >= len(items) or not _is_same(items[place + 1], followers[item["id"]]):
                yield f"Item '{item['id']}' of type 'reasoning' was provided without its required following item."
        elif (thought := thought_of.get(item.get("id", ""))) is not None and before.get("id") != thought:
            yield f"Item '{item['id']}' was provided without its required 'reasoning' item: '{thought}'."


def _is_same(item: Item, made: Item) -> bool:
    """Whether an item is the one that was made; what it says may have been shortened."""
    names = ("type", "id", "call_id", "role")
    return all(item.get(name) == made.get(name) for name in names)
