"""Messages as a table."""

from __future__ import annotations

from app.compaction.chunks import Ending
from app.conversation.messages import Kind
from app.formats.spec import FormatSpec

SYSTEM = "system"
"""Member beside the history, which is a text or a list of blocks; and the role of instructions in the history."""

SPEC = FormatSpec(
    name="messages",
    page="https://docs.anthropic.com/en/api/messages",
    noun="message",
    path=b"/v1/messages",
    other_paths=(b"/v1/complete",),
    counting_path=b"/v1/messages/count_tokens",
    largest_body=32_000_000,
    history="messages",
    output_members=("max_tokens",),
    declaring_members=("tools", "tool_choice", "mcp_servers", "output_config", "output_format"),
    tool_members=("tools", "mcp_servers"),
    cache_key_member="",
    schema_members=("output_config", "output_format"),
    extending_members=("mcp_servers", "container"),
    client_tools=frozenset({None, "custom"}),
    kinds={SYSTEM: Kind.INSTRUCTIONS, "user": Kind.USER, "assistant": Kind.ASSISTANT},
    volatile_members=frozenset({"cache_control", "citations"}),
    endings={
        **dict.fromkeys(("end_turn", "stop_sequence"), Ending.FINISHED),
        "max_tokens": Ending.CUT_OFF,
        "refusal": Ending.REFUSED,
    },
    cut_off="max_tokens",
)
