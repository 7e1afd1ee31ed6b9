"""The judge of a request: what OpenAI would refuse in it, but for its size. Pure: tests judge with it, too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from lab.simulator.refusals import (
    Refused,
    check_keys,
    check_number,
    check_object,
    check_string,
    check_types,
    missing,
    refusal,
    roles_do_not_alternate,
    unknown,
    unreadable,
    wrong_type,
    wrong_value,
)
from lab.simulator.responses.items import (
    CALLS,
    IN_OUTPUTS,
    MEMBERS,
    OUTPUTS,
    PART_MEMBERS,
    PARTS,
    PREFIXES,
    REQUIRED,
    ROLES,
    SAID,
    is_own,
    kind_of,
    opened,
    required_reasoning,
)

Json = Mapping[str, Any]

# fmt: off
ACCEPTED = frozenset({
    "access_programs", "background", "background_options", "context_management", "conversation", "image", "include",
    "input", "instructions", "max_output_tokens", "max_tool_calls", "metadata", "model", "moderation",
    "parallel_tool_calls", "previous_response_id", "prompt", "prompt_cache_key", "prompt_cache_options",
    "prompt_cache_retention", "reasoning", "safety_identifier", "service_tier", "store", "stream", "stream_options",
    "temperature", "text", "tool_choice", "tools", "top_logprobs", "top_p", "truncation", "user",
    "client_metadata",  # Codex sends it
})
# fmt: on
"""The arguments of POST /v1/responses in the official SDK (openai 3.54)."""
LEAST_OUTPUT = 16


def check(request: Any, alternating: bool = False) -> None:
    """Raise what the provider would say, but for the request's size. `alternating`: to a model whose template wants
    users and assistants in turn."""
    items = items_of(_checked_arguments(request).get("input"))
    _check_items(items)
    _check_pairs(items)
    _check_bonds(items)
    if alternating:
        for before, after in pairwise(items):
            if all(kind_of(item) == "message" and item["role"] == "user" for item in (before, after)):
                raise roles_do_not_alternate()


def items_of(given: Any) -> list[Json]:
    """Items of an input; a string is one message of the user."""
    if isinstance(given, str):
        return [{"type": "message", "role": "user", "content": given}]
    return list(given or [])


# Members


def _checked_arguments(request: Any) -> Mapping[str, Any]:
    """The members of a request that are not null. Checked are names, and values that Steno may change."""
    if not isinstance(request, dict):
        raise unreadable()
    for name in request:
        if name not in ACCEPTED:
            raise unknown(name)
    given = {name: value for name, value in request.items() if value is not None}
    if "model" not in given:
        raise missing("model")
    check_types(given, {bool: ("store", "stream"), str: ("instructions", "model"), list: ("include", "tools")})
    if not isinstance(given.get("input", ""), str | list):
        raise wrong_type("input", "one of a string or array of input items", given["input"])
    if "max_output_tokens" in given:
        check_number("max_output_tokens", given["max_output_tokens"], LEAST_OUTPUT)
    if not any(name in given for name in ("input", "previous_response_id", "prompt", "conversation")):
        text = "One of \"input\" or \"previous_response_id\" or 'prompt' or 'conversation_id' must be provided."
        raise refusal(text, None, "missing_required_parameter")
    return given


# Items


def _check_items(items: Sequence[Any]) -> None:
    seen: set[str] = set()
    for index, item in enumerate(items):
        path = f"input[{index}]"
        check_object(path, item)
        kind = _check_members(path, item)
        _check_id(path, kind, item, seen)
        if kind == "message":
            _check_message(path, item)
        elif kind in ("function_call_output", "custom_tool_call_output"):
            _check_content(f"{path}.output", item["output"], IN_OUTPUTS)
        if kind == "compaction_trigger" and index < len(items) - 1:
            raise _invalid("A 'compaction_trigger' item must be the last item in 'input'.", path)
        _check_kept(kind, item)


def _check_members(path: str, item: Json) -> str:
    kind = kind_of(item)
    if kind not in MEMBERS:
        raise wrong_value(path, kind, tuple(MEMBERS))
    for name in REQUIRED[kind]:
        if item.get(name) is None:
            raise missing(f"{path}.{name}")
    check_keys(path, item, MEMBERS[kind])
    if kind == "function_call_output" and item.get("call_id") is None and item.get("name") is None:
        raise missing(f"{path}.call_id")
    if kind != "tool_search_call":
        check_types(item, {str: ("call_id", "arguments")}, f"{path}.")
    return kind


def _check_id(path: str, kind: str, item: Json, seen: set[str]) -> None:
    own = item.get("id")
    if own is None:
        return
    check_types(item, {str: ("id",)}, f"{path}.")
    prefix = PREFIXES.get(kind)
    if prefix is not None and not own.startswith(prefix):
        text = f"Invalid '{path}.id': '{own}'. Expected an ID that begins with '{prefix}'."
        raise _invalid(text, f"{path}.id")
    # A shell's output is named by its call.
    if kind != "local_shell_call_output":
        if own in seen:
            text = f"Duplicate item found with id {own}. Remove duplicate items from your input and try again."
            raise refusal(text, "input")
        seen.add(own)


def _check_message(path: str, item: Json) -> None:
    role = item["role"]
    if role not in ROLES:
        raise wrong_value(f"{path}.role", str(role), ROLES)
    _check_content(f"{path}.content", item["content"], PARTS[role])


def _check_content(path: str, content: Any, allowed: tuple[str, ...]) -> None:
    if isinstance(content, str):
        return
    if not isinstance(content, list):
        raise wrong_type(path, "one of an array of objects or string", content)
    for index, part in enumerate(content):
        _check_part(f"{path}[{index}]", part, allowed)


def _check_part(path: str, part: Any, allowed: tuple[str, ...]) -> None:
    check_object(path, part)
    kind = part.get("type")
    if kind is None:
        raise missing(f"{path}.type")
    if kind not in allowed:
        raise wrong_value(path, str(kind), allowed)
    check_keys(path, part, PART_MEMBERS[kind])
    text = {"input_text": "text", "output_text": "text", "refusal": "refusal"}.get(kind)
    if text is not None:
        check_string(f"{path}.{text}", part.get(text))


def _check_kept(kind: str, item: Json) -> None:
    """Check what the provider would have to store, and what it sealed. Reasoning with an id alone passes."""
    sealed = item.get("encrypted_content")
    if kind == "item_reference":
        text = (
            f"Item with id '{item.get('id')}' not found. Items are not persisted when `store` is set to false. "
            "Try again with `store` set to true, or remove this item from your input."
        )
        raise refusal(text, "input", None, 404)
    if kind == "reasoning" and sealed is not None and (not isinstance(sealed, str) or opened(kind, sealed) is None):
        text = f"The encrypted content {str(sealed)[:4]}...{str(sealed)[-4:]} could not be verified. "
        reason = "Reason: Encrypted content could not be decrypted or parsed."
        raise refusal(text + reason, None, "invalid_encrypted_content")


def _invalid(text: str, param: str) -> Refused:
    return refusal(text, param, "invalid_value")


# Items that need each other: calls and outputs by their ids, reasoning and what was said after it by their place


def _check_pairs(items: Sequence[Json]) -> None:
    """Every output has its call before it, and every call its output behind it; not necessarily next to it."""
    called: dict[str, str] = {}
    answered: set[str] = set()
    asked: set[Any] = set()
    for item in items:
        kind = kind_of(item)
        if kind == "mcp_approval_request":
            asked.add(item["id"])
        elif kind == "mcp_approval_response" and item["approval_request_id"] not in asked:
            raise _no_call("mcp approval", item["approval_request_id"])
        elif kind in CALLS and item.get("call_id") is not None:
            called[item["call_id"]] = kind
        elif kind in OUTPUTS and (answers := _answers(kind, item, items)) is not None:
            if called.get(answers) not in OUTPUTS[kind]:
                raise _no_call(CALLS[OUTPUTS[kind][0]], answers)
            answered.add(answers)
    for call_id, kind in called.items():
        if call_id not in answered:
            raise refusal(f"No tool output found for {CALLS[kind]} {call_id}.", "input")


def _no_call(family: str, call_id: str) -> Refused:
    return refusal(f"No tool call found for {family} output with call_id {call_id}.", "input")


def _answers(kind: str, output: Json, items: Sequence[Json]) -> str | None:
    """The call's id; None: what the provider ran itself, or an output that only has a name."""
    if kind != "local_shell_call_output":
        answers = output.get("call_id")
        return None if answers is None else str(answers)
    # It is named by its call: by the item's id, or by the call's.
    calls = (item for item in items if kind_of(item) == "local_shell_call")
    named = next((call for call in calls if output["id"] in (call.get("id"), call["call_id"])), None)
    return str(output["id"] if named is None else named["call_id"])


def _check_bonds(items: Sequence[Json]) -> None:
    """Reasoning stands directly before what was said after it; neither goes without the other."""
    for index, item in enumerate(items):
        before = items[index - 1] if index else None
        after = items[index + 1] if index + 1 < len(items) else None
        if kind_of(item) == "reasoning" and not _follows(item, after):
            text = f"Item '{item.get('id')}' of type 'reasoning' was provided without its required following item."
            raise refusal(text, "input")
        needed = required_reasoning(item.get("id"))
        if needed is not None and (before is None or before.get("id") != needed):
            text = f"Item '{item['id']}' of type '{kind_of(item)}' was provided without its required 'reasoning' item"
            raise refusal(f"{text}: '{needed}'.", "input")


def _follows(reasoning: Json, item: Json | None) -> bool:
    if item is None:
        return False
    kind = kind_of(item)
    if kind == "reasoning":
        return True  # several in a row: the last of them is asked
    if kind not in SAID and not (kind == "message" and item["role"] == "assistant"):
        return False
    return not is_own(item.get("id")) or required_reasoning(item["id"]) == reasoning.get("id")
