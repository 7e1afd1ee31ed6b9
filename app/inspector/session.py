"""Sessions: who may look, and at whose data. What the cookie holds is no secret; nobody else can make one.

Three ways lead in: an API key that is pasted and turned into its tenant at once, the operator's link, and, where the
server serves callers without credentials, none at all.
"""

from __future__ import annotations

import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Mapping
from hashlib import blake2b
from hmac import compare_digest
from math import inf
from time import time

import msgspec
from msgspec import Struct
from msgspec.structs import astuple

from app.inspector.links import LINK_SECONDS, inspector_key, issued_at
from app.proxy.tenants import ANONYMOUS

COOKIE = "steno_inspector"
OPERATORS_COOKIE = "steno_operator"
"""Cookie of the operator's listener: a browser sends those of one host to all of its ports."""
OVER_TLS = "__Host-"
"""Beginning of a cookie's name with which a browser takes it over TLS only, from this host only, for all its paths."""
LASTS_SECONDS = 12 * 3600
OPERATORS = "operators"
"""Id by which the sessions and links of all operators are revoked; no session has it for its own."""
SEALED_AS = b"session 2"
"""Purpose of a cookie's seal. Where its members change, so does this: older cookies then count for nothing."""
_MAC_BYTES = 32
_LONGEST_COOKIE = 2_000


class Session(Struct, frozen=True):
    tenant: str
    """Tenant whose data are shown; empty for an operator who has chosen nobody."""
    operator: bool
    """True where the session may change the tenant."""
    expires: int
    """End of the session in milliseconds since 1970."""
    id: str
    """Id that the session's forms are bound to, and by which it is revoked."""
    key: str = ""
    """Id of the key of Steno's that opened it, without which it ends."""

    @property
    def is_signed_in(self) -> bool:
        """True where somebody signed in; else the session is of whoever needs no key here and now, and has no end."""
        return self.operator or self.tenant != ANONYMOUS

    @property
    def revoked_by(self) -> tuple[str, ...]:
        """Ids whose revocation may end the session."""
        return (self.id, OPERATORS) if self.operator else (self.id,)

    def is_over(self, revoked: Mapping[str, int]) -> bool:
        """True once the session has ended. `revoked`: when ids were revoked, in milliseconds since 1970."""
        opened = self.expires - 1_000 * LASTS_SECONDS
        return self.id in revoked or (self.operator and opened <= revoked.get(OPERATORS, -1))


class Sessions:
    """Sessions, kept nowhere but in their cookies: every worker and replica knows them, and none outlives a new server
    secret. The store knows which of them ended before their time: see `is_over`."""

    def __init__(self, secret: bytes, clock: Callable[[], float] = time) -> None:
        """`clock` gives seconds since 1970."""
        self._secret = secret
        self._key = inspector_key(secret)
        self._clock = clock

    def opened(
        self, tenant: str, *, operator: bool = False, link: str | None = None, key: str = "", until: float = inf
    ) -> Session:
        """New session. `link`: id of the link that opens it; `key`: of the key; `until`: end of the key or token in
        seconds since 1970."""
        expires = int(1_000 * min(self._clock() + LASTS_SECONDS, until))
        return Session(tenant, operator, expires, link or secrets.token_urlsafe(12), key)

    def issued_at(self, token: str) -> int | None:
        """Milliseconds since 1970 at which the token of an operator's link was made; None if this server did not."""
        return issued_at(self._secret, token)

    def opens(self, issued: int, revoked: Mapping[str, int]) -> bool:
        """True where a link that was made then opens a session now."""
        return revoked.get(OPERATORS, -1) < issued and 1_000 * self._clock() < issued + 1_000 * LINK_SECONDS

    def seal(self, session: Session) -> str:
        """Value of the session's cookie."""
        content = msgspec.json.encode(astuple(session))
        return urlsafe_b64encode(self._mac(SEALED_AS, content) + content).rstrip(b"=").decode()

    def unseal(self, cookie: str) -> Session | None:
        """Session of a cookie; None for what this server did not seal, or no longer counts."""
        try:
            sealed = urlsafe_b64decode(cookie[:_LONGEST_COOKIE].encode() + b"==")
        except ValueError:
            return None
        mac, content = sealed[:_MAC_BYTES], sealed[_MAC_BYTES:]
        if not compare_digest(mac, self._mac(SEALED_AS, content)):
            return None
        session = Session(*msgspec.json.decode(content, type=tuple[str, bool, int, str, str]))
        return session if session.expires > 1_000 * self._clock() else None

    def form_token(self, session: Session) -> str:
        """Token that a form of this session carries: another page can send the cookie along, but cannot read this."""
        return self._mac(b"form", session.id.encode()).hex()

    def sent_from_form(self, session: Session, token: str) -> bool:
        return compare_digest(self.form_token(session).encode(), token.encode(errors="replace"))

    def _mac(self, purpose: bytes, content: bytes) -> bytes:
        return blake2b(content, key=self._key, digest_size=_MAC_BYTES, person=purpose.ljust(16, b"\0")).digest()
