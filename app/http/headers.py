"""Headers that Steno sends to providers and returns to clients. Names are in lower case. Order and repeats stay.

In a request to a provider, `steno-hops` lists the Steno instances that the request has passed, this instance last. If
the request comes back, Steno refuses it (`admission.check_hops`). False hops from a client harm only its own request.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Sequence

from app.http.credentials import CREDENTIALS, TOLD_BY_PROXIES, TOLD_BY_PROXIES_PREFIXES

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
"""Headers that determine where an answer ends, and whether the connection is closed after it."""
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
    """Return a name with hyphens in place of underscores, if this other name has a meaning to Steno or HTTP; else None.

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
