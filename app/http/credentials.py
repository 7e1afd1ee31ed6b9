"""Credentials: what says who calls and who pays. For whose a request is, and for what an upstream is shown."""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import unquote_to_bytes

from app.http.hops import HOPS
from app.http.own_headers import CALL

KEYS = frozenset(
    {
        b"authorization",
        b"api-key",  # Azure OpenAI
        b"x-api-key",  # Anthropic
        b"x-goog-api-key",  # Gemini
        b"ocp-apim-subscription-key",  # Azure API Management
        b"apikey",  # Kong
        b"cf-aig-authorization",  # Cloudflare's AI gateway; the others are gateways, too
        b"helicone-auth",
        b"x-litellm-api-key",
        b"x-portkey-api-key",
    }
)
"""Headers whose value only the caller knows."""
ACCOUNTS = frozenset({b"openai-organization", b"openai-project", b"x-goog-user-project"})
"""Headers that choose who pays, among those that the key may choose from."""
CREDENTIALS = KEYS | ACCOUNTS

FOR_ANYBODY = frozenset(
    {
        b"accept",
        b"accept-encoding",
        b"anthropic-beta",
        b"anthropic-version",
        b"content-encoding",
        b"content-length",
        b"content-type",
        b"idempotency-key",
        b"if-match",
        b"if-modified-since",
        b"if-none-match",
        b"if-range",
        b"if-unmodified-since",
        b"openai-beta",
        b"range",
        b"traceparent",
        b"tracestate",
        b"user-agent",
        b"x-client-request-id",
        CALL,
        HOPS,
    }
)
FOR_ANYBODY_PREFIX = b"x-stainless-"
"""Beginning of the headers in which OpenAI's SDKs tell of themselves."""


def for_anybody(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Headers for a provider that the caller did not choose, or does not pay. Names are in lower case.

    A list of what may pass, not of what may not: a caller's headers may hold any secret under any name.
    """
    return [(n, v) for n, v in headers if n in FOR_ANYBODY or n.startswith(FOR_ANYBODY_PREFIX)]


QUERY_KEYS = frozenset({b"key", b"api_key", b"api-key", b"apikey", b"access_token", b"subscription-key"} | KEYS)
"""Parameters of a query whose value only the caller knows: Gemini's, Azure API Management's, OAuth's, gateways'."""

_BEARER = re.compile(rb"\Abearer(\s+|\Z)", re.IGNORECASE)
_SCHEMES = {b"basic": b"Basic", b"token": b"Token", b"apikey": b"ApiKey", b"api-key": b"Api-Key"}
"""Schemes as they are usually written; any case means the same."""


def keys_in(headers: Iterable[tuple[bytes, bytes]], query: bytes = b"") -> list[bytes]:
    """Each key of a request once, in order of their bytes, without its `Bearer`. Names are in lower case.

    Also those of a header or parameter that is repeated: a provider may read any of them.
    """
    sent = [value for name, value in headers if name in KEYS]
    if query:
        sent += [value for name, value in map(_parameter, query.split(b"&")) if name in QUERY_KEYS]
    return sorted({without_scheme(value.strip()) for value in sent} - {b""})


def sends_key(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether a header holds a key, which no page can have a browser send without asking first."""
    return any(name in KEYS and without_scheme(value.strip()) for name, value in headers)


def without_keys(query: bytes) -> bytes:
    """The query's other parameters, as they are."""
    return b"&".join(given for given in query.split(b"&") if _parameter(given)[0] not in QUERY_KEYS)


def keys_alone(query: bytes) -> bytes:
    """The query's keys, as they are, without the other parameters."""
    return b"&".join(given for given in query.split(b"&") if _parameter(given)[0] in QUERY_KEYS)


def _parameter(given: bytes) -> tuple[bytes, bytes]:
    name, _, value = given.partition(b"=")
    return decoded(name).lower(), decoded(value)


def decoded(text: bytes) -> bytes:
    """Text of a query without its escapes."""
    return unquote_to_bytes(text.replace(b"+", b" "))


def without_scheme(value: bytes) -> bytes:
    """Value of a header without its `Bearer`; other schemes are written as usual."""
    value = _BEARER.sub(b"", value)
    scheme, space, rest = value.partition(b" ")
    usual = _SCHEMES.get(scheme.lower()) if space else None
    return value if usual is None else usual + b" " + rest.strip()
