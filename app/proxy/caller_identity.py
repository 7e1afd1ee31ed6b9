"""Caller identity: which tenant a request belongs to, and by what its caller is known.

1. The header in `clients.header`, from a peer in `server.trusted_proxies`: one tenant a value.
2. `clients.tenant`: one tenant for all other callers.
3. The credentials: one tenant a set of keys, or `anonymous` without any, where that is allowed.

Where an upstream has a key of the operator's, the header is required of every request; only without `clients.header`,
which starts on loopback alone, requests of this machine do without it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from msgspec import Struct

from app.conversation.identity import Identity as Digests
from app.errors import InvalidCredentials, MissingCredentials
from app.http.credentials import keys_in
from app.http.proxies import Network, client_of, is_from_this_machine, is_trusted
from app.http.relayed import Headers

ANONYMOUS: Final = "anonymous"
LONGEST_NAME = 500
"""Bytes of the name that a proxy sends in `clients.header`."""

AuthMethod = Literal["header", "key", "anonymous"]


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
        """True if the request comes from this machine."""
        return is_from_this_machine(headers, peer, self.trusted_proxies)

    def client(self, headers: Iterable[tuple[bytes, bytes]], peer: str) -> str:
        """Network address of the client: the peer's, or the one that a trusted proxy reports; of IPv6 the /64. Empty
        if it is unknown."""
        return client_of(headers, peer, self.trusted_proxies)

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
