"""Withholding: what callers send for Steno itself, which no provider is to see."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from app.edge.credentials import OWN_KEY, decoded, without_scheme
from app.edge.jwts import claims_in


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
        kept = [each for each in given if not self._is_ours(decoded(each).partition(b"=")[2] or decoded(each))]
        return query if len(kept) == len(given) else b"&".join(kept)

    def _is_ours(self, value: bytes) -> bool:
        if OWN_KEY in value:
            return True
        if not self.issuers or (claims := claims_in(without_scheme(value.strip()))) is None:
            return False
        issuer = claims.get("iss")
        return isinstance(issuer, str) and issuer in self.issuers
