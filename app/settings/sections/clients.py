"""Clients: who they are, how their conversations are recognised, and what they are sent."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from app.edge.credentials import CREDENTIALS
from app.settings.addresses import is_loopback
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


_NO_NAMES = CREDENTIALS | {b"host", b"cookie", b"forwarded", b"x-forwarded-for", b"content-type", b"content-length"}
_HEADER = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]{1,100}")


class JwtSettings(Section):
    """An issuer of tokens that are verified."""

    issuer: str = Field(min_length=1)
    """Issuer, as the claim `iss` of its tokens has it."""
    audience: str = Field(min_length=1)
    """Audience that the tokens are for: their claim `aud`, or a part of it."""
    jwks: str = Field(min_length=1)
    """File or https URL with the issuer's public keys."""
    claim: str = Field("sub", min_length=1)
    """Claim that stays the same for a person."""

    @field_validator("jwks")
    @classmethod
    def _cannot_be_replaced_on_the_way(cls, value: str) -> str:
        if "://" not in value:
            return value
        address = urlsplit(value)
        if address.scheme == "https" or (address.scheme == "http" and is_loopback(address.hostname or "")):
            return value
        raise ValueError("jwks must be a file, or an https URL: whoever can change the keys on the way is anybody")


class ClientSettings(Section):
    """[Ways to know who a caller is](security.md#who-a-caller-is), tried in this order; without any it is the key.

    With one of them conversations, references and archive belong to a person, not to a key.
    """

    jwt: tuple[JwtSettings, ...] = ()
    """Issuers of JWTs that say who calls: `issuer`, `audience`, `jwks` and `claim` (`sub` if left out).

    A token of such an issuer that does not verify gets 401; tokens of others are keys as before. For example:

        - {issuer: "https://id.example.com", audience: "steno", jwks: "https://id.example.com/jwks.json"}
    """
    header: str | None = None
    """Header in which a proxy in `server.trusted_proxies` says who calls, such as `x-forwarded-user`.

    From any other address a request with it gets 401. The proxy must remove what callers send under this name. A proxy
    at a socket file is trusted, too.
    """
    oauth: bool = False
    """Know a caller by what stays the same in a provider's OAuth token (JWT): issuer, subject, and OpenAI's account.

    Steno cannot verify it, so the provider must first answer a list of models to this very token, and refuse the same
    one with another signature. Until then, the token is a key like any other.
    """
    tenant: str | None = Field(None, min_length=1, max_length=200)
    """Name of the one tenant that all callers are, whatever key they send: each can read what the others stored."""
    keys: str | None = Field(None, min_length=1)
    """Place of the keys that Steno gives out (`steno keys add`): a file, or "database"; null: it gives out none.

    Then nobody else is served, but for a token or header as above ([who may come in](security.md#who-may-come-in)).
    Needed where an upstream has `api_key_env` and others can reach Steno.
    """

    @field_validator("header")
    @classmethod
    def _is_a_name(cls, name: str | None) -> str | None:
        if name is None:
            return None
        if not _HEADER.fullmatch(name := name.lower()) or name.encode() in _NO_NAMES:
            raise ValueError(f"{name!r:.100} cannot be a header that says who calls, such as x-forwarded-user")
        return name

    @model_validator(mode="after")
    def _issuers_differ(self) -> Self:
        if len({each.issuer for each in self.jwt}) < len(self.jwt):
            raise ValueError("jwt has two entries with one issuer: the second would never count")
        return self

    @property
    def keys_file(self) -> Path | None:
        """File of the keys; None for the database, or for no keys."""
        return None if self.keys in (None, "database") else Path(str(self.keys)).expanduser()


class IdentitySettings(Section):
    """Names of conversations: [how one is recognised](rest.md#names-of-conversations)."""

    ignore: tuple[str, ...] = ()
    """Regular expressions of volatile text, such as an injected date, that is left out of digests.

    Messages that differ only in such text count as the same. After a change, summaries of conversations with it are not
    found any more.
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
    `named` is for readers of raw server-sent events: the usual loop over `chunk.choices[0]` crashes on it. A client
    chooses with `x-context-events`.
    """
    body: bool = True
    """Add `context_status` and `context` to answers; the headers are always there."""
