"""Format tables: the properties of each conversation API that need no code.

Each format has a table, a `FormatSpec`, with the names of members, types and paths that Steno reads and writes. Where
to enter a vendor's change:
- a new finish reason: `endings`; for a full window of any format: `_WINDOW_FULL`;
- another end of a stream: `reasons`, because an answer ends with its finish reason (`done_ends`: or with `[DONE]`);
- a renamed or new usage member: `MEMBERS` in `usage.py`, because providers mix the names of several formats;
- a renamed output cap: `output_members`, and `own_members` and `caps` of the `summary`;
- a new tool type: `client_tools`; in Responses also `CALLS` and `OUTPUTS`, or `SETTLED`;
- a new part of a message: not here, but the format's `read_message` (in `messages/messages.py`, else `format.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from re import Pattern
from types import MappingProxyType
from typing import Any, NamedTuple

from msgspec import Struct

from app.compaction.chunks import Ending
from app.conversation.messages import Kind
from app.formats.raw_json import Path, Where

CACHE_CONTROL, PROMPT_CACHE_BREAKPOINT = "cache_control", "prompt_cache_breakpoint"
"""Members of parts that mark the end of a cached prompt, at Anthropic and at OpenAI."""


class SummarySpec(Struct, frozen=True, kw_only=True):
    """Form of Steno's own summary calls. A call contains a transcript, or continues the client's prompt."""

    quoting: Callable[[str, str], Mapping[str, Any]]
    """Function that returns the members of a call from the instructions and a transcript."""
    forbidding: tuple[tuple[str, str, Any], ...] = ()
    """How to forbid tool calls: a member that declares tools, then the member and value that forbid calls. If the
    client's prompt has the first, Steno keeps it, because the provider has cached the prompt, and sets the second."""
    headers: tuple[tuple[bytes, bytes], ...] = ()
    """Headers in lower case that the format requires. Steno adds them if the client did not send them."""
    own_members: frozenset[str]
    """Members that only Steno may set. The operator's parameters may not contain them."""
    optional: tuple[str, ...]
    """Members that Steno stops sending once a provider's error names them. The operator's parameters are such, too."""
    other_errors: Mapping[str, Pattern[bytes]] = {}
    """Patterns of errors that name an optional member but have another cause, by the name of the member."""
    unnamed_errors: Mapping[str, Pattern[bytes]] = {}
    """Patterns of errors that do not name the optional member that caused them, by the name of the member."""
    caps: tuple[str, str]
    """Names of the output cap: for most models, and for models that reason by default."""
    least_output: int = 0
    """Fewest tokens that the provider accepts as an output cap."""
    reasoning: Pattern[str] = re.compile(r"(^|/)(o\d|gpt-5)")
    """Pattern of the names of models that reason by default."""
    restrained: Callable[[str], Mapping[str, Any]]
    """Function that returns the members that limit a model's reasoning, if the model reasons by default."""
    options_member: str = ""
    """Object that contains the options of a call, such as its output cap; empty if they are members of the body."""
    streaming: bytes = b""
    """End of the path, with the query, that requests a stream; empty if a member of the body requests it."""
    always_sent: Mapping[str, Any] = MappingProxyType({"stream": True})
    """Options of every call."""


_WINDOW_FULL = re.compile(r"context\w*(exceed|exhaust|overflow|limit|reached|full)|model_length$", re.IGNORECASE)
"""Pattern of finish reasons for a full window. OpenAI's `length` does not match: it may be the client's own cap."""
LONGEST_REASON = 100


def says_window_full(finish: object) -> bool:
    """Return whether a finish reason means that the model's window was full."""
    return isinstance(finish, str) and len(finish) <= LONGEST_REASON and _WINDOW_FULL.search(finish) is not None


