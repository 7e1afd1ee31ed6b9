"""Gemini's format table.

Clients write names in camelCase or snake_case, even mixed in one object. Rows use camelCase; `camel` converts both.
"""

from __future__ import annotations

import re
from base64 import b64encode

from app.compaction.chunks import Ending
from app.conversation.messages import Kind
from app.formats.raw_json import Where
from app.formats.spec import FormatSpec, SummarySpec

ADDRESS = re.compile(rb"/v1(?:alpha|beta\d*)?/(?:projects/.+/)?models/(?P<model>[^/:]+):(?P<method>[A-Za-z]+)")
"""Paths with a model and a method, which decides whether the answer is streamed. At Vertex a project and a publisher
precede the model."""
_ANSWER = ("candidates", "content", "parts")
_THINKING = re.compile(r"gemini-(?:2\.5|[3-9])")


def _restrained(model: str) -> dict[str, object]:
    """Return the options that limit thinking: a budget in tokens up to Gemini 2.5, a level from Gemini 3 on."""
    return {"thinkingConfig": {"thinkingBudget": 512} if "gemini-2" in model else {"thinkingLevel": "low"}}


SPEC = FormatSpec(
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
    output_holders=("generationConfig", "generation_config"),
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
    texts=((*_ANSWER, Where("thought", (None, False)), "text"),),
    calls=((*_ANSWER, "functionCall"),),
    reasons=(("candidates", "finishReason"), ("promptFeedback", "blockReason")),
    endings={
        "STOP": Ending.FINISHED,
        "MAX_TOKENS": Ending.CUT_OFF,
        **dict.fromkeys(
            ("SAFETY", "RECITATION", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "MODEL_ARMOR"), Ending.REFUSED
        ),
    },
    cut_off="MAX_TOKENS",
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
        also_named={"thinkingConfig": re.compile(rb"[Tt]hinking (?:level|budget|is)|thinking_|\b[Bb]udget\b")},
        caps=("maxOutputTokens", "maxOutputTokens"),
        reasoning=_THINKING,
        restrained=_restrained,
        said={},
        holder="generationConfig",
        streaming=b"streamGenerateContent?alt=sse",
    ),
)

STATUSES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ABORTED",
    429: "RESOURCE_EXHAUSTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
"""Error names by status; see `_envelope` for other statuses."""
COMPACTION_PROMPT = b"You are a specialized system component responsible for distilling chat history"
"""Beginning of the instructions with which Gemini CLI compacts its history itself."""
UNSIGNED = b64encode(b"skip_thought_signature_validator").decode()
"""Google's documented dummy signature, for a call whose arguments Steno changed."""
VERBATIM = frozenset({"args", "response", "partMetadata", "parameters", "parametersJsonSchema"})
"""Members in which the client chose the keys."""


def camel(value: object) -> object:
    """Return JSON with its keys in camelCase, except those that the client chose (`VERBATIM`)."""
    if isinstance(value, list):
        return [camel(each) for each in value]
    if not isinstance(value, dict):
        return value
    named = ((re.sub(r"_([a-z])", lambda found: found[1].upper(), key), held) for key, held in value.items())
    return {key: held if key in VERBATIM else camel(held) for key, held in named}
