"""Tenants: whose a request is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf
from time import monotonic
from typing import Literal

from msgspec import Struct

from app.core.history.identity import Identity
from app.edge.credentials import keys_in
from app.edge.proxies import Network, client_of, is_from_this_machine
from app.errors import MissingCredentials

ANONYMOUS = "anonymous"

By = Literal["key", "session", "nothing"]
"""Ways in which a caller is known; `session` is one of the inspector's."""


class Known(Struct, frozen=True):
    """Identity of a caller, and how it is known."""

    tenant: str
    by: By
    until: float = inf
    """End of that knowledge, by the monotonic clock: a token that says it expires."""

    @property
    def holds(self) -> bool:
        """False once it is to be found out anew."""
        return self.until == inf or monotonic() < self.until


@dataclass(slots=True)
class Tenants:
    """Tenants by a keyed digest of the caller's key: stored everywhere, and it gives the key away nowhere.

    A key is the same one in whichever header it is sent: it is the secret that distinguishes callers. Of a request with
    several keys the tenant is whoever holds all of them: one of them alone may be a placeholder that many callers
    send, such as the key an SDK insists on beside the gateway's own.
    """

    identity: Identity
    allow_unauthenticated: bool | Literal["loopback"]
    trusted_proxies: Sequence[Network] = ()

    def is_local(self, headers: Iterable[tuple[bytes, bytes]], peer: str) -> bool:
        """True if the request, which `peer` sent, comes from this machine."""
        return is_from_this_machine(headers, peer, self.trusted_proxies)

    def client(self, headers: Iterable[tuple[bytes, bytes]], peer: str) -> str:
        """Return the network address that the request came from: the peer's, or what a trusted proxy says; of IPv6
        the /64, which one caller has all of. Empty if it is not known."""
        return client_of(headers, peer, self.trusted_proxies)

    async def known(self, headers: Iterable[tuple[bytes, bytes]], peer: str, query: bytes = b"") -> Known:
        """Find out who sent a request, which came from `peer`. Raises `MissingCredentials` if nothing says so."""
        headers = list(headers)
        if keys := keys_in(headers, query):
            # No header can hold a NUL; what a query has of them is not the sender's own key.
            return Known(self.identity.tenant(b"\0".join(key.replace(b"\0", b"") for key in keys)), "key")
        if self.allow_unauthenticated is True:
            return Known(ANONYMOUS, "nothing")
        if self.allow_unauthenticated == "loopback":
            if self.is_local(headers, peer):
                return Known(ANONYMOUS, "nothing")
            raise MissingCredentials(
                "No API key was sent. Send an Authorization header, or let the operator set"
                " STENO_ALLOW_UNAUTHENTICATED=1 for requests from other machines."
            )
        raise MissingCredentials(
            "No API key was sent. Send an Authorization header: server.allow_unauthenticated is false here."
        )