class FormatSpec(Struct, frozen=True, kw_only=True):
    """Table of a format: the names that Steno reads and writes."""

    name: str
    page: str

    path: bytes
    """Path of Steno's own calls, with `{model}` for the model. Without an `address`, clients use this path, too."""
    address: Pattern[bytes] | None = None
    """Pattern of the paths of requests that Steno compacts. They contain a model and a method. None: only `path`."""
    methods: frozenset[bytes] = frozenset()
    early_is_content: bool = False
    """Whether clients store frames before the answer in their histories. A provider may refuse a tool call after such a
    frame, so for a request with tools Steno sends such frames only if the client asks for them."""
    other_paths: tuple[bytes, ...] = ()
    """Prefixes of other paths of the API. Steno forwards requests there unchanged to the same upstreams."""
    counting_path: bytes | None = None
    """Path at which the provider counts the tokens of a prompt."""
    largest_body: int = 50_000_000
    """Most bytes of a request that the vendor accepts."""

    history: str
    """Member with the messages."""
    user_message: Callable[[str], Mapping[str, Any]]
    """Function that returns a user message with a text: a note, or the instructions at the end of a summary call."""
    output_members: tuple[str, ...]
    """Members with the output cap. The first one in a request counts."""
    output_parents: tuple[str, ...] = ()
    """Objects that contain the output caps; empty if the caps are members of the body."""
    declaring_members: tuple[str, ...]
    """Members that cost prompt tokens, in addition to the messages."""
    tool_members: tuple[str, ...] = ("tools",)
    cached_members: tuple[str, ...] = ("tools",)
    """Members that the provider puts before the messages. A change of them invalidates the provider's cache."""
    cache_key_member: str = "prompt_cache_key"
    """Member with the key of the provider's prompt cache; empty if the format has none."""
    schema_members: tuple[str, ...]
    """Members that may hold a schema for the answer. Only some models count it as prompt tokens."""
    extending_members: tuple[str, ...]
    """Members that make the provider add text to the prompt or remove text. Steno cannot count such a prompt."""
    client_tools: frozenset[str | None]
    """Types of tools that the client runs. Steno does not know the prompt tokens of other tools."""

    roles: Mapping[str, Kind]
    volatile_members: frozenset[str]
    """Members of messages and parts that clients move or drop between turns. Digests of messages ignore them."""

    beside: Pattern[bytes] | None = None
    """Pattern of the key of a member with the instructions, if Steno reads it as the first message of the history."""
    length_tells_window: bool = True
    """Whether an answer that is cut off may have filled the window; False if answers have a window of their own."""

    answer_members: tuple[str, ...] = ()
    """Members of a frame that may contain the answer object, with `usage` and `model`."""
    usage: str = "usage"
    """Member with the reported tokens."""
    usage_option: Pattern[bytes] | None = None
    """Pattern of errors that refuse the option to request a stream's usage; None if streams always report usage."""
    model: str = "model"
    whole: tuple[Path, ...]
    """Paths of objects and lists. An unstreamed answer has at least one of them."""
    texts: tuple[Path, ...]
    """Paths of the model's texts, in a frame or an unstreamed answer."""
    late_texts: tuple[Path, ...] = ()
    """Paths of texts in the last frame. They count only if no earlier frame had text."""
    calls: tuple[Path, ...]
    """Paths of the model's calls, or of their types."""
    refusals: tuple[Path, ...] = ()
    """Paths of the model's own refusals to answer."""
    reasons: tuple[Path, ...]
    """Paths of finish reasons. The first one present counts."""
    assumed_reason: str = ""
    """Finish reason that Steno assumes if an answer has ended without one."""
    done_ends: bool = False
    """Whether `[DONE]` ends an answer without a finish reason."""
    endings: Mapping[str, Ending]
    """Meanings of finish reasons. `_WINDOW_FULL` matches reasons for a full window; all others are `Ending.OTHER`."""

    summary: SummarySpec

    def ending_of(self, reason: object) -> Ending:
        """Return the meaning of a finish reason. A full window means `Ending.CUT_OFF`."""
        if says_window_full(reason):
            return Ending.CUT_OFF
        return self.endings.get(reason, Ending.OTHER) if isinstance(reason, str) else Ending.OTHER


_CHOICE: Path = ("choices", Where("index", (0, None)))
_MESSAGES: tuple[Path, ...] = ((*_CHOICE, "delta"), (*_CHOICE, "message"))
"""Paths of the first choice's message, in a chunk and in a completion."""

CHAT_COMPLETIONS = FormatSpec(
    name="chat_completions",
    page="https://platform.openai.com/docs/api-reference/chat",
    path=b"/v1/chat/completions",
    history="messages",
    user_message=lambda text: {"role": "user", "content": text},
    output_members=("max_completion_tokens", "max_tokens"),
    declaring_members=("tools", "functions", "tool_choice", "function_call", "response_format"),
    tool_members=("tools", "functions"),
    cached_members=("tools", "functions", "parallel_tool_calls"),
    schema_members=("response_format",),
    # Members of OpenAI, OpenRouter, Cohere and vLLM.
    extending_members=("web_search_options", "plugins", "documents", "transforms", "truncate_prompt_tokens"),
    client_tools=frozenset({"function", "custom"}),
    # A message of the role `function` answers a legacy `function_call`, without an id.
    roles={
        **dict.fromkeys(("system", "developer"), Kind.INSTRUCTIONS),
        "user": Kind.USER,
        "assistant": Kind.ASSISTANT,
        **dict.fromkeys(("tool", "function"), Kind.RESULT),
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
    # A complete answer counts as finished, even without a finish reason.
    endings={
        **dict.fromkeys(("", "stop", "end_turn", "eos"), Ending.FINISHED),
        "length": Ending.CUT_OFF,
        **dict.fromkeys(("refusal", "content_filter"), Ending.REFUSED),
    },
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
        always_sent={"stream": True, "stream_options": {"include_usage": True}},
    ),
)


