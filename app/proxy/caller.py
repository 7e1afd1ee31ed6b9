"""Callers: which tenant a request belongs to, and what its head says beside its body.

A caller is known, in this order, by

1. the header in `clients.header`, from a peer in `server.trusted_proxies`: one tenant a value;
2. `clients.tenant`: one tenant for all other callers;
3. the credentials: one tenant a set of keys, or `anonymous` without any, where that is allowed.

Where an upstream has a key of the operator's, the header is required of every request; only without `clients.header`,
which starts on loopback alone, requests of this machine do without it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from app.conversation.identity import Identity as Digests
from app.conversation.lazy import lazy
from app.errors import InvalidCredentials, InvalidRequest, MissingCredentials
from app.formats.format import WireFormat
from app.http.credentials import Network, is_from_this_machine, is_trusted, keys_in
from app.http.headers import Headers, forwarded
from app.http.http1 import RequestHead
from app.http.upstream import Upstream

SWITCHES = {"on": True, "true": True, "1": True, "off": False, "false": False, "0": False}
ANNOUNCED_TIMEOUTS = frozenset({b"x-stainless-read-timeout", b"x-stainless-timeout", b"x-server-timeout"})
"""Headers that say how long a client waits, in seconds: openai-python's, openai-node's, which is rounded down, and
Google's."""
SILENCE_SHARE = 1 / 3
"""Share of the timeout a client announces for which a stream may be silent: one keep-alive may be late."""
KEEP_ALIVE_SECONDS = 10.0
"""Seconds between keep-alives for a client that announces no timeout: less than any proxy on the way waits."""
LEAST_SILENCE = 1.0
"""Seconds for which a stream may be silent, whatever a client announces."""
ANONYMOUS: Final = "anonymous"
LONGEST_NAME = 500
"""Bytes of the name that a proxy sends in `clients.header`."""

AuthMethod = Literal["header", "key", "anonymous"]


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

    def with_plain_body(self) -> Caller:
        return replace(self, headers=[header for header in self.headers if header[0] != b"content-encoding"])

    @lazy
    def window_asked(self) -> int | None:
        return self.format.window_asked(self.headers)

    def allows(self, name: bytes) -> bool:
        """Read a header that switches something off. Raises `InvalidRequest` for a value that says neither."""
        given = (self.header(name) or "on").lower()
        if given not in SWITCHES:
            text = f"{name.decode()} must be one of {', '.join(SWITCHES)}; it is {given!r:.100}."
            raise InvalidRequest(text, name.decode())
        return SWITCHES[given]

    def patience(self) -> float:
        """Return the shortest timeout in seconds that its headers announce; infinite if they announce none."""
        if not self.sent_any(ANNOUNCED_TIMEOUTS):
            return inf
        announced = (announced_seconds(self.header(name)) for name in ANNOUNCED_TIMEOUTS)
        return min((seconds for seconds in announced if seconds is not None), default=inf)

    def longest_silence(self) -> float:
        """Return the seconds for which a stream to it may be silent: less than usual if it waits for less."""
        return min(KEEP_ALIVE_SECONDS, max(LEAST_SILENCE, SILENCE_SHARE * self.patience()))

    @lazy
    def _heads(self) -> dict[Upstream, RequestHead]:
        return {}

    def head_at(self, upstream: Upstream) -> RequestHead:
        """Head of a chat request at this upstream. Raises `UpstreamDisconnected`."""
        if (head := self._heads.get(upstream)) is None:
            self._heads[upstream] = head = upstream.head(b"POST", self.target, forwarded(self.headers, read_here=True))
        return head

    def header(self, name: bytes) -> str | None:
        value = self._first.get(name)
        return None if value is None else value.decode("latin-1")

    def sent_any(self, names: frozenset[bytes]) -> bool:
        return not names.isdisjoint(self._first)


def announced_seconds(text: str | None) -> float | None:
    """Read a header's number of seconds; None if it holds none."""
    try:
        seconds = float(text or "")
    except ValueError:
        return None
    return seconds if 0 <= seconds < inf else None


