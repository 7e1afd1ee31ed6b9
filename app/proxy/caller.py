"""Callers: the tenant of a request, and the values of its headers and path.

Steno identifies a caller by the first of these that applies:

1. the header that `clients.header` names, sent by a proxy in `server.trusted_proxies`: one tenant for each value;
2. `clients.tenant`: one tenant for all other callers;
3. the credentials: one tenant for each set of keys, and the tenant `anonymous` for allowed callers without a key.

If an upstream has a key of the operator's, each request must have the header of item 1. If `clients.header` is empty,
each request must come from this machine instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from app.conversation.identity import Identity as Digests
from app.conversation.messages import lazy
from app.errors import InvalidCredentials, InvalidRequest, MissingCredentials
from app.formats.format import WireFormat
from app.http.credentials import keys_in
from app.http.headers import Headers, Network, forwarded, is_from_this_machine, is_trusted
from app.http.http1 import RequestHead
from app.http.upstream import Upstream

SWITCHES = {"on": True, "true": True, "1": True, "off": False, "false": False, "0": False}
ANNOUNCED_TIMEOUTS = frozenset({b"x-stainless-read-timeout", b"x-stainless-timeout", b"x-server-timeout"})
"""Headers in which OpenAI's and Google's SDKs send their timeout in seconds. openai-node rounds the timeout down."""
ANONYMOUS: Final = "anonymous"
LONGEST_NAME = 500
"""Maximum bytes of a caller's name. A proxy sends the name in the header that `clients.header` names."""

AuthMethod = Literal["header", "key", "anonymous"]


class Caller(Struct, frozen=True, eq=False, dict=True):
    tenant: str
    headers: Headers
    format: WireFormat
    """Format of the request and its answer. The request's path determines it."""
    conversation: str | None = None
    """Conversation id in the base URL: `/c/{id}/v1`."""
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
        """Return the value of an on/off header; True without the header. Raises `InvalidRequest` for other values."""
        given = (self.header(name) or "on").lower()
        if given not in SWITCHES:
            text = f"{name.decode()} must be one of {', '.join(SWITCHES)}; it is {given!r:.100}."
            raise InvalidRequest(text, name.decode())
        return SWITCHES[given]

    def patience(self) -> float:
        """Return the shortest timeout in the client's headers, in seconds; infinite if there is none."""
        if not self.sent_any(ANNOUNCED_TIMEOUTS):
            return inf
        announced = (announced_seconds(self.header(name)) for name in ANNOUNCED_TIMEOUTS)
        return min((seconds for seconds in announced if seconds is not None), default=inf)

    @lazy
    def _heads(self) -> dict[Upstream, RequestHead]:
        return {}

    def head_at(self, upstream: Upstream) -> RequestHead:
        """Return the head of a chat request for this upstream. Raises `UpstreamDisconnected`."""
        if (head := self._heads.get(upstream)) is None:
            self._heads[upstream] = head = upstream.head(b"POST", self.target, forwarded(self.headers, read_here=True))
        return head

    def header(self, name: bytes) -> str | None:
        value = self._first.get(name)
        return None if value is None else value.decode("latin-1")

    def sent_any(self, names: frozenset[bytes]) -> bool:
        return not names.isdisjoint(self._first)


def announced_seconds(text: str | None) -> float | None:
    """Read a number of seconds; None if the header is missing or not a valid number."""
    try:
        seconds = float(text or "")
    except ValueError:
        return None
    return seconds if 0 <= seconds < inf else None


class Identity(Struct, frozen=True):
    tenant: str
    """Keyed digest of the caller's name, of `clients.tenant` or of the caller's keys; or `anonymous`."""
    method: AuthMethod


@dataclass(slots=True)
class Authenticator:
    """Identifies callers.

    A key means the same tenant in every header. Several keys in one request mean another tenant than each key alone.
    Otherwise callers that all send the same placeholder beside their own key would share a tenant.
    """

    digests: Digests
    allow_unauthenticated: bool | Literal["loopback"]
    trusted_proxies: Sequence[Network]
    header: bytes | None = None
    """Value of `clients.header`: the name of a header that contains the caller's name."""
    tenant: str | None = None
    """Value of `clients.tenant`."""
    operator_pays: bool = False
    """True if an upstream has a key of the operator's."""

    def identify(self, headers: Iterable[tuple[bytes, bytes]], peer: str, query: bytes = b"") -> Identity:
        """Identify the caller of a request. `peer`: address of the connection. Raises `MissingCredentials` and
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
        # NUL separates the keys. A header cannot contain NUL, but a key in the query can.
        return Identity(self.digests.tenant(b"\0".join(key.replace(b"\0", b"") for key in keys)), method)

    def is_local(self, headers: Iterable[tuple[bytes, bytes]], peer: str) -> bool:
        return is_from_this_machine(headers, peer, self.trusted_proxies)

    def _name_in(self, headers: Headers, peer: str) -> str | None:
        """Return the caller's name; None if it is missing or has no letter or digit. Raises `InvalidCredentials`."""
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
        """Raise `MissingCredentials` for a request that may not use the operator's key."""
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
        """Raise `MissingCredentials` if the settings require a key from this caller."""
        if self.allow_unauthenticated is False:
            raise MissingCredentials(
                "No API key was sent. Send an Authorization header: server.allow_unauthenticated is false here."
            )
        if self.allow_unauthenticated == "loopback" and not self.is_local(headers, peer):
            raise MissingCredentials(
                "No API key was sent. Send an Authorization header, or let the operator set"
                " STENO_ALLOW_UNAUTHENTICATED=1 for requests from other machines."
            )
