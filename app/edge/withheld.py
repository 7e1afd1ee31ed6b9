"""Withholding: what callers send for Steno itself, which no provider is to see."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from jwt.utils import base64url_decode
from msgspec import Struct

from app.edge.credentials import OWN_KEY, decoded

_BETWEEN_DOTS = re.compile(rb"\.([\w=-]+)(?=\.)")
"""Parts of a value that may hold a token's claims, whatever stands before or behind the token."""


class Withheld(Struct, frozen=True):
    """Rules for what stays here: Steno's keys and tokens of its issuers, under whatever name, and the header that says
    who calls."""

    issuers: frozenset[str] = frozenset()
    header: bytes | None = None
    """Name of that header, in lower case."""

    def without(self, headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        """Headers for a provider. Names are in lower case."""
        return [(name, value) for name, value in headers if name != self.header and not self._is_ours(value)]

    def without_in(self, query: bytes) -> bytes:
        """The query for a provider."""
        given = query.split(b"&")
        kept = [each for each in given if not self._is_ours(decoded(each))]
        return query if len(kept) == len(given) else b"&".join(kept)

    def _is_ours(self, value: bytes) -> bool:
        """Whether a key or token of ours stands anywhere in a value."""
        if OWN_KEY in value:
            return True
        return bool(self.issuers) and any(self._is_issued(payload) for payload in _BETWEEN_DOTS.findall(value))

    def _is_issued(self, payload: bytes) -> bool:
        issuer = (claims_of(payload) or {}).get("iss")
        return isinstance(issuer, str) and issuer in self.issuers


def claims_of(payload: bytes) -> Mapping[str, Any] | None:
    """Claims in the middle part of a JWT, read as leniently as they are where it is verified; None if it is none."""
    try:
        claims = json.loads(base64url_decode(payload))
    except (ValueError, RecursionError):
        return None
    return claims if isinstance(claims, dict) else None
