"""Blocks: which there are, who may say them, and what they may hold (the official SDK's types, anthropic 2.12)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lab.simulator.refusals import read_members

CACHED = "cache_control"
THINKING = frozenset({"thinking", "redacted_thinking"})
Json = Mapping[str, Any]

_WRITTEN: Mapping[str, str] = {
    "text": "text! citations cache_control",
    "image": "source! transformations cache_control",
    "document": "source! title context citations cache_control",
    "search_result": "source! title! content! citations cache_control",
    "container_upload": "file_id! cache_control",
    "tool_use": "id! name! input! caller toolset_name cache_control",
    "tool_result": "tool_use_id! content is_error toolset_name cache_control",
    "thinking": "thinking! signature!",
    "redacted_thinking": "data!",
    "server_tool_use": "id! name! input! caller cache_control",
    "web_search_tool_result": "content tool_use_id caller cache_control",
    "web_fetch_tool_result": "content tool_use_id caller cache_control",
    "advisor_tool_result": "content tool_use_id cache_control",
    "code_execution_tool_result": "content tool_use_id cache_control",
    "bash_code_execution_tool_result": "content tool_use_id cache_control",
    "text_editor_code_execution_tool_result": "content tool_use_id cache_control",
    "tool_search_tool_result": "content tool_use_id cache_control",
    "mcp_tool_use": "id! name! server_name! input! cache_control",
    "mcp_tool_result": "tool_use_id! content is_error cache_control",
    "mcp_tool_listing": "mcp_server_name! tools!",
    "compaction": "content encrypted_content signature tool_changes cache_control",
    "fallback": "from! to! trigger",
    "tool_addition": "tool! cache_control",
    "tool_removal": "tool! cache_control",
}
"""Members by type of block; `!` stands behind those that are required."""
MEMBERS, REQUIRED = read_members(_WRITTEN, "type")

SERVER_RESULTS = frozenset(
    kind for kind in MEMBERS if kind.endswith("_tool_result") and kind not in ("tool_result", "mcp_tool_result")
)
_USER = frozenset({"text", "image", "document", "search_result", "container_upload", "tool_result"})
_ASSISTANT = (
    frozenset({"text", "tool_use", "server_tool_use", "mcp_tool_use", "mcp_tool_result", "mcp_tool_listing"})
    | frozenset({"container_upload", "compaction", "fallback"})
    | THINKING
    | SERVER_RESULTS
)
SAID_BY: Mapping[str, frozenset[str]] = {
    "user": _USER,
    "assistant": _ASSISTANT,
    "system": frozenset({"text", "tool_addition", "tool_removal"}),
}
"""Types of blocks by the role that may say them."""
IN_RESULTS = frozenset({"text", "image", "document", "search_result", "tool_reference"})

BETAS: Mapping[str, tuple[str, ...]] = {
    "context_management": ("context-management-", "compact-2026-01-12"),
    "compaction": ("compact-2026-09-04",),
    "thread": ("message-threads-",),
    "mcp_servers": ("mcp-client-",),
    "fallbacks": ("server-side-fallback-",),
    "fallback_credit_token": ("fallback-credit-",),
    "billing_policy": ("user-profiles-billing-",),
}
"""Members of a request that need a value in the `anthropic-beta` header which begins like one of these."""

# fmt: off
ARGUMENTS = frozenset({
    "model", "messages", "max_tokens", "cache_control", "container", "diagnostics", "inference_geo", "metadata",
    "output_config", "output_format", "service_tier", "speed", "stop_sequences", "stream", "system", "temperature",
    "thinking", "tool_choice", "tools", "top_k", "top_p", *BETAS,
})
# fmt: on
"""Members of a request."""


def blocks_of(content: Any) -> list[dict[str, Any]]:
    """Blocks of a content; a string is one block of text."""
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content or ())


def role_of(message: Json) -> str:
    """Speaker of a message: what only holds results is no user's."""
    kinds = {block["type"] for block in blocks_of(message["content"])} - THINKING
    return "tool" if kinds == {"tool_result"} else str(message["role"])


def texts_in(blocks: Sequence[Json]) -> Iterator[str]:
    """Texts that the model reads in blocks, those of results and of the provider's own summary among them."""
    for block in blocks:
        match block:
            case {"type": "text", "text": str(text)} | {"type": "compaction", "content": str(text)}:
                yield text
            case {"type": "document", "source": {"type": "text", "data": str(text)}}:
                yield text
            case {"type": "tool_result" | "search_result"}:
                yield from texts_in(blocks_of(block.get("content")))
