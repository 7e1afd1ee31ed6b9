"""Format table of Responses, and the types of its items."""

from __future__ import annotations

import re
from typing import NamedTuple

from app.compaction.chunks import Ending
from app.conversation.messages import Kind
from app.formats.raw_json import Path, Where
from app.formats.rendering import CACHE_CONTROL, PROMPT_CACHE_BREAKPOINT
from app.formats.spec import FormatSpec, SummarySpec

INSTRUCTIONS = re.compile(rb'"instructions"[ \t\n\r]*+:[ \t\n\r]*+')
"""Pattern of the key of the `instructions` member."""
PLACED = frozenset({"additional_tools", "configuration_update"})
"""Types of items that change the tools or the configuration of the following turns."""
COMPACTION = "compaction"
"""Type of the item into which the provider compacted everything before it."""
REASONING = "reasoning"


class CallType(NamedTuple):
    """A type of call items that an output item answers."""

    name: str
    """Name of the tool; empty if each item has it."""
    member: str
    """Member with the arguments, a text or an object."""
    id: str = "call_id"
    long_text: tuple[str, ...] = ()
    """Key in an arguments object that may hold a long text: shortened arguments are written there."""


class OutputType(NamedTuple):
    member: str
    id: str = "call_id"


CALLS = {
    "function_call": CallType("", "arguments"),
    "custom_tool_call": CallType("", "input"),
    "mcp_approval_request": CallType("", "arguments", "id"),
    "computer_call": CallType("computer", "action"),
    "local_shell_call": CallType("local_shell", "action", long_text=("command",)),
    "shell_call": CallType("shell", "action", long_text=("commands",)),
    "apply_patch_call": CallType("apply_patch", "operation", long_text=("diff",)),
    "program": CallType("program", "code"),
    "tool_search_call": CallType("tool_search", "arguments"),
}
OUTPUTS = {
    "function_call_output": OutputType("output"),
    "custom_tool_call_output": OutputType("output"),
    "mcp_approval_response": OutputType("reason", "approval_request_id"),
    "computer_call_output": OutputType("output"),
    # This `id` is the `call_id` of the call.
    "local_shell_call_output": OutputType("output", "id"),
    "shell_call_output": OutputType("output"),
    "apply_patch_call_output": OutputType("output"),
    "program_output": OutputType("result"),
    "tool_search_output": OutputType("tools"),
}
SETTLED = {
    "web_search_call": ("web_search", "action"),
    "file_search_call": ("file_search", "queries"),
    "code_interpreter_call": ("code_interpreter", "code"),
    "image_generation_call": ("image_generation", "revised_prompt"),
    "mcp_call": ("", "arguments"),
}
"""Types of items with a call of a provider's own tool and its result: the tool's name, the member with arguments."""
SEALED = frozenset({REASONING, COMPACTION, "program", "tool_search_output", "mcp_list_tools", *PLACED})
"""Types of items that Steno sends unchanged or drops: they are signed, encrypted, or lists of tools."""
NAMED_BY_ID = frozenset({"mcp_approval_request", "local_shell_call_output", "item_reference"})
"""Types of items whose `id` links them to another item."""
SHORT = 200
"""Most characters of an arguments object without `long_text`. A longer one is sealed: Steno cannot shorten it."""

VOLATILE_PART_KEYS = frozenset({"annotations", "logprobs", PROMPT_CACHE_BREAKPOINT, CACHE_CONTROL})
"""Members of parts that clients move or drop between turns; digests leave them out."""
SEALING_KEYS = frozenset({"encrypted_content", "fingerprint"})
"""Keys that clients drop and restore; digests leave them out."""
TEXT_PARTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text", None)

OWN_CALLS = frozenset(name for name in (*CALLS, *SETTLED) if name.endswith("_call"))
"""Types of items with which the model calls a tool."""
_ENDED: tuple[Path, ...] = ((Where("type", ("response.completed", "response.incomplete")), "response"), ())
"""Paths of the response: in the frame that ends a stream, and unstreamed."""
_MESSAGE: Path = ("output", Where("type", ("message",)), "content")

SPEC = FormatSpec(
    name="responses",
    page="https://platform.openai.com/docs/api-reference/responses",
    path=b"/v1/responses",
    other_paths=(b"/v1/conversations",),
    counting_path=b"/v1/responses/input_tokens",
    history="input",
    user_message=lambda text: {
        "type": "message",
        "role": "user",
        "content": [{"type": "input_text", "text": text}],
    },
    output_members=("max_output_tokens",),
    declaring_members=("tools", "tool_choice", "text"),
    cached_members=("tools", "parallel_tool_calls"),
    schema_members=("text",),
    extending_members=("image",),
    client_tools=frozenset({"function", "custom"}),
    roles={
        "system": Kind.INSTRUCTIONS,
        "developer": Kind.INSTRUCTIONS,
        "user": Kind.USER,
        "assistant": Kind.ASSISTANT,
    },
    volatile_members=frozenset({"id", "status", "created_by", "internal_chat_message_metadata_passthrough"}),
    beside=INSTRUCTIONS,
    holders=("response",),
    whole=(("output",),),
    texts=((Where("type", ("response.output_text.delta",)), "delta"),),
    # Some servers send the text in the last frame only.
    late_texts=tuple((*at, *_MESSAGE, "text") for at in _ENDED),
    calls=(
        (Where("type", ("response.output_item.added",)), "item", Where("type", OWN_CALLS), "type"),
        *((*at, "output", Where("type", OWN_CALLS), "type") for at in _ENDED),
    ),
    refusals=(
        (Where("type", ("response.refusal.delta", "response.refusal.done")), "type"),
        *((*at, *_MESSAGE, Where("type", ("refusal",)), "type") for at in _ENDED),
    ),
    reasons=tuple((*at, *reason) for at in _ENDED for reason in (("incomplete_details", "reason"), ("status",))),
    usual_reason="completed",
    # The status, or the reason of an incomplete response.
    endings={
        "completed": Ending.FINISHED,
        "max_output_tokens": Ending.CUT_OFF,
        **dict.fromkeys(("content_filter", "refusal"), Ending.REFUSED),
    },
    cut_off="max_output_tokens",
    summary=SummarySpec(
        quoting=lambda instructions, transcript: {"instructions": instructions, "input": transcript},
        forbidding=(("tools", "tool_choice", "none"),),
        own_members=frozenset(
            {"model", "input", "instructions", "max_output_tokens", "stream", "store"}
            | {"tools", "tool_choice", "parallel_tool_calls", "background"}
        ),
        optional=("reasoning", "store", "stream"),
        caps=("max_output_tokens", "max_output_tokens"),
        least_output=16,
        restrained=lambda _: {"reasoning": {"effort": "low"}},
        said={"stream": True, "store": False},
    ),
)
