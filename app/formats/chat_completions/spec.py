"""Format table of Chat Completions."""

from __future__ import annotations

import re

from app.compaction.chunks import Ending
from app.conversation.messages import Kind
from app.formats.raw_json import Path, Where
from app.formats.rendering import CACHE_CONTROL, PROMPT_CACHE_BREAKPOINT
from app.formats.spec import FormatSpec, SummarySpec

_CHOICE: Path = ("choices", Where("index", (0, None)))
_MESSAGES: tuple[Path, ...] = ((*_CHOICE, "delta"), (*_CHOICE, "message"))
"""Paths of the first choice's message, in a chunk and in a completion."""

SPEC = FormatSpec(
    name="chat_completions",
    page="https://platform.openai.com/docs/api-reference/chat",
    path=b"/v1/chat/completions",
    history="messages",
    user_message=lambda text: {"role": "user", "content": text},
    own_members=("context", "context_management", "conversation_id"),
    output_members=("max_completion_tokens", "max_tokens"),
    declaring_members=("tools", "functions", "tool_choice", "function_call", "response_format"),
    tool_members=("tools", "functions"),
    cached_members=("tools", "functions", "parallel_tool_calls"),
    schema_members=("response_format",),
    # Members of OpenAI, OpenRouter, Cohere and vLLM.
    extending_members=("web_search_options", "plugins", "documents", "transforms", "truncate_prompt_tokens"),
    client_tools=frozenset({"function", "custom"}),
    # `function` answers a legacy `function_call`, without an id.
    roles={
        "system": Kind.INSTRUCTIONS,
        "developer": Kind.INSTRUCTIONS,
        "user": Kind.USER,
        "assistant": Kind.ASSISTANT,
        "tool": Kind.RESULT,
        "function": Kind.RESULT,
    },
    volatile_members=frozenset(
        {
            *(CACHE_CONTROL, PROMPT_CACHE_BREAKPOINT, "annotations", "prefix", "partial"),
            *("reasoning_content", "reasoning", "reasoning_details", "thinking_blocks"),
        }
    ),
    usage_option=re.compile(rb"stream_options|include_usage"),
    whole=_MESSAGES,
    # Some providers send reasoning as parts of another type.
    texts=tuple((*at, "content", *part) for at in _MESSAGES for part in ((), (Where("type", ("text", None)), "text"))),
    calls=tuple((*at, name) for at in _MESSAGES for name in ("tool_calls", "function_call")),
    refusals=tuple((*at, "refusal") for at in _MESSAGES),
    reasons=((*_CHOICE, "finish_reason"),),
    done_ends=True,
    # A complete answer without a finish reason is finished.
    endings={
        **dict.fromkeys(("", "stop", "end_turn", "eos"), Ending.FINISHED),
        "length": Ending.CUT_OFF,
        **dict.fromkeys(("refusal", "content_filter"), Ending.REFUSED),
    },
    cut_off="length",
    summary=SummarySpec(
        quoting=lambda instructions, transcript: {
            "messages": [{"role": "system", "content": instructions}, {"role": "user", "content": transcript}]
        },
        forbidding=(("tools", "tool_choice", "none"), ("functions", "function_call", "none")),
        own_members=frozenset(
            {"model", "messages", "max_tokens", "max_completion_tokens", "n", "stream", "stream_options"}
            | {"tools", "tool_choice", "functions", "function_call", "parallel_tool_calls"}
        ),
        optional=("reasoning_effort", "stream_options", "stream"),
        caps=("max_tokens", "max_completion_tokens"),
        restrained=lambda _: {"reasoning_effort": "low"},
        said={"stream": True, "stream_options": {"include_usage": True}},
    ),
)
