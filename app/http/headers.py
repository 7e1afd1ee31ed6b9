"""Headers that Steno sends to providers and returns to clients. Names are in lower case. Order and repeated names stay.

In a request to a provider, `steno-hops` lists the Steno instances that the request has passed, this instance last. If
the request comes back, Steno refuses it (`admission.check_hops`). False hops from a client harm only its own request.

Proxies name the client's address in headers. Any client can send proxy headers. Steno trusts their values only from a
proxy in the settings. From any other peer, such a header shows only that the request may come from another machine.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

from app.http.credentials import CREDENTIALS

Headers = list[tuple[bytes, bytes]]

PREFIX = b"x-context-"
"""Prefix of Steno's own headers. Only `CALL` is sent to providers."""

# Headers of requests.
CONVERSATION_ID = b"x-context-conversation-id"
"""Header of requests and answers with the conversation's name, percent-encoded."""
COMPACTION = b"x-context-compaction"
PRESET = b"x-context-preset"
RECALL = b"x-context-recall"
EVENTS = b"x-context-events"

# Headers of answers.
STATUS = b"x-context-status"
ACTIONS = b"x-context-actions"
REQUEST_ID = b"x-context-request-id"
TOKENS_BEFORE = b"x-context-tokens-before"
TOKENS_AFTER = b"x-context-tokens-after"
WINDOW = b"x-context-window"
REASON = b"x-context-reason"

# Header between Stenos.
CALL = b"x-context-call"
"""Header that marks a summary call, so that another Steno does not compact it."""

EVENT_STREAM = "text/event-stream"
HOPS = b"steno-hops"
"""Header with the hops. Its name does not begin with `x-context-`, because earlier releases drop such headers."""
_INSTANCE = re.compile(rb"[0-9a-f]{16}")
_REQUEST = re.compile(rb"req_[0-9a-f]{24}")

HOP_BY_HOP = frozenset(
    b"connection keep-alive te trailer transfer-encoding upgrade"
    b" proxy-authenticate proxy-authorization proxy-connection".split()
)
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
NOT_FORWARDED = HOP_BY_HOP | TOLD_BY_PROXIES | {b"host", b"cookie", b"expect"}
NOT_FORWARDED_PREFIXES = (*TOLD_BY_PROXIES_PREFIXES, PREFIX)
NOT_FORWARDED_READ = NOT_FORWARDED | {b"accept-encoding", b"content-length"}
"""Headers that are not forwarded if Steno has to read the answer."""
SUMMARY_CALL = (CALL, b"summary")
FOR_OTHER_PROVIDERS = {CALL, HOPS} | frozenset(
    b"accept accept-encoding content-encoding content-length content-type user-agent range"
    b" if-match if-modified-since if-none-match if-range if-unmodified-since"
    b" anthropic-beta anthropic-version openai-beta"
    b" idempotency-key traceparent tracestate x-client-request-id".split()
)
FOR_OTHER_PROVIDERS_PREFIX = b"x-stainless-"
"""Prefix of the headers in which OpenAI's SDKs describe themselves."""

NOT_RETURNED = HOP_BY_HOP | frozenset(
    b"accept-ch alt-svc clear-site-data critical-ch expect-ct nel origin-agent-cluster public-key-pins refresh"
    b" report-to reporting-endpoints service-worker-allowed strict-transport-security"
    # Instructions to a server in front of Steno to answer with one of its files or another address.
    b" x-accel-redirect x-litespeed-location x-lighttpd-send-file x-lighttpd-send-tempfile x-reproxy-url"
    b" x-sendfile x-sendfile2".split()
)
"""Headers of providers that Steno does not return to clients: they concern a connection, all of Steno's host, or a
server in front of Steno. `set-cookie` is harmless, because Steno does not forward cookies to providers."""
NOT_RETURNED_CHANGED = NOT_RETURNED | {b"content-length"}
"""Headers that are not returned if Steno changes the body."""
NOT_RETURNED_PREFIXES = (b"access-control-",)
"""Prefixes of headers that are not returned: Steno sends its own CORS headers."""

NOT_FOR_SUMMARIES = frozenset(
    b"content-length content-type content-encoding accept accept-encoding idempotency-key".split()
)

FRAMING = frozenset((b"content-length", b"transfer-encoding", b"connection"))
"""Headers that determine where an answer ends, and whether the connection is closed after the answer."""
_IN_NAMES = bytes(set(range(0x100)) - {*range(0x21), 0x7F, *b'()<>@,;:[]={}\\"'})
_IN_VALUES = bytes(set(range(0x100)) - {*range(0x20), 0x7F} | {0x09})

LONGEST_SHOWN = 100
WITH_A_MEANING = (
    NOT_FORWARDED
    | CREDENTIALS
    | {HOPS}
    | frozenset(
        b"cache-control early-data http2-settings idempotency-key max-forwards set-cookie upgrade-insecure-requests"
        b" user-agent x-conversation-id x-http-method-override x-method-override x-original-url x-rewrite-url".split()
    )
)
FAMILIES = (*NOT_FORWARDED_PREFIXES, *b"accept- access-control- content- if- proxy- sec- transfer-".split())


