"""The caller: who sends a request, and what came with it beside its body."""

from __future__ import annotations

from dataclasses import dataclass

from app.headers.relayed import Headers


@dataclass(frozen=True, slots=True)
class Caller:
    tenant: str
    headers: Headers
    request_id: str
    """Steno's own, for log and ledger."""
    conversation: str | None = None
    """The id that the base URL gives the conversation: `/c/{id}/v1`."""
    upstream: str | None = None
    """The upstream that the base URL names: `/u/{name}/v1`."""
