"""Clients: who they are, how their conversations are recognised, and what they are sent."""

from __future__ import annotations

import re

from pydantic import Field, field_validator

from app.formats.sse import EventShape
from app.http.credentials import CREDENTIALS
from app.settings.types import Section

_NO_NAMES = CREDENTIALS | {b"host", b"cookie", b"forwarded", b"x-forwarded-for", b"content-type", b"content-length"}
_HEADER = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]{1,100}")


class ClientSettings(Section):
    """[How a caller is identified](security.md#who-a-caller-is); without these settings, by the key that it sends."""

    header: str | None = None
    """Header in which a proxy in `server.trusted_proxies` names the caller, such as `x-forwarded-user`.

    From any other address a request with it gets 401. The proxy must remove what callers send under this name. Where an
    upstream has `api_key_env`, every request needs the header ([who pays](security.md#who-pays)).
    """
    tenant: str | None = Field(None, min_length=1, max_length=200)
    """Name of one tenant for all callers, whatever key they send: each can read what the others stored.

    Right for one person whose token is refreshed, or for a team that shares everything.
    """

    @field_validator("header")
    @classmethod
    def _is_a_name(cls, name: str | None) -> str | None:
        if name is None:
            return None
        if not _HEADER.fullmatch(name := name.lower()) or name.encode() in _NO_NAMES:
            raise ValueError(f"{name!r:.100} cannot be a header that says who calls, such as x-forwarded-user")
        return name


class IdentitySettings(Section):
    """Names of conversations: [how one is recognised](rest.md#names-of-conversations)."""

    ignore: tuple[str, ...] = ()
    """Regular expressions of volatile text, such as an injected date, that is left out of digests.

    Messages that differ only in such text count as the same. After a change, summaries of conversations with it are not
    found any more.
    """

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
