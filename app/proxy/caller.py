"""Caller: the sender of a request, and everything that came with it beside its body."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from app.core.lazy import lazy
from app.edge.relayed import SUMMARY_CALL, Headers, forwarded
from app.edge.upstream import Upstream
from app.edge.writing import RequestHead
from app.wire.format import WireFormat


class Caller(Struct, frozen=True, eq=False, dict=True):
    """Sender of requests, the same for all of a connection that have the same head."""

    tenant: str
    headers: Headers
    format: WireFormat
    """Format of the request, as its path says, and of its answer."""
    conversation: str | None = None
    """Id that the base URL gives the conversation: `/c/{id}/v1`."""
    upstream: str | None = None
    """Name of the upstream in the base URL: `/u/{name}/v1`."""
    target: bytes = b""
    """Raw path and query for the provider."""
    continues: str | None = None
    """Conversation whose compaction the history begins with."""
    inherited_rules: tuple[str, ...] = ()
    """Standing rules of the user that this compaction quotes, newest first."""

    @lazy
    def _heads(self) -> dict[Upstream, RequestHead]:
        return {}

    @lazy
    def _first(self) -> Mapping[bytes, bytes]:
        return dict(reversed(self.headers))

    @property
    def query(self) -> bytes:
        return self.target.partition(b"?")[2]

    @lazy
    def asks_for_summary(self) -> bool:
        """True if the caller is Steno itself, here or elsewhere, with a call for a summary."""
        return self._first.get(SUMMARY_CALL[0]) == SUMMARY_CALL[1]

    @lazy
    def encodes_bodies(self) -> bool:
        return bool(self.header(b"content-encoding"))

    @lazy
    def plain(self) -> Caller:
        """The same caller with a body that is not encoded."""
        return replace(self, headers=[header for header in self.headers if header[0] != b"content-encoding"])

    @lazy
    def window_asked(self) -> int | None:
        """Window that its headers ask for; None if they do not."""
        return self.format.window_asked(self.headers)

    def head_at(self, upstream: Upstream) -> RequestHead:
        """Head of a chat request at this upstream. Raises `UpstreamDisconnected`."""
        if (head := self._heads.get(upstream)) is None:
            headers = forwarded(self.headers, read_here=True)
            head = self._heads[upstream] = upstream.head(b"POST", self.target, headers)
        return head

    def header(self, name: bytes) -> str | None:
        """First value of a header."""
        value = self._first.get(name)
        return None if value is None else value.decode("latin-1")

    def sent_any(self, names: frozenset[bytes]) -> bool:
        """True if one of these headers was sent."""
        return not names.isdisjoint(self._first)