SYSTEM = "system"
"""Member with the instructions (a text or a list of blocks), and the role of instructions in the history."""

MESSAGES = FormatSpec(
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
    answer_members=("message",),
    whole=(("content",),),
    texts=(("content", "text"), ("content_block", "text"), ("delta", "text")),
    calls=tuple((at, Where("type", ("tool_use",)), "type") for at in ("content", "content_block")),
    reasons=(("delta", "stop_reason"), ("stop_reason",)),
    assumed_reason="end_turn",
    endings={
        **dict.fromkeys(("end_turn", "stop_sequence"), Ending.FINISHED),
        "max_tokens": Ending.CUT_OFF,
        "refusal": Ending.REFUSED,
    },
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
        other_errors={"thinking": re.compile(rb"thinking\W{0,3}blocks?")},
        caps=("max_tokens", "max_tokens"),
        reasoning=re.compile(r"(^|[/.])(o\d|gpt-5)|claude-[a-z]+-([5-9]|\d\d)(?!\d)"),
        restrained=lambda _: {"thinking": {"type": "disabled"}},
    ),
)


INSTRUCTIONS = re.compile(rb'"instructions"[ \t\n\r]*+:[ \t\n\r]*+')
"""Pattern of the key of the `instructions` member."""
PLACED = frozenset({"additional_tools", "configuration_update"})
"""Types of items that change the tools or the configuration of the following turns."""
COMPACTION = "compaction"
"""Type of the item with which the provider replaces all items before it."""
REASONING = "reasoning"


class CallType(NamedTuple):
    """Type of call whose result is an item of its own."""

    name: str
    """Name of the tool; empty if each item has it."""
    member: str
    """Member with the arguments, a text or an object."""
    id: str = "call_id"
    long_text: tuple[str, ...] = ()
    """Path of the long text in an arguments object. Steno writes shortened arguments there."""


class OutputType(NamedTuple):
    """Type of item with the result of a call: names of the member with the result, and of that with the call's id."""

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
    # In this type, `id` is the `call_id` of the call.
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
"""Name of the tool and arguments member, by type of item. Such an item has a provider's own call and result."""
SEALED = frozenset({REASONING, COMPACTION, "program", "tool_search_output", "mcp_list_tools", *PLACED})
"""Types of items that Steno sends unchanged or drops, because they are signed, encrypted, or lists of tools."""
NAMED_BY_ID = frozenset({"mcp_approval_request", "local_shell_call_output", "item_reference"})
"""Types of items whose `id` links them to another item. Their digests include `id`, although `id` is volatile."""
SHORT = 200
"""Most characters of an arguments object without `long_text`. Steno cannot shorten a longer object, so it sends the
item unchanged or drops it."""

VOLATILE_PART_KEYS = frozenset({"annotations", "logprobs", PROMPT_CACHE_BREAKPOINT, CACHE_CONTROL})
"""Members of parts that clients move or drop between turns. Digests do not depend on them."""
SEALING_KEYS = frozenset({"encrypted_content", "fingerprint"})
"""Keys with encrypted or signed content, which clients drop and restore. Digests do not depend on them."""
TEXT_PARTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text", None)

OWN_CALLS = frozenset(name for name in (*CALLS, *SETTLED) if name.endswith("_call"))
"""Types of items with which the model calls a tool."""
_ENDED: tuple[Path, ...] = ((Where("type", ("response.completed", "response.incomplete")), "response"), ())
"""Paths of the response object: in the frame that ends a stream, and in an unstreamed answer."""
_MESSAGE: Path = ("output", Where("type", ("message",)), "content")