def shadowed_by(name: bytes) -> bytes | None:
    """Replace underscores in a name by hyphens. Return this other name if Steno or HTTP gives it a meaning, else None.

    Some servers treat underscores as hyphens. A client could use underscores to get a header past Steno's rules.
    """
    hyphenated = name.replace(b"_", b"-")
    known = hyphenated in WITH_A_MEANING or hyphenated.startswith(FAMILIES)
    return hyphenated if known and hyphenated != name else None


def shown(name: bytes) -> str:
    return name[:LONGEST_SHOWN].decode("latin-1")


def value_of(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> str | None:
    return next((value.decode("latin-1") for key, value in headers if key == name), None)


def forwarded(headers: Headers, read_here: bool) -> Headers:
    """Return the client's headers for the provider. `read_here`: Steno reads the answer and needs it uncompressed."""
    dropped = NOT_FORWARDED_READ if read_here else NOT_FORWARDED
    if named := _named_by_connection(headers):
        dropped |= named
    kept = [
        header for header in headers if header[0] not in dropped and not header[0].startswith(NOT_FORWARDED_PREFIXES)
    ]
    if SUMMARY_CALL in headers:
        kept.append(SUMMARY_CALL)
    if read_here:
        kept.append((b"accept-encoding", b"identity"))
    return kept


def for_summary(headers: Headers) -> Headers:
    """Return the client's headers for a summary call: credentials and routing, without headers about the client's body.

    The call has no hops, because it begins at this instance.
    """
    kept = [
        (name, value)
        for name, value in forwarded(headers, read_here=False)
        if name not in NOT_FOR_SUMMARIES and name not in (CALL, HOPS) and not name.startswith(b"x-stainless-")
    ]
    return [
        *kept,
        (b"content-type", b"application/json"),
        (b"accept", b"application/json"),
        (b"accept-encoding", b"identity"),
        SUMMARY_CALL,
    ]


def with_missing(headers: Headers, needed: Iterable[tuple[bytes, bytes]]) -> Headers:
    said = {name for name, _ in headers}
    return [*headers, *(header for header in needed if header[0] not in said)]


def returned(
    headers: Iterable[tuple[bytes, bytes]], own: Sequence[tuple[bytes, bytes]] = (), *, body_changed: bool = False
) -> Headers:
    """Return the provider's headers for the client, followed by `own`. Drop the provider's `x-context-*` headers,
    unless the provider is another Steno and `own` is empty. With `body_changed` drop the content length, too."""
    listed = list(headers)
    prefixes = NOT_RETURNED_PREFIXES if not own and are_of_steno(listed) else (*NOT_RETURNED_PREFIXES, PREFIX)
    dropped = NOT_RETURNED_CHANGED if body_changed else NOT_RETURNED
    if named := _named_by_connection(listed):
        dropped |= named
    kept = [header for header in listed if header[0] not in dropped and not header[0].startswith(prefixes)]
    kept += own
    return kept


def are_of_steno(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Return whether these headers come from an answer of another Steno."""
    for name, value in headers:
        if name == REQUEST_ID:
            return _REQUEST.fullmatch(value) is not None
    return False


def media_type(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """Return the media type of a body, without parameters; empty for an encoded body, which Steno cannot read."""
    encoding = kind = None
    for name, value in headers:
        if name == b"content-type" and kind is None:
            kind = value
        elif name == b"content-encoding" and encoding is None:
            encoding = value
    if kind is None or (encoding or b"identity") != b"identity":
        return ""
    return kind.partition(b";")[0].strip().lower().decode("latin-1")


def _named_by_connection(headers: Iterable[tuple[bytes, bytes]]) -> frozenset[bytes]:
    found: frozenset[bytes] = frozenset()
    for name, value in headers:
        if name == b"connection":
            found |= {*map(bytes.strip, value.lower().split(b","))}
    return found


def written(headers: Headers) -> bytes:
    """Return the headers as lines of HTTP/1.1. Raises `RuntimeError` for bytes that could begin another header."""
    lines = b"\r\n".join([*map(b": ".join, headers), b""])
    names = b"".join([name for name, _ in headers])
    if lines.translate(None, _IN_VALUES) != b"\r\n" * len(headers) or names.translate(None, _IN_NAMES):
        raise RuntimeError("A header holds bytes that end a line or a word.")
    return lines


def for_other_providers(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Return the client's headers that Steno may send with the operator's key. Names must be in lower case.

    All other headers are left out, because a client may send a secret under any name.
    """
    return [(n, v) for n, v in headers if n in FOR_OTHER_PROVIDERS or n.startswith(FOR_OTHER_PROVIDERS_PREFIX)]


def new_instance() -> bytes:
    """Return a random name for this process of Steno."""
    return secrets.token_hex(8).encode()


def hops_in(headers: Iterable[tuple[bytes, bytes]]) -> list[bytes]:
    named = [value for name, value in headers if name == HOPS]
    if not named:
        return []
    return [hop for part in b",".join(named).split(b",") if _INSTANCE.fullmatch(hop := part.strip())]


def with_hop(headers: Iterable[tuple[bytes, bytes]], instance: bytes) -> list[tuple[bytes, bytes]]:
    listed = list(headers)
    hops = hops_in(listed)
    kept = [header for header in listed if header[0] != HOPS]
    kept.append((HOPS, b", ".join((*hops, instance))))
    return kept


Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

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
    """Return the chain of addresses in `x-forwarded-for`, and the chain in `forwarded`, if these headers are present.
    An element of `forwarded` without `for` becomes an empty address."""
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
