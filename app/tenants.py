"""Whose request it is."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import ip_address

from app.core.identity import Identity
from app.credentials import keys_in
from app.errors import MissingCredentials

ANONYMOUS = "anonymous"


class Tenants:
    """A tenant is a keyed digest of the caller's key: stored everywhere, and it gives the key away nowhere.

    A key is the same one in whichever header it is sent: it is the secret that tells callers apart. Of a request with
    several keys the tenant is whoever holds all of them: one of them alone may be a placeholder that many callers
    send, such as the key an SDK insists on beside the gateway's own.
    """

    def __init__(self, identity: Identity, allow_unauthenticated: bool) -> None:
        self._identity = identity
        self._allow_unauthenticated = allow_unauthenticated

    def tenant(self, headers: Iterable[tuple[bytes, bytes]], client_host: str) -> str:
        """Raises `MissingCredentials` for a request without any from another machine."""
        if keys := keys_in(headers):
            return self._identity.tenant(b"\0".join(keys))  # No header can hold a NUL.
        if self._allow_unauthenticated or is_loopback(client_host):
            return ANONYMOUS
        raise MissingCredentials(
            "No API key was sent. Send an Authorization header, or let the operator set"
            " STENO_ALLOW_UNAUTHENTICATED=1 for requests from other machines."
        )


def is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