RESPONSES = FormatSpec(
    name="responses",
    page="https://platform.openai.com/docs/api-reference/responses",
    path=b"/v1/responses",
    other_paths=(b"/v1/conversations",),
    counting_path=b"/v1/responses/input_tokens",
    history="input",
    user_message=lambda text: {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]},
    output_members=("max_output_tokens",),
    declaring_members=("tools", "tool_choice", "text"),
    cached_members=("tools", "parallel_tool_calls"),
    schema_members=("text",),
    extending_members=("image",),
    client_tools=frozenset({"function", "custom"}),
    roles={**dict.fromkeys(("system", "developer"), Kind.INSTRUCTIONS), "user": Kind.USER, "assistant": Kind.ASSISTANT},
    volatile_members=frozenset({"id", "status", "created_by", "internal_chat_message_metadata_passthrough"}),
    beside=INSTRUCTIONS,
    answer_members=("response",),
    whole=(("output",),),
    texts=((Where("type", ("response.output_text.delta",)), "delta"),),
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
    assumed_reason="completed",
    # Keys: the response's status, or the reason of an incomplete response.
    endings={
        "completed": Ending.FINISHED,
        "max_output_tokens": Ending.CUT_OFF,
        **dict.fromkeys(("content_filter", "refusal"), Ending.REFUSED),
    },
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
        always_sent={"stream": True, "store": False},
    ),
)


ADDRESS = re.compile(rb"/v1(?:alpha|beta\d*)?/(?:projects/.+/)?models/(?P<model>[^/:]+):(?P<method>[A-Za-z]+)")
"""Pattern of paths with a model and a method. The method decides whether the answer is streamed. At Vertex, a project
and a publisher precede the model."""
_PARTS = ("candidates", "content", "parts")
_THINKING = re.compile(r"gemini-(?:2\.5|[3-9])")


def _restrained(model: str) -> dict[str, object]:
    """Return the options that limit thinking: a budget in tokens up to Gemini 2.5, a level from Gemini 3 on."""
    return {"thinkingConfig": {"thinkingBudget": 512} if "gemini-2" in model else {"thinkingLevel": "low"}}


GEMINI = FormatSpec(
    name="gemini",
    page="https://ai.google.dev/api/generate-content",
    address=ADDRESS,
    methods=frozenset({b"generateContent", b"streamGenerateContent"}),
    early_is_content=True,
    path=b"/v1beta/models/{model}:generateContent",
    other_paths=(b"/v1alpha", b"/v1beta", b"/v1beta1", b"/v1/projects", b"/upload/v1", b"/upload/v1beta"),
    largest_body=20_000_000,
    history="contents",
    user_message=lambda text: {"role": "user", "parts": [{"text": text}]},
    output_members=("maxOutputTokens", "max_output_tokens"),
    output_parents=("generationConfig", "generation_config"),
    declaring_members=("tools", "toolConfig", "tool_config"),
    cached_members=("tools",),
    cache_key_member="",
    schema_members=(),
    extending_members=("cachedContent", "cached_content", "continuationToken", "continuation_token"),
    client_tools=frozenset({None}),
    roles={"system": Kind.INSTRUCTIONS, "user": Kind.USER, "model": Kind.ASSISTANT, "function": Kind.RESULT},
    # Providers need signatures in the current turn only, and clients may replace them by dummies.
    volatile_members=frozenset({"thoughtSignature"}),
    beside=re.compile(rb'"(?:systemInstruction|system_instruction)"[ \t\n\r]*+:[ \t\n\r]*+'),
    usage="usageMetadata",
    model="modelVersion",
    whole=(("candidates",), ("promptFeedback",)),
    texts=((*_PARTS, Where("thought", (None, False)), "text"),),
    calls=((*_PARTS, "functionCall"),),
    reasons=(("candidates", "finishReason"), ("promptFeedback", "blockReason")),
    endings={
        "STOP": Ending.FINISHED,
        "MAX_TOKENS": Ending.CUT_OFF,
        **dict.fromkeys(
            ("SAFETY", "RECITATION", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "MODEL_ARMOR"), Ending.REFUSED
        ),
    },
    length_tells_window=False,
    summary=SummarySpec(
        quoting=lambda instructions, transcript: {
            "systemInstruction": {"parts": [{"text": instructions}]},
            "contents": [{"role": "user", "parts": [{"text": transcript}]}],
        },
        forbidding=(("tools", "toolConfig", {"functionCallingConfig": {"mode": "NONE"}}),),
        own_members=frozenset(
            {"contents", "systemInstruction", "generationConfig", "maxOutputTokens", "thinkingConfig"}
            | {"tools", "toolConfig", "model", "cachedContent"}
        ),
        optional=("thinkingConfig",),
        unnamed_errors={"thinkingConfig": re.compile(rb"[Tt]hinking (?:level|budget|is)|thinking_|\b[Bb]udget\b")},
        caps=("maxOutputTokens", "maxOutputTokens"),
        reasoning=_THINKING,
        restrained=_restrained,
        always_sent={},
        options_member="generationConfig",
        streaming=b"streamGenerateContent?alt=sse",
    ),
)
