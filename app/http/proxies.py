"""Forwarding: what the proxies before Steno say of where a request came from, and how far that is believed.

Whoever makes a request can put such headers into it. They are believed where the peer is a proxy that the settings
name; from any other peer they only show that it is not itself the one who asks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

TOLD_BY_PROXIES = frozenset(
    {
        b"forwarded",
        b"via",
        b"cdn-loop",
        b"cf-connecting-ip",
        b"cf-connecting-ipv6",
        b"cf-connecting-o2o",
        b"cf-ew-via",
        b"cf-ipcity",
        b"cf-ipcontinent",
        b"cf-ipcountry",
        b"cf-iplatitude",
        b"cf-iplongitude",
        b"cf-pseudo-ipv4",
        b"cf-ray",
        b"cf-region",
        b"cf-visitor",
        b"cf-worker",
        b"client-ip",
        b"fastly-client",
        b"fastly-client-ip",
        b"fastly-ff",
        b"fastly-ssl",
        b"fly-client-ip",
        b"fly-region",
        b"remote-addr",
        b"remote-user",
        b"true-client-ip",
        b"wl-proxy-client-ip",
        b"x-arr-clientcert",
        b"x-client-ip",
        b"x-client-port",
        b"x-cluster-client-ip",
        b"x-coming-from",
        b"x-nf-client-connection-ip",
        b"x-originating-ip",
        b"x-proxyuser-ip",
        b"x-real-ip",
        b"x-real-port",
        b"x-remote-addr",
        b"x-remote-ip",
        b"x-remote-user",
        b"x-webauth-user",
    }
)
"""Headers that tell where a request came from, by which way, and who signed in on it."""
FAMILIES = (
    b"x-forwarded-",
    b"x-original-",
    b"x-envoy-",
    b"x-appengine-",
    b"x-azure-",
    b"cf-access-",  # Not all of cf-: cf-aig- is for Cloudflare's AI gateway as an upstream.
    b"cloudfront-",
    b"x-auth-request-",
    b"x-amzn-oidc-",
    b"x-goog-authenticated-user-",
    b"x-goog-iap-",
    b"x-ms-client-principal",
    b"x-vercel-",
)

_FOR = re.compile(r'(?:^|;)\s*for\s*=\s*("(?:[^"\\]|\\.)*"|[^;,\s"]+)', re.IGNORECASE)
_WITH_PORT = re.compile(r"\[([^\]]+)\](?::\d+)?|([0-9.]+):\d+")


def is_told_by_proxies(name: bytes) -> bool:
    return name in TOLD_BY_PROXIES or name.startswith(FAMILIES)


def is_trusted(peer: str, trusted: Sequence[Network]) -> bool:
    """True if the peer is a trusted proxy; one without an address, as at a socket file, is not."""
    address = read_address(peer)
    return address is not None and _is_in(address, trusted)


def is_from_this_machine(headers: Iterable[tuple[bytes, bytes]], peer: str, trusted: Sequence[Network]) -> bool:
    """Whether whoever asks is on this machine; a doubt counts against it.

    A trusted proxy's word counts, and it has to say it; the client is the last one on the way that is no such proxy.
    Where it says so in two ways, both have to agree: it may add to one, and pass the other on as it came.
    """
    address, listed = read_address(peer), list(headers)
    if address is None:
        return False
    if not _is_in(address, trusted):
        return address.is_loopback and not any(is_told_by_proxies(name) for name, _ in listed)
    ways = _ways(listed)
    return bool(ways) and all(_is_loopback(_client(way, trusted)) for way in ways)


def client_of(headers: Iterable[tuple[bytes, bytes]], peer: str, trusted: Sequence[Network]) -> str:
    """The network that whoever asks is in: an IPv4 address, or the /64 of an IPv6 one, which is one caller's.

    The peer's, unless that is a trusted proxy which says clearly whose request it is. Empty where it is not known.
    """
    address = read_address(peer)
    if address is not None and _is_in(address, trusted):
        told = {_client(way, trusted) for way in _ways(headers)}
        if len(told) == 1:
            address = told.pop() or address
    if isinstance(address, IPv6Address):
        return str(IPv6Network((address, 64), strict=False))
    return "" if address is None else str(address)


def read_address(named: str) -> Address | None:
    """Address that a text names; None if it names none."""
    named = named.strip().strip('"')
    with_port = _WITH_PORT.fullmatch(named)
    try:
        address = ip_address((with_port[1] or with_port[2]) if with_port else named)
    except ValueError:
        return None
    return (address.ipv4_mapped or address) if isinstance(address, IPv6Address) else address


def _ways(headers: Iterable[tuple[bytes, bytes]]) -> list[list[str]]:
    """The addresses that a request came by, as each of the two headers has them."""
    listed, ways = list(headers), []
    if sent := [value for name, value in listed if name == b"x-forwarded-for"]:
        ways.append(b",".join(sent).decode("latin-1").split(","))
    if sent := [value for name, value in listed if name == b"forwarded"]:
        ways.append(_forwarded_for(b",".join(sent).decode("latin-1")))
    return ways


def _client(way: Sequence[str], trusted: Sequence[Network]) -> Address | None:
    """Last address that is no trusted proxy; the first one if all are."""
    address = None
    for named in reversed(way):
        address = read_address(named)
        if address is None or not _is_in(address, trusted):
            break
    return address


def _forwarded_for(value: str) -> list[str]:
    """Values of `for` in the elements of a Forwarded header; an element without one is nobody."""
    return [found[1] if (found := _FOR.search(element)) else "" for element in value.split(",")]


def _is_loopback(address: Address | None) -> bool:
    return address is not None and address.is_loopback


def _is_in(address: Address, networks: Sequence[Network]) -> bool:
    return any(address in network for network in networks)
