"""The caller: who sends a request, and what came with it beside its body."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from app.core.values import value
from app.headers.relayed import Headers
from app.wire.format import WireFormat


@value
class Caller:
    tenant: str
    headers: Headers
    request_id: str
    """Steno's own, for log and ledger."""
    format: WireFormat
    """In which the request is written, as its path says, and its answer."""
    conversation: str | None = None
    """The id that the base URL gives the conversation: `/c/{id}/v1`."""
    upstream: str | None = None
    """The upstream that the base URL names: `/u/{name}/v1`."""
    continues: str | None = None
    """The conversation whose compaction the history begins with."""
    inherited_rules: tuple[str, ...] = ()
    """The user's standing rules that this compaction quotes, newest first."""
    _first: Mapping[bytes, bytes] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_first", dict(reversed(self.headers)))

    def header(self, name: bytes) -> str | None:
        """The first value of a header."""
        value = self._first.get(name)
        return None if value is None else value.decode("latin-1")

    def sent_any(self, names: frozenset[bytes]) -> bool:
        """Whether one of these headers was sent."""
        return not names.isdisjoint(self._first)
