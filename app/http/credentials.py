"""Credentials: API keys in headers and queries."""

from __future__ import annotations

import re
from collections.abc import Iterable
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
"""Headers that choose which account of the key is billed."""
CREDENTIALS = KEYS | ACCOUNTS

QUERY_KEYS = frozenset({b"key", b"api_key", b"api-key", b"apikey", b"access_token", b"subscription-key"} | KEYS)
"""Query parameters that contain keys for Gemini, Azure API Management, OAuth or gateways, and all names in `KEYS`."""

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
