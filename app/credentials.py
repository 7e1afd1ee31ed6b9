"""Credentials: headers that say who calls and who pays. For whose a request is, and for what an upstream is shown."""

from __future__ import annotations

import re
from collections.abc import Iterable

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

_BEARER = re.compile(rb"\Abearer(\s+|\Z)", re.IGNORECASE)


def keys_in(headers: Iterable[tuple[bytes, bytes]]) -> list[bytes]:
    """Each key of a request once, in order of their bytes, without its `Bearer`. Names are in lower case.

    Of a header that is repeated the last one counts.
    """
    sent = {name: value for name, value in headers if name in KEYS}
    keys = {_BEARER.sub(b"", value.strip()) for value in sent.values()}
    return sorted(keys - {b""})
