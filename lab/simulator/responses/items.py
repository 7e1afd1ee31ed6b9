"""Items: which there are, and what they may hold (the official SDK's types, openai 3.54)."""

from __future__ import annotations

import re
from collections.abc import Mapping

from lab.formats.responses import CALLS as READ_CALLS

PASSTHROUGH = "internal_chat_message_metadata_passthrough"
"""Member that Codex puts on every item."""

# fmt: off
MEMBERS: Mapping[str, frozenset[str]] = {
    kind: frozenset(("type", "id", PASSTHROUGH, *members)) for kind, members in {
        "message": ("role", "content", "status", "phase"),
        "reasoning": ("summary", "content", "encrypted_content", "status"),
        "function_call": ("call_id", "name", "arguments", "namespace", "caller", "async", "status"),
        "function_call_output": ("call_id", "output", "name", "namespace", "caller", "status"),
        "custom_tool_call": ("call_id", "name", "input", "namespace", "caller", "async", "status"),
        "custom_tool_call_output": ("call_id", "output", "caller", "status"),
        "local_shell_call": ("call_id", "action", "status"),
        "local_shell_call_output": ("output", "status"),
        "shell_call": ("call_id", "action", "caller", "environment", "status"),
        "shell_call_output": ("call_id", "output", "caller", "max_output_length", "status"),
        "apply_patch_call": ("call_id", "operation", "caller", "status"),
        "apply_patch_call_output": ("call_id", "output", "caller", "status"),
        "computer_call": ("call_id", "action", "actions", "pending_safety_checks", "status"),
        "computer_call_output": ("call_id", "output", "acknowledged_safety_checks", "status"),
        "tool_search_call": ("call_id", "arguments", "execution", "status"),
        "tool_search_output": ("call_id", "tools", "execution", "status"),
        "program": ("call_id", "code", "fingerprint"),
        "program_output": ("call_id", "result", "status"),
        "web_search_call": ("action", "status"),
        "file_search_call": ("queries", "results", "status"),
        "code_interpreter_call": ("code", "container_id", "outputs", "status"),
        "image_generation_call": (
            "result", "action", "background", "error", "output_format", "quality", "revised_prompt", "size",
            "svg_usage", "status",
        ),
        "mcp_list_tools": ("server_label", "tools", "error"),
        "mcp_approval_request": ("server_label", "name", "arguments"),
        "mcp_approval_response": ("approval_request_id", "approve", "reason"),
        "mcp_call": ("server_label", "name", "arguments", "approval_request_id", "error", "output", "status"),
        "additional_tools": ("role", "tools"),
        "configuration_update": ("reasoning", "text"),
        "item_reference": (),
        "compaction": ("encrypted_content",),
        "compaction_trigger": (),
    }.items()
}
"""Members by type of item."""

REQUIRED: Mapping[str, tuple[str, ...]] = {
    "message": ("role", "content"),
    "reasoning": ("summary",),
    "function_call": ("call_id", "name", "arguments"),
    "function_call_output": ("output",),
    "custom_tool_call": ("call_id", "name", "input"),
    "custom_tool_call_output": ("call_id", "output"),
    "local_shell_call": ("call_id", "action"),
    "local_shell_call_output": ("id", "output"),
    "shell_call": ("call_id", "action"),
    "shell_call_output": ("call_id", "output"),
    "apply_patch_call": ("call_id", "operation", "status"),
    "apply_patch_call_output": ("call_id", "status"),
    "computer_call": ("call_id",),
    "computer_call_output": ("call_id", "output"),
    "tool_search_call": ("arguments",),
    "tool_search_output": ("tools",),
    "program": ("id", "call_id", "code", "fingerprint"),
    "program_output": ("id", "call_id", "result", "status"),
    "web_search_call": ("id", "status"),
    "file_search_call": ("id", "queries", "status"),
    "code_interpreter_call": ("id", "container_id", "status"),
    "image_generation_call": ("id", "status"),
    "mcp_list_tools": ("id", "server_label", "tools"),
    "mcp_approval_request": ("id", "server_label", "name", "arguments"),
    "mcp_approval_response": ("approval_request_id", "approve"),
    "mcp_call": ("id", "server_label", "name", "arguments"),
    "additional_tools": ("role", "tools"),
    "item_reference": ("id",),
    "compaction": ("encrypted_content",),
}
# fmt: on

PREFIXES: Mapping[str, str] = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "custom_tool_call": "ctc",
    "local_shell_call": "lsh",
    "shell_call": "sh",
    "apply_patch_call": "apc",
    "computer_call": "cu",
    "web_search_call": "ws",
    "file_search_call": "fs",
    "code_interpreter_call": "ci",
    "image_generation_call": "ig",
    "mcp_list_tools": "mcpl",
    "mcp_approval_request": "mcpr",
    "mcp_call": "mcp",
    "compaction": "cmp",
}
"""Beginnings of ids by type of item. A shell's output is named by the call it answers."""

PARTS: Mapping[str, tuple[str, ...]] = {
    "user": ("input_text", "input_image", "input_file"),
    "system": ("input_text", "input_image", "input_file"),
    "developer": ("input_text", "input_image", "input_file"),
    "assistant": ("output_text", "refusal"),
}
"""Types of parts that messages are made of, by role."""
IN_OUTPUTS = ("input_text", "input_image", "input_file")

PART_MEMBERS: Mapping[str, frozenset[str]] = {
    kind: frozenset(("type", *members))
    for kind, members in {
        "input_text": ("text", "prompt_cache_breakpoint"),
        "input_image": ("image_url", "file_id", "detail", "prompt_cache_breakpoint"),
        "input_file": ("file_data", "file_id", "file_url", "filename", "detail", "prompt_cache_breakpoint"),
        "output_text": ("text", "annotations", "logprobs"),
        "refusal": ("refusal",),
    }.items()
}

ROLES = ("assistant", "system", "developer", "user")

CALLS: Mapping[str, str] = {kind: kind.replace("_", " ") for kind in sorted(READ_CALLS - {"mcp_approval_request"})}
"""Families of calls, as errors name them."""
OUTPUTS: Mapping[str, tuple[str, ...]] = {
    # Codex answers a shell's call as if it were a function's.
    "function_call_output": ("function_call", "local_shell_call"),
    "custom_tool_call_output": ("custom_tool_call",),
    "local_shell_call_output": ("local_shell_call",),
    "shell_call_output": ("shell_call",),
    "apply_patch_call_output": ("apply_patch_call",),
    "computer_call_output": ("computer_call",),
    "tool_search_output": ("tool_search_call",),
    "program_output": ("program",),
}
"""Types of calls that each output answers."""

SAID = frozenset(PREFIXES) - {"reasoning", "compaction", "message"}
"""Items of the model beside its messages."""

_OWN = re.compile(r"[a-z]+_51([0-9a-f]{12})([0-9a-f]{2})([b0])")


def item_id(kind: str, sequence: int, place: int, bound: bool) -> str:
    """`bound`: the item was said after the reasoning before it. The id says so, so that the judge needs no memory."""
    return f"{PREFIXES[kind]}_51{sequence:012x}{place:02x}{'b' if bound else '0'}"


def required_reasoning(own_id: object) -> str | None:
    """The id of the reasoning item that must stand before the one with this id."""
    match = _OWN.fullmatch(own_id) if isinstance(own_id, str) else None
    if match is None or match[3] != "b":
        return None
    return f"rs_51{match[1]}{int(match[2], 16) - 1:02x}0"


def is_own(own_id: object) -> bool:
    """Whether the simulator made this id."""
    return isinstance(own_id, str) and _OWN.fullmatch(own_id) is not None
