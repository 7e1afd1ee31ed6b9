"""Items: which there are, what they may hold (the official SDK's types, openai 3.54), their ids, and sealed content."""

from __future__ import annotations

import base64
import hmac
import re
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Any

from lab.simulator.refusals import read_members

PASSTHROUGH = "internal_chat_message_metadata_passthrough"
"""Member that Codex puts on every item."""

_WRITTEN: Mapping[str, str] = {
    "message": "role! content! status phase",
    "reasoning": "summary! content encrypted_content status",
    "function_call": "call_id! name! arguments! namespace caller async status",
    "function_call_output": "output! call_id name namespace caller status",
    "custom_tool_call": "call_id! name! input! namespace caller async status",
    "custom_tool_call_output": "call_id! output! caller status",
    "local_shell_call": "call_id! action! status",
    "local_shell_call_output": "id! output! status",
    "shell_call": "call_id! action! caller environment status",
    "shell_call_output": "call_id! output! caller max_output_length status",
    "apply_patch_call": "call_id! operation! status! caller",
    "apply_patch_call_output": "call_id! status! output caller",
    "computer_call": "call_id! action actions pending_safety_checks status",
    "computer_call_output": "call_id! output! acknowledged_safety_checks status",
    "tool_search_call": "arguments! call_id execution status",
    "tool_search_output": "tools! call_id execution status",
    "program": "id! call_id! code! fingerprint!",
    "program_output": "id! call_id! result! status!",
    "web_search_call": "id! status! action",
    "file_search_call": "id! queries! status! results",
    "code_interpreter_call": "id! container_id! status! code outputs",
    "image_generation_call": "id! status! result action background error output_format quality revised_prompt size"
    " svg_usage",
    "mcp_list_tools": "id! server_label! tools! error",
    "mcp_approval_request": "id! server_label! name! arguments!",
    "mcp_approval_response": "approval_request_id! approve! reason",
    "mcp_call": "id! server_label! name! arguments! approval_request_id error output status",
    "additional_tools": "role! tools!",
    "configuration_update": "reasoning text",
    "item_reference": "id!",
    "compaction": "encrypted_content!",
    "compaction_trigger": "",
}
"""Members by type of item; `!` stands behind those that are required."""
MEMBERS, REQUIRED = read_members(_WRITTEN, "type", "id", PASSTHROUGH)

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

_CALLS = (
    *("apply_patch_call", "computer_call", "custom_tool_call", "function_call", "local_shell_call", "program"),
    *("shell_call", "tool_search_call"),
)
CALLS: Mapping[str, str] = {kind: kind.replace("_", " ") for kind in _CALLS}
"""Families of calls that the client answers, as errors name them."""
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
    return isinstance(own_id, str) and _OWN.fullmatch(own_id) is not None


# What an item says


def kind_of(item: Mapping[str, Any]) -> str:
    """Type of an item; a message need not say that it is one, nor does a reference."""
    kind = item.get("type")
    if kind is None:
        return "item_reference" if set(item) <= {"id", "type"} and "id" in item else "message"
    return str(kind)


def said_in(item: Mapping[str, Any]) -> dict[str, str] | None:
    """Speaker and text of a message, a call or a result; None for another item."""
    kind = kind_of(item)
    if kind in CALLS or kind == "mcp_approval_request":
        return {"role": "assistant", "content": ""}
    is_result = kind.endswith("_output") or kind == "mcp_approval_response"
    if kind != "message" and not is_result:
        return None
    role = "tool" if is_result else str(item.get("role"))
    return {"role": role, "content": "\n".join(filter(None, _texts_in(item)))}


def _texts_in(item: Mapping[str, Any]) -> Iterator[str]:
    content = next((item[name] for name in ("content", "output", "result", "reason") if name in item), None)
    if isinstance(content, str):
        yield content
        return
    for part in content if isinstance(content, list) else ():
        yield from (part[name] for name in ("text", "refusal", "stdout", "stderr") if isinstance(part.get(name), str))


# Encrypted content: a text that only the provider reads, and that no client can alter

_KEY = b"the simulator seals"
_MARK = "gAAAAAB"
_MAC = 16


def seal(kind: str, text: str) -> str:
    """`kind`: the type of item that holds it."""
    data = f"{kind}:{text}".encode()
    return _MARK + base64.urlsafe_b64encode(_mac(data) + data).decode()


def opened(kind: str, sealed: str) -> str | None:
    """None: the provider did not seal it for this type of item."""
    try:
        raw = base64.b64decode(sealed.removeprefix(_MARK).encode("ascii"), b"-_", validate=True)
    except ValueError:
        return None
    mac, data = raw[:_MAC], raw[_MAC:]
    if not sealed.startswith(_MARK) or not hmac.compare_digest(mac, _mac(data)):
        return None
    head, _, text = data.decode().partition(":")
    return text if head == kind else None


def _mac(data: bytes) -> bytes:
    return blake2b(data, key=_KEY, digest_size=_MAC).digest()
