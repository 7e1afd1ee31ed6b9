"""Whose request it is."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import ip_address

from app.core.identity import Identity
from app.errors import MissingCredentials

ANONYMOUS = "anonymous"
CREDENTIAL_HEADERS = (b"authorization", b"api-key", b"x-api-key")


class Tenants:
    """A tenant is a keyed digest of the caller's key: stored everywhere, and it gives the key away nowhere."""

    def __init__(self, identity: Identity, allow_unauthenticated: bool) -> None:
        self._identity = identity
        self._allow_unauthenticated = allow_unauthenticated

    def tenant(self, headers: Iterable[tuple[bytes, bytes]], client_host: str) -> str:
        """Raises `MissingCredentials` for a request without any from another machine."""
        sent = dict(headers)
        for name in CREDENTIAL_HEADERS:
            if credential := sent.get(name, b"").removeprefix(b"Bearer").strip():
                return self._identity.tenant(credential)
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
