"""Clients: how their conversations are recognised, and what they are sent."""

from __future__ import annotations

import re

from pydantic import Field, field_validator

from app.settings.types import Section
from app.wire.early import EventShape

SESSION_HEADERS = (
    "x-session-id",
    "x-session-affinity",
    "x-openwebui-chat-id",
    "x-litellm-session-id",
    "helicone-session-id",
    "x-opencode-session",
    "x-claude-code-session-id",
    "session-id",
    "session_id",
)


class IdentitySettings(Section):
    ignore: tuple[str, ...] = ()
    """Regular expressions of volatile text, such as an injected date, left out of digests."""
    session_headers: tuple[str, ...] = SESSION_HEADERS
    """Request headers that name the conversation, first found."""
    use_prompt_cache_key: bool = False
    """Take the body's `prompt_cache_key` as the conversation id."""
    use_user: bool = False
    """Take the body's `user` as the conversation id."""

    @field_validator("session_headers")
    @classmethod
    def _in_lower_case(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(name.lower() for name in names)  # as they are on the wire's side of the server

    @field_validator("ignore")
    @classmethod
    def _compiles(cls, patterns: tuple[str, ...]) -> tuple[str, ...]:
        for pattern in patterns:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"{pattern!r} is no regular expression: {error}") from error
        return patterns


class EventSettings(Section):
    stream: EventShape = "chunk"
    """Shape of compaction events on streams: chunk, start, comment or off; named crashes most SDKs."""
    keep_alive_seconds: float = Field(10.0, ge=1, le=60)
    """Time between keep-alives while a summary is made; less for a client that announces a short timeout."""
    body: bool = True
    """Add `context_status` and `context` to answers; the headers are always there."""
