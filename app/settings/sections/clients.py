"""Clients: how their conversations are recognised, and what they are sent."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

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


class ClientSettings(Section):
    """Callers that are let in."""

    keys: str | None = Field(None, min_length=1)
    """Place of the keys that Steno gives out (`steno keys add`): a file, or "database"; null: it gives out none.

    Then nobody is served without such a key, which leads to its owner's conversations, however often it is replaced.
    It goes to no provider. Needed where an upstream has `api_key_env` and others can reach Steno ([who may come
    in](security.md#who-may-come-in)).
    """

    @property
    def keys_file(self) -> Path | None:
        """File of the keys; None for the database, or for no keys."""
        return None if self.keys in (None, "database") else Path(str(self.keys)).expanduser()


class IdentitySettings(Section):
    """Names of conversations: [how one is recognised](rest.md#names-of-conversations)."""

    ignore: tuple[str, ...] = ()
    """Regular expressions of volatile text, such as an injected date, that is left out of digests.

    Messages that differ only in such text count as the same. After a change, summaries of conversations that contain it
    are not found any more.
    """
    session_headers: tuple[str, ...] = SESSION_HEADERS
    """Request headers that name the conversation, first found, after `x-context-conversation-id`.

    A name never decides which summaries apply. A value that cannot be an id is ignored.
    """
    body_names: tuple[Literal["prompt_cache_key", "user"], ...] = ()
    """Members of the body, `prompt_cache_key` or `user`, that name the conversation if nothing else does.

    Many applications send the same key for all conversations; `user` is right only if each user has one.
    """

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
    """Additions to answers."""

    stream: EventShape = "chunk"
    """Shape of compaction events on streams: chunk, start, comment or off; named crashes most SDKs.

    [Shapes](rest.md#shapes) has the frames of each. Every client of a format takes `chunk`; more clients show `start`.
    `named` is for readers of raw server-sent events: the usual loop over `chunk.choices[0]` crashes on it. With `off`
    the client waits in silence. A client chooses with `x-context-events`.
    """
    keep_alive_seconds: float = Field(10.0, ge=1, le=60)
    """Seconds between keep-alives while a summary is made; less for a client that announces a short timeout.

    Stay below the idle timeout of every proxy on the way.
    """
    body: bool = True
    """Add `context_status` and `context` to answers; the headers are always there."""
