"""Proofs: whether a provider takes a token for what it says, which Steno cannot verify itself.

Theory: anybody can write any account into a token, and sign it himself. Its provider knows the signature. So it is
asked for its models twice, with nothing else that is secret: with the token, and with the same one under another
signature. Only if it answers the first and refuses the second as unknown (401) does it look at signatures, and does
this one hold. A server that answers everybody proves nothing, and neither does one that now and then forbids (403).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from time import monotonic, time
from typing import Any

import structlog
from msgspec import Struct

from app.edge.credentials import ACCOUNTS
from app.edge.upstream import Headers
from app.errors import StenoError
from app.providers.providers import Provider
from app.runtime.bounded import MOST_REMEMBERED, BoundedMap
from app.runtime.shared import SharedWork
from app.store import Store, StoreUnavailable
from app.store.tenant_links import find_proven, keep_proven

ASK_SECONDS = 5.0
UNPROVEN_SECONDS = 60.0
"""Time after which a token that proved nothing is tried again."""
LONGEST_SECONDS = 24 * 3600.0
"""Longest time for which a token counts as proven; none counts for longer than it says itself."""
ASKED_WITH = ACCOUNTS | {b"anthropic-version", b"chatgpt-account-id"}
OPENAI_CLAIM = "https://api.openai.com/auth"
ALTERED_BYTES = 8
REFUSAL = 401

log = structlog.get_logger("steno.clients")


class Proven(Struct, frozen=True):
    person: str
    """Tenant of the person that the token stands for."""
    until: float
    """End of the proof, by the monotonic clock."""


class Token(Struct, frozen=True):
    """An OAuth token as a caller sent it."""

    own: str
    """Tenant of the token itself."""
    value: bytes
    claims: Mapping[str, Any]
    headers: Headers
    """Headers that it came with."""


def lasting(claims: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Claims that stay the same when the token is refreshed; None where there are none."""
    issuer, subject = claims.get("iss"), claims.get("sub")
    if not (isinstance(issuer, str) and issuer and isinstance(subject, str) and subject):
        return None
    openai = claims.get(OPENAI_CLAIM)
    account = openai.get("chatgpt_account_id") if isinstance(openai, dict) else None
    return issuer, subject, account if isinstance(account, str) else ""


class Proofs:
    """Tokens that a provider took for what they say, in this process and in the database."""

    def __init__(self, store: Store, person_of: Callable[..., str]) -> None:
        """`person_of`: tenant of the person known by a provider's address and a token's lasting claims."""
        self._store = store
        self._person_of = person_of
        self._proven: BoundedMap[tuple[str, str | None], Proven] = BoundedMap(MOST_REMEMBERED)
        """Proofs by the token's own tenant and the person; None: whoever it is."""
        self._unproven: BoundedMap[tuple[str, str], bool] = BoundedMap(MOST_REMEMBERED, seconds=UNPROVEN_SECONDS)
        self._asking: SharedWork[Proven | None] = SharedWork()

    async def of(self, token: Token, provider: Provider | None) -> Proven | None:
        """Proof that a token stands for a person at its provider; without one, at any that it was proven at. None if
        that is not proven."""
        person = None
        if provider is not None:
            person = self._person_of(provider.settings.base_url, *(lasting(token.claims) or ()))
        known = self._proven.get((token.own, person))
        if known is not None and monotonic() < known.until:
            return known
        if (found := await self._stored(token.own, person)) is not None:
            self._proven.keep((token.own, person), found)
            return found
        if provider is None or person is None or provider.settings.api_key_env or (token.own, person) in self._unproven:
            return None
        return await self._asking.do((token.own, person), lambda: self._ask(token, person, provider))

    async def _stored(self, own: str, person: str | None) -> Proven | None:
        try:
            found = await self._store.request(find_proven, own, person)
        except StoreUnavailable:
            return None
        return None if found is None else Proven(found[0], monotonic() + found[1])

    async def _ask(self, token: Token, person: str, provider: Provider) -> Proven | None:
        seconds = _seconds_left(token.claims)
        # Not with another key beside it: that may be the one that is taken.
        sent = [(name, value) for name, value in token.headers if name in ASKED_WITH or token.value in value]
        other = altered(token.value)
        control = [(name, value.replace(token.value, other)) for name, value in sent]
        try:
            answers = await asyncio.gather(
                provider.upstream.ask(b"/v1/models", sent, ASK_SECONDS),
                provider.upstream.ask(b"/v1/models", control, ASK_SECONDS),
            )
        except StenoError as error:
            log.warning("token not proven", upstream=provider.name, reason=error.message)
            return None
        taken, refused = (answer.status for answer in answers)
        if control == sent or seconds <= 0 or not (200 <= taken < 300 and refused == REFUSAL):
            self._unproven.keep((token.own, person), True)
            reason = f"its provider answered {taken}, and {refused} with another signature"
            log.info("token not proven", upstream=provider.name, reason=reason)
            return None
        with suppress(StoreUnavailable):  # Other processes then ask for themselves.
            await self._store.change_at_once(keep_proven, token.own, person, seconds)
        proven = Proven(person, monotonic() + seconds)
        self._proven.keep((token.own, person), proven)
        return proven


def altered(token: bytes) -> bytes:
    """The same token with another signature of the same length."""
    signed, _, signature = token.rpartition(b".")
    # Its first bytes: the last one has bits that stand for nothing.
    there, after = signature[:ALTERED_BYTES], signature[ALTERED_BYTES:]
    return signed + b"." + bytes(ord("A") if each != ord("A") else ord("B") for each in there) + after


def _seconds_left(claims: Mapping[str, Any]) -> float:
    expires = claims.get("exp")
    if not isinstance(expires, int | float) or isinstance(expires, bool):
        return LONGEST_SECONDS / 24
    return min(max(expires - time(), 0.0), LONGEST_SECONDS)
