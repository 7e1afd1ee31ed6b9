"""Format table of Messages."""

from __future__ import annotations

import re

from app.compaction.chunks import Ending
from app.conversation.messages import Kind
from app.formats.raw_json import Where
from app.formats.spec import FormatSpec, SummarySpec

SYSTEM = "system"
"""Member with the instructions (a text or a list of blocks), and the role of instructions in the history."""

SPEC = FormatSpec(
    name="messages",
    page="https://docs.anthropic.com/en/api/messages",
    path=b"/v1/messages",
    other_paths=(b"/v1/complete",),
    counting_path=b"/v1/messages/count_tokens",
    largest_body=32_000_000,
    history="messages",
    user_message=lambda text: {"role": "user", "content": text},
    output_members=("max_tokens",),
    declaring_members=("tools", "tool_choice", "mcp_servers", "output_config", "output_format"),
    tool_members=("tools", "mcp_servers"),
    cache_key_member="",
    schema_members=("output_config", "output_format"),
    extending_members=("mcp_servers", "container"),
    client_tools=frozenset({None, "custom"}),
    roles={SYSTEM: Kind.INSTRUCTIONS, "user": Kind.USER, "assistant": Kind.ASSISTANT},
    volatile_members=frozenset({"cache_control", "citations"}),
    holders=("message",),
    whole=(("content",),),
    texts=(("content", "text"), ("content_block", "text"), ("delta", "text")),
    calls=tuple((at, Where("type", ("tool_use",)), "type") for at in ("content", "content_block")),
    reasons=(("delta", "stop_reason"), ("stop_reason",)),
    usual_reason="end_turn",
    endings={
        **dict.fromkeys(("end_turn", "stop_sequence"), Ending.FINISHED),
        "max_tokens": Ending.CUT_OFF,
        "refusal": Ending.REFUSED,
    },
    cut_off="max_tokens",
    summary=SummarySpec(
        quoting=lambda instructions, transcript: {
            SYSTEM: instructions,
            "messages": [{"role": "user", "content": transcript}],
        },
        # `tool_choice` stays: changing it would invalidate the cache.
        headers=((b"anthropic-version", b"2023-06-01"),),
        own_members=frozenset(
            {"model", "messages", SYSTEM, "max_tokens", "stream", "tools", "tool_choice", "thinking"}
        ),
        optional=("thinking", "stream"),
        otherwise_named={"thinking": re.compile(rb"thinking\W{0,3}blocks?")},
        caps=("max_tokens", "max_tokens"),
        reasoning=re.compile(r"(^|[/.])(o\d|gpt-5)|claude-[a-z]+-([5-9]|\d\d)(?!\d)"),
        restrained=lambda _: {"thinking": {"type": "disabled"}},
    ),
)
