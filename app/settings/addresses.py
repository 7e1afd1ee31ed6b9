"""Addresses: which URLs may be a provider's, and which lead back to Steno."""

from __future__ import annotations

import re
import socket
from ipaddress import IPv4Address, IPv6Address, ip_address
from urllib.parse import urlsplit

VISIBLE = re.compile(r"[!-~]+")
"""ASCII without spaces and control characters: what a URL and a header's value may hold."""


def is_address(url: str) -> bool:
    """True for a URL of a server and a path alone: what else one may hold is often secret, and this one is shown."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return False
    return (
        parts.scheme in ("http", "https")
        and bool(parts.hostname)
        and port != 0
        and not set(parts.netloc) & {"@", "\\"}
        and not set(url) & {"?", "#"}
        and VISIBLE.fullmatch(url) is not None
    )


def is_loopback(host: str) -> bool:
    """True for a host that is this machine by its name."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def leads_to(url: str, host: str, port: int) -> bool:
    """True where a URL leads to a server on this machine that listens there; a name at that port is looked up."""
    parts = urlsplit(url)
    if parts.scheme != "http" or (parts.port or 80) != port:  # Steno itself speaks no TLS.
        return False
    asked = (parts.hostname or "").lower()
    return asked == host.lower() or any(_reaches(to, at) for to in _addresses(asked) for at in _addresses(host.lower()))


def _addresses(host: str) -> list[IPv4Address | IPv6Address]:
    """IP addresses of a host as this machine finds them; none where it finds none."""
    if host == "localhost":
        return [IPv4Address("127.0.0.1"), IPv6Address("::1")]
    try:
        return [ip_address(host)]
    except ValueError:
        pass
    try:
        found = {str(address[0]).partition("%")[0] for *_, address in socket.getaddrinfo(host, None)}
    except (OSError, UnicodeError):
        return []
    return [ip_address(address) for address in found]


def _reaches(to: IPv4Address | IPv6Address, at: IPv4Address | IPv6Address) -> bool:
    """True where a call to one address reaches a listener at the other: 0.0.0.0 and :: are every address to a listener,
    and the machine itself to a caller."""
    if to.version != at.version:
        return False
    return to == at or (to.is_unspecified and at.is_loopback) or (at.is_unspecified and _is_ours(to))


def _is_ours(address: IPv4Address | IPv6Address) -> bool:
    """True for an address of this machine, which a socket can be bound to."""
    if address.is_loopback:
        return True
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family) as probe:
            probe.bind((str(address), 0))
    except OSError:
        return False
    return True
