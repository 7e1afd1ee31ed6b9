"""Credentials: API keys in headers and queries, and proxy headers with the address of a client.

Any client can send proxy headers. Steno trusts their values only from a proxy in the settings. From any other peer,
such a header shows only that the request may come from another machine.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from urllib.parse import unquote_to_bytes

KEYS = frozenset(
    {
        b"authorization",
        b"api-key",  # Azure OpenAI
        b"x-api-key",  # Anthropic
        b"x-goog-api-key",  # Gemini
        b"ocp-apim-subscription-key",  # Azure API Management
        b"apikey",  # Kong
        b"cf-aig-authorization",  # Cloudflare's AI gateway; other gateways' headers follow
        b"helicone-auth",
        b"x-litellm-api-key",
        b"x-portkey-api-key",
    }
)
"""Headers with secret keys of clients."""
ACCOUNTS = frozenset({b"openai-organization", b"openai-project", b"x-goog-user-project"})
"""Headers that choose the account to bill, among the accounts of the key."""
CREDENTIALS = KEYS | ACCOUNTS

QUERY_KEYS = frozenset({b"key", b"api_key", b"api-key", b"apikey", b"access_token", b"subscription-key"} | KEYS)
"""Query parameters with keys: of Gemini, Azure API Management, OAuth and gateways, and all names in `KEYS`."""

_BEARER = re.compile(rb"\Abearer(\s+|\Z)", re.IGNORECASE)
_SCHEMES = {b"basic": b"Basic", b"token": b"Token", b"apikey": b"ApiKey", b"api-key": b"Api-Key"}
"""Usual spelling of authentication schemes, which are case-insensitive."""


def keys_in(headers: Iterable[tuple[bytes, bytes]], query: bytes = b"") -> list[bytes]:
    """Return all distinct keys of a request, sorted, without `Bearer`. Header names must be in lower case.

    Repeated headers and parameters all count, because a provider may read any of them.
    """
    sent = [value for name, value in headers if name in KEYS]
    if query:
        sent += [value for name, value in map(_parameter, query.split(b"&")) if name in QUERY_KEYS]
    return sorted({without_scheme(value.strip()) for value in sent} - {b""})


def sends_key(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """True if a header holds a key. A web page cannot send a key header without a CORS preflight."""
    return any(name in KEYS and without_scheme(value.strip()) for name, value in headers)


def without_keys(query: bytes) -> bytes:
    return b"&".join(given for given in query.split(b"&") if _parameter(given)[0] not in QUERY_KEYS)


def keys_alone(query: bytes) -> bytes:
    return b"&".join(given for given in query.split(b"&") if _parameter(given)[0] in QUERY_KEYS)


def _parameter(given: bytes) -> tuple[bytes, bytes]:
    name, _, value = given.partition(b"=")
    return decoded(name).lower(), decoded(value)


def decoded(text: bytes) -> bytes:
    return unquote_to_bytes(text.replace(b"+", b" "))


def without_scheme(value: bytes) -> bytes:
    """Return a header's value without `Bearer`, and with the usual spelling of other schemes."""
    value = _BEARER.sub(b"", value)
    scheme, space, rest = value.partition(b" ")
    usual = _SCHEMES.get(scheme.lower()) if space else None
    return value if usual is None else usual + b" " + rest.strip()


Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

TOLD_BY_PROXIES = frozenset(
    b"forwarded via cdn-loop client-ip remote-addr remote-user true-client-ip wl-proxy-client-ip"
    b" x-arr-clientcert x-client-ip x-client-port x-cluster-client-ip x-coming-from x-nf-client-connection-ip"
    b" x-originating-ip x-proxyuser-ip x-real-ip x-real-port x-remote-addr x-remote-ip x-remote-user x-webauth-user"
    b" cf-connecting-ip cf-connecting-ipv6 cf-connecting-o2o cf-ew-via cf-ipcity cf-ipcontinent cf-ipcountry"
    b" cf-iplatitude cf-iplongitude cf-pseudo-ipv4 cf-ray cf-region cf-visitor cf-worker"
    b" fastly-client fastly-client-ip fastly-ff fastly-ssl fly-client-ip fly-region".split()
)
"""Headers in which proxies describe a request's client, route or signed-in user."""
TOLD_BY_PROXIES_PREFIXES = (
    # Not all of `cf-`, because clients send `cf-aig-` headers to Cloudflare's AI gateway as an upstream.
    *b"x-forwarded- x-original- x-envoy- x-appengine- x-azure- cf-access- cloudfront- x-auth-request- x-amzn-oidc-"
    b" x-goog-authenticated-user- x-goog-iap- x-ms-client-principal x-vercel-".split(),
)

_FOR = re.compile(r'(?:^|;)\s*for\s*=\s*("(?:[^"\\]|\\.)*"|[^;,\s"]+)', re.IGNORECASE)
_WITH_PORT = re.compile(r"\[([^\]]+)\](?::\d+)?|([0-9.]+):\d+")


def is_trusted(peer: str, trusted: Sequence[Network]) -> bool:
    """True if the peer is a trusted proxy; False if its address is unknown."""
    address = read_address(peer)
    return address is not None and _is_in(address, trusted)


def is_from_this_machine(headers: Iterable[tuple[bytes, bytes]], peer: str, trusted: Sequence[Network]) -> bool:
    """True if the client is certainly on this machine.

    Behind a trusted proxy, `x-forwarded-for` or `forwarded` must name a loopback client. If both headers are present,
    both must name one, because a proxy may set one header and forward the client's own value of the other.
    """
    address, listed = read_address(peer), list(headers)
    if address is None:
        return False
    if not _is_in(address, trusted):
        is_direct = not any(n in TOLD_BY_PROXIES or n.startswith(TOLD_BY_PROXIES_PREFIXES) for n, _ in listed)
        return address.is_loopback and is_direct
    clients = [_client(way, trusted) for way in _ways(listed)]
    return bool(clients) and all(client is not None and client.is_loopback for client in clients)


def client_of(headers: Iterable[tuple[bytes, bytes]], peer: str, trusted: Sequence[Network]) -> str:
    """Return the client's IPv4 address, or the /64 network of its IPv6 address; empty if unknown.

    This is the peer's address, unless the peer is a trusted proxy whose headers name one client unambiguously.
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
    named = named.strip().strip('"')
    with_port = _WITH_PORT.fullmatch(named)
    try:
        address = ip_address((with_port[1] or with_port[2]) if with_port else named)
    except ValueError:
        return None
    return (address.ipv4_mapped or address) if isinstance(address, IPv6Address) else address


def _ways(headers: Iterable[tuple[bytes, bytes]]) -> list[list[str]]:
    """Return a chain of addresses for each of `x-forwarded-for` and `forwarded` that is present. An element of
    `forwarded` without `for` is empty."""
    listed, ways = list(headers), []
    if sent := [value for name, value in listed if name == b"x-forwarded-for"]:
        ways.append(b",".join(sent).decode("latin-1").split(","))
    if sent := [value for name, value in listed if name == b"forwarded"]:
        elements = b",".join(sent).decode("latin-1").split(",")
        ways.append([found[1] if (found := _FOR.search(element)) else "" for element in elements])
    return ways


def _client(way: Sequence[str], trusted: Sequence[Network]) -> Address | None:
    """Return the last address that is no trusted proxy; None if it is invalid. If all are trusted, return the first."""
    address = None
    for named in reversed(way):
        address = read_address(named)
        if address is None or not _is_in(address, trusted):
            break
    return address


def _is_in(address: Address, networks: Sequence[Network]) -> bool:
    return any(address in network for network in networks)
