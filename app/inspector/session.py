"""Sessions of the inspector: signed cookies that contain the visible tenant. Steno stores no sessions.

A session begins with an API key, with the operator's password, or without sign-in if the server accepts callers without
credentials. The cookie contains the tenant of an API key, and not the key.
"""

from __future__ import annotations

import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections import deque
from collections.abc import Callable
from hashlib import blake2b
from hmac import compare_digest
from time import monotonic, time

import msgspec
import structlog
from msgspec import Struct
from msgspec.structs import astuple

from app.proxy.caller import ANONYMOUS
from app.runtime.bounded import MOST_REMEMBERED, BoundedMap, LogThrottle

COOKIE = "steno_inspector"
OPERATORS_COOKIE = "steno_operator"
"""Cookie of the operator's listener. It has its own name, because browsers send a host's cookies to all its ports."""
OVER_TLS = "__Host-"
"""Prefix of cookie names over TLS. Browsers accept such a cookie only over TLS, and for this host and all its paths."""
LASTS_SECONDS = 12 * 3600
SEALED_AS = b"session 3"
"""Input of a cookie's signature. Change it with the members of `Session`, so that older cookies are refused."""
_MAC_BYTES = 32
_LONGEST_COOKIE = 2_000


class Session(Struct, frozen=True):
    tenant: str
    """Shown tenant; empty if an operator has chosen none yet."""
    operator: bool
    """True for the operator, who may choose any tenant."""
    expires: int
    """Milliseconds since 1970."""
    id: str
    """Random id, from which the token of the session's forms is derived."""

    @property
    def is_signed_in(self) -> bool:
        """True if the session began with a key or the operator's password."""
        return self.operator or self.tenant != ANONYMOUS


class Sessions:
    """Reads and writes session cookies, valid for all replicas with the same secret and password. A change of either
    ends all sessions."""

    def __init__(self, secret: bytes, password: str | None = None, clock: Callable[[], float] = time) -> None:
        """`clock`: returns seconds since 1970."""
        self._password = None if password is None else password.encode()
        key = blake2b(secret, digest_size=32, person=b"steno-inspector").digest()
        self._key = blake2b(self._password or b"", key=key, digest_size=32).digest()
        self._clock = clock

    def accepts(self, password: str) -> bool:
        return self._password is not None and compare_digest(password.encode(), self._password)

    def opened(self, tenant: str, *, operator: bool = False) -> Session:
        expires = int(1_000 * (self._clock() + LASTS_SECONDS))
        return Session(tenant, operator, expires, secrets.token_urlsafe(12))

    def seal(self, session: Session) -> str:
        content = msgspec.json.encode(astuple(session))
        return urlsafe_b64encode(self._mac(SEALED_AS, content) + content).rstrip(b"=").decode()

    def unseal(self, cookie: str) -> Session | None:
        """Return the session of a cookie; None if the cookie is not valid or the session has expired."""
        try:
            sealed = urlsafe_b64decode(cookie[:_LONGEST_COOKIE].encode() + b"==")
        except ValueError:
            return None
        mac, content = sealed[:_MAC_BYTES], sealed[_MAC_BYTES:]
        if not compare_digest(mac, self._mac(SEALED_AS, content)):
            return None
        session = Session(*msgspec.json.decode(content, type=tuple[str, bool, int, str]))
        return session if session.expires > 1_000 * self._clock() else None

    def form_token(self, session: Session) -> str:
        """Return the CSRF token of the session's forms. Other sites cannot read it."""
        return self._mac(b"form", session.id.encode()).hex()

    def sent_from_form(self, session: Session, token: str) -> bool:
        return compare_digest(self.form_token(session).encode(), token.encode(errors="replace"))

    def _mac(self, purpose: bytes, content: bytes) -> bytes:
        return blake2b(content, key=self._key, digest_size=_MAC_BYTES, person=purpose.ljust(16, b"\0")).digest()


MOST_GUESSES = 10
PERIOD_SECONDS = 600.0

log = structlog.get_logger("steno.inspector")


class Guesses:
    """Wrong sign-ins by address. Each process counts for itself, so several processes allow more guesses."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._made: BoundedMap[str, deque[float]] = BoundedMap(MOST_REMEMBERED)
        """Times of the latest guesses of each address, the oldest first."""
        self._throttle = LogThrottle(clock)

    def wait(self, address: str) -> float:
        """Return the seconds until the address may guess again; 0 for now."""
        made = self._made.get(address)
        if made is None or len(made) < MOST_GUESSES:
            return 0.0
        return max(0.0, made[0] + PERIOD_SECONDS - self._clock())

    def count(self, address: str) -> None:
        """Count a wrong guess, or one that was refused unread after too many wrong ones."""
        if not (refused := self.wait(address) > 0):
            made = self._made.get(address) or deque(maxlen=MOST_GUESSES)
            made.append(self._clock())
            self._made.keep(address, made)
        if (times := self._throttle.count(address)) is not None:
            log.warning("sign-in guessed", address=address, refused=refused, times=times)
