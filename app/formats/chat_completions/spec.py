"""Chat Completions as a table."""

from __future__ import annotations

from app.compaction.chunks import Ending
from app.conversation.messages import Kind
from app.formats.rendering import CACHE_CONTROL, PROMPT_CACHE_BREAKPOINT
from app.formats.spec import FormatSpec

SPEC = FormatSpec(
    name="chat_completions",
    page="https://platform.openai.com/docs/api-reference/chat",
    noun="chat completion",
    path=b"/v1/chat/completions",
    history="messages",
    own_members=("context", "context_management", "conversation_id"),
    output_members=("max_completion_tokens", "max_tokens"),
    declaring_members=("tools", "functions", "tool_choice", "function_call", "response_format"),
    tool_members=("tools", "functions"),
    cached_members=("tools", "functions", "parallel_tool_calls"),
    schema_members=("response_format",),
    # The first is OpenAI's; OpenRouter's, Cohere's and vLLM's behind it.
    extending_members=("web_search_options", "plugins", "documents", "transforms", "truncate_prompt_tokens"),
    client_tools=frozenset({"function", "custom"}),
    # A `function` answers a `function_call`: both are the form before tools, and have no id.
    kinds={
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
    # A reason that is absent where the answer is over is the usual one.
    endings={
        **dict.fromkeys(("", "stop", "end_turn", "eos"), Ending.FINISHED),
        "length": Ending.CUT_OFF,
        **dict.fromkeys(("refusal", "content_filter"), Ending.REFUSED),
    },
    cut_off="length",
)
