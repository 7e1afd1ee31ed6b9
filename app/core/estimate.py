"""The token estimate: the one formula that everything Steno decides hangs on.

Sums of parts, so that each message is counted once and cached: 3 tokens a message, its role, its texts, its calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from app.core.messages import Media, ToolCall

Count = Callable[[str], int]
"""Tokens of a text in the model's encoding."""

MESSAGE_TOKENS = 3
CALL_TOKENS = 8
REPLY_TOKENS = 3
"""What primes the reply, once a request."""
TOOLS_TOKENS = 12
IMAGE_TOKENS = {"low": 85}
IMAGE_HIGH_TOKENS = 765
"""An image of 1024 x 1024: the size of a remote one is not known, and it is never fetched."""
FILE_TOKENS = 1_000
AUDIO_CHARACTERS_PER_TOKEN = 4_270
"""Base64 of 16-bit mono at 16 kHz: 42,700 characters a second, 10 tokens a second."""


def message_tokens(
    role: str,
    texts: Iterable[str],
    name: str,
    calls: Iterable[ToolCall],
    media: Iterable[Media],
    count: Count,
) -> int:
    """What one message costs in a prompt."""
    tokens = MESSAGE_TOKENS + count(role) + sum(map(count, texts))
    if name:
        tokens += 1 + count(name)
    tokens += sum(CALL_TOKENS + count(call.name) + count(call.arguments) for call in calls)
    return tokens + sum(map(media_tokens, media))


def media_tokens(media: Media) -> int:
    """By size and kind; base64 is never counted as text."""
    match media.kind:
        case "image":
            return IMAGE_TOKENS.get(media.detail, IMAGE_HIGH_TOKENS)
        case "audio":
            return 4 + media.size // AUDIO_CHARACTERS_PER_TOKEN
        case _:
            return FILE_TOKENS


def fixed_tokens(declarations: Iterable[str], count: Count) -> int:
    """What a prompt costs beside its messages: tools and response format as JSON text, and the reply's priming."""
    return REPLY_TOKENS + sum(TOOLS_TOKENS + count(declaration) for declaration in declarations)
