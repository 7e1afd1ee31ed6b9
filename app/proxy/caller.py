"""Caller: the sender of a request, and everything that came with it beside its body."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

from msgspec import Struct
from msgspec.structs import replace

from app.conversation.lazy import lazy
from app.errors import InvalidRequest
from app.formats.format import WireFormat
from app.http import own_headers
from app.http.relayed import SUMMARY_CALL, Headers, forwarded
from app.http.upstream import Upstream
from app.http.writing import RequestHead

SWITCHES = {"on": True, "true": True, "1": True, "off": False, "false": False, "0": False}
ANNOUNCED_TIMEOUTS = frozenset({b"x-stainless-read-timeout", b"x-stainless-timeout"})
"""Headers that say how long a client waits, in seconds: openai-python's, and openai-node's, which is rounded down."""


class Caller(Struct, frozen=True, eq=False, dict=True):
    """Sender of a request."""

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

    @lazy
    def _first(self) -> Mapping[bytes, bytes]:
        return dict(reversed(self.headers))

    @lazy
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

    @lazy
    def allows_compaction(self) -> bool:
        """False if its headers switch compactions off. Raises `InvalidRequest` for a header that says neither."""
        return self._switch(own_headers.COMPACTION)

    @lazy
    def allows_recall(self) -> bool:
        """False if its headers switch quotations off. Raises `InvalidRequest` for a header that says neither."""
        return self._switch(own_headers.RECALL)

    def _switch(self, name: bytes) -> bool:
        given = (self.header(name) or "on").lower()
        if given not in SWITCHES:
            text = f"{name.decode()} must be one of {', '.join(SWITCHES)}; it is {given!r:.100}."
            raise InvalidRequest(text, name.decode())
        return SWITCHES[given]

    @lazy
    def patience(self) -> float:
        """Shortest timeout in seconds that its headers announce; infinite if they announce none."""
        if not self.sent_any(ANNOUNCED_TIMEOUTS):
            return inf
        announced = (announced_seconds(self.header(name)) for name in ANNOUNCED_TIMEOUTS)
        return min((seconds for seconds in announced if seconds is not None), default=inf)

    def head_at(self, upstream: Upstream) -> RequestHead:
        """Head of a chat request at this upstream. Raises `UpstreamDisconnected`."""
        return upstream.head(b"POST", self.target, forwarded(self.headers, read_here=True))

    def header(self, name: bytes) -> str | None:
        """First value of a header."""
        value = self._first.get(name)
        return None if value is None else value.decode("latin-1")

    def sent_any(self, names: frozenset[bytes]) -> bool:
        """True if one of these headers was sent."""
        return not names.isdisjoint(self._first)


def announced_seconds(text: str | None) -> float | None:
    """Read a header's number of seconds; None if it holds none."""
    try:
        seconds = float(text or "")
    except ValueError:
        return None
    return seconds if 0 <= seconds < inf else None
