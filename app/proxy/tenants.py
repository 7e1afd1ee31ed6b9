"""Tenants: whose a request is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf
from time import monotonic, time
from typing import Literal

from msgspec import Struct

from app.core.history.identity import Identity
from app.edge.credentials import OWN_KEY, keys_in
from app.edge.proxies import Network, client_of, is_from_this_machine
from app.errors import InvalidCredentials, MissingCredentials
from app.proxy.keyring import LOOK_SECONDS, Keyring
from app.store.client_keys import KeyLimits

ANONYMOUS = "anonymous"

By = Literal["owner", "key", "session", "nothing"]
"""Ways in which a caller is known: `owner` by a key that Steno gave out; `session` is one of the inspector's."""


class Known(Struct, frozen=True):
    """Identity of a caller, and how it is known."""

    tenant: str
    by: By
    until: float = inf
    """End of that knowledge, by the monotonic clock: a token that says it expires."""
    limits: KeyLimits | None = None
    """Limits of the key that Steno gave out; None where it is no such key."""

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
    keyring: Keyring | None = None
    """Keys that Steno gave out; None where it gives out none."""

    def is_local(self, headers: Iterable[tuple[bytes, bytes]], peer: str) -> bool:
        """True if the request, which `peer` sent, comes from this machine."""
        return is_from_this_machine(headers, peer, self.trusted_proxies)

    def client(self, headers: Iterable[tuple[bytes, bytes]], peer: str) -> str:
        """Return the network address that the request came from: the peer's, or what a trusted proxy says; of IPv6
        the /64, which one caller has all of. Empty if it is not known."""
        return client_of(headers, peer, self.trusted_proxies)

    async def known(self, headers: Iterable[tuple[bytes, bytes]], peer: str, query: bytes = b"") -> Known:
        """Find out who sent a request, which came from `peer`. Raises `MissingCredentials` if nothing says so,
        `InvalidCredentials` if that does not hold, and `IdentityUnavailable`."""
        headers = list(headers)
        keys = keys_in(headers, query)
        if own := [key for key in keys if key.startswith(OWN_KEY)]:
            return self._owner_of(own, in_query=len(keys_in(headers)) < len(keys))
        if self.keyring is not None:
            raise MissingCredentials("No key of this Steno was sent. Ask its operator for one (`steno keys add`).")
        if keys:
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

    def _owner_of(self, keys: Sequence[bytes], *, in_query: bool) -> Known:
        """Caller with a key that Steno gave out."""
        if in_query:
            raise InvalidCredentials("A key of Steno belongs into a header: a query stands in logs.")
        found = None if self.keyring is None or len(keys) > 1 else self.keyring.find(keys[0])
        if found is None:
            raise InvalidCredentials("This key is not known here, was revoked or has expired. Ask for another one.")
        lasts = LOOK_SECONDS if found.expires_at is None else min(LOOK_SECONDS, found.expires_at - time())
        # No key that a caller makes up can hold a NUL.
        tenant = self.identity.tenant(b"owner\0" + found.owner.encode())
        return Known(tenant, "owner", monotonic() + lasts, found.limits)