class Identity(Struct, frozen=True):
    """Identity of a caller."""

    tenant: str
    """Keyed digest of the header's value, of `clients.tenant` or of the keys; or `anonymous`."""
    method: AuthMethod


@dataclass(slots=True)
class Authenticator:
    """Identifies callers.

    A key is the same in whichever header it is sent. A request with several keys belongs to the tenant of all of them
    together: one alone may be a placeholder that many callers send, such as the key that an SDK insists on beside the
    gateway's own.
    """

    digests: Digests
    allow_unauthenticated: bool | Literal["loopback"]
    trusted_proxies: Sequence[Network]
    header: bytes | None = None
    """Name of `clients.header`."""
    tenant: str | None = None
    """Value of `clients.tenant`."""
    operator_pays: bool = False
    """True if an upstream has a key of the operator's."""

    def identify(self, headers: Iterable[tuple[bytes, bytes]], peer: str, query: bytes = b"") -> Identity:
        """Identify the caller of a request that came from the address `peer`. Raises `MissingCredentials` and
        `InvalidCredentials`."""
        headers = list(headers)
        if (name := self._name_in(headers, peer)) is not None:
            return Identity(self.digests.person("header", name), "header")
        if self.operator_pays:
            self._require_this_machine(headers, peer)
        keys = keys_in(headers, query)
        if not keys:
            self._require_anonymous(headers, peer)
        method: AuthMethod = "key" if keys else ANONYMOUS
        if self.tenant is not None:
            return Identity(self.digests.person("single", self.tenant), method)
        if not keys:
            return Identity(ANONYMOUS, method)
        # No header can hold a NUL; one in a query is not part of the caller's own key.
        return Identity(self.digests.tenant(b"\0".join(key.replace(b"\0", b"") for key in keys)), method)

    def is_local(self, headers: Iterable[tuple[bytes, bytes]], peer: str) -> bool:
        return is_from_this_machine(headers, peer, self.trusted_proxies)

    def _name_in(self, headers: Headers, peer: str) -> str | None:
        """Value of `clients.header`; None without the setting, or a letter or digit. Raises `InvalidCredentials`."""
        values = [value.strip() for key, value in headers if key == self.header]
        if self.header is None or not values:
            return None
        shown = self.header.decode()
        if not is_trusted(peer, self.trusted_proxies):
            raise InvalidCredentials(f"{shown} is believed from the proxies in server.trusted_proxies only.", shown)
        if len(values) > 1:
            raise InvalidCredentials(f"{shown} was sent {len(values)} times: the proxy must send it once.", shown)
        if len(values[0]) > LONGEST_NAME:
            raise InvalidCredentials(f"{shown} has {len(values[0])} bytes; at most {LONGEST_NAME} are accepted.", shown)
        name = values[0].decode("latin-1")
        return name if any(map(str.isalnum, name)) else None

    def _require_this_machine(self, headers: Headers, peer: str) -> None:
        """Raises `MissingCredentials` for a request that may not spend the operator's key."""
        if self.header is not None:
            raise MissingCredentials(
                f"The header {self.header.decode()} is missing, by which a proxy in server.trusted_proxies names the"
                " caller. Steno adds the operator's key here, so every request must carry it.",
                self.header.decode(),
            )
        if not self.is_local(headers, peer):
            raise MissingCredentials(
                "Steno adds the operator's key here and serves this machine alone. To serve others, the operator sets"
                " clients.header and server.trusted_proxies."
            )

    def _require_anonymous(self, headers: Headers, peer: str) -> None:
        """Raises `MissingCredentials` where callers without a key are refused."""
        if self.allow_unauthenticated is False:
            raise MissingCredentials(
                "No API key was sent. Send an Authorization header: server.allow_unauthenticated is false here."
            )
        if self.allow_unauthenticated == "loopback" and not self.is_local(headers, peer):
            raise MissingCredentials(
                "No API key was sent. Send an Authorization header, or let the operator set"
                " STENO_ALLOW_UNAUTHENTICATED=1 for requests from other machines."
            )
