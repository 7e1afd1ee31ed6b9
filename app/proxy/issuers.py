"""Issuers: JWTs of those that are known, verified with their public keys. Without the keys nobody is let in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from hashlib import blake2b
from math import inf
from pathlib import Path
from time import monotonic, time
from typing import Any

import httpx2 as httpx
import jwt
import msgspec
import structlog
from msgspec import Struct

from app.edge.pool import trust
from app.edge.withheld import claims_of
from app.errors import IdentityUnavailable, InvalidCredentials
from app.runtime.bounded import MOST_REMEMBERED, BoundedMap

ALGORITHMS = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA"),
)
"""Signatures with a key pair. With a shared secret (HS256) whoever knows the public key could sign."""
LEEWAY_SECONDS = 30
"""Difference of clocks that is allowed, in seconds."""
FRESH_SECONDS = 270.0
"""Age in seconds from which keys are fetched anew. Nobody waits for it."""
TRUSTED_SECONDS = 540.0
"""Age in seconds from which a fetch is waited for: a key that was withdrawn is used no longer than that."""
USABLE_SECONDS = 24 * 3600.0
"""Age in seconds up to which keys are used while no new ones can be had."""
RETRY_SECONDS = 30.0
"""Shortest time between two fetches, whatever tokens ask for."""
FETCH_SECONDS = 5.0
MOST_BYTES = 1 << 20
MOST_KEYS = 100

_READER = jwt.PyJWT({"enforce_minimum_key_length": True})

log = structlog.get_logger("steno.clients")


def claims_in(token: bytes) -> Mapping[str, Any] | None:
    """Claims of a JWT, which nobody has verified; None for anything else."""
    return claims_of(token.split(b".")[1]) if token.count(b".") == 2 else None


class Verified(Struct, frozen=True):
    """Claim of a token that was verified."""

    claim: str
    expires: float
    """End of the token, in seconds since 1970."""


class Issuer:
    """One issuer of tokens and its public keys, from a file or a URL."""

    def __init__(
        self, issuer: str, audience: str, jwks: str, claim: str, clock: Callable[[], float] = monotonic
    ) -> None:
        self.name = issuer
        self._audience = audience
        self._source = jwks
        self._claim = claim
        self._clock = clock
        self._keys: tuple[jwt.PyJWK, ...] = ()
        self._fetched_at = self._tried_at = -inf
        self._fetching: asyncio.Task[None] | None = None
        self._verified: BoundedMap[bytes, Verified] = BoundedMap(MOST_REMEMBERED)
        """Tokens by their digests, as verified with the keys that are known now."""

    async def verified(self, token: bytes) -> Verified:
        """Verify a token. Raises `InvalidCredentials`, and `IdentityUnavailable` without the issuer's keys."""
        digest, kid = blake2b(token, digest_size=32).digest(), _kid_of(token)
        fetching = self._fetching_where_due(kid)
        if fetching is not None and not (self._age < TRUSTED_SECONDS and self._fitting(kid)):
            await asyncio.wait({fetching})
        if self._age >= USABLE_SECONDS:
            raise IdentityUnavailable(f"The keys of {self.name} cannot be had now. Try again in a moment.")
        known = self._verified.get(digest)
        if known is None or time() >= known.expires:
            known = self._check(token, self._fitting(kid))
            self._verified.keep(digest, known)
        return known

    @property
    def _age(self) -> float:
        """Age of the keys in seconds; infinite without any."""
        return self._clock() - self._fetched_at

    def _fetching_where_due(self, kid: str | None) -> asyncio.Task[None] | None:
        """Fetch under way, begun now where a key is unknown or the keys are old; None where there is none."""
        if self._fetching is not None and not self._fetching.done():
            return self._fetching
        is_due = self._age >= FRESH_SECONDS or not self._fitting(kid)
        if not is_due or (now := self._clock()) - self._tried_at < RETRY_SECONDS:
            return None
        self._tried_at = now
        self._fetching = asyncio.ensure_future(self._fetch())
        return self._fetching

    def _fitting(self, kid: str | None) -> list[jwt.PyJWK]:
        return [key for key in self._keys if kid is None or key.key_id == kid]

    def _check(self, token: bytes, keys: list[jwt.PyJWK]) -> Verified:
        why: Exception | None = None
        for key in keys:
            try:
                claims = _READER.decode(
                    token,
                    key,
                    algorithms=[key.algorithm_name],
                    audience=self._audience,
                    issuer=self.name,
                    leeway=LEEWAY_SECONDS,
                    options={"require": ["exp", "iss", "aud"]},
                )
            except (jwt.InvalidSignatureError, jwt.InvalidAlgorithmError) as error:
                why = error
                continue
            except jwt.PyJWTError as error:
                raise InvalidCredentials(f"The token of {self.name} is not valid: {error}.") from error
            claim = claims.get(self._claim)
            if not isinstance(claim, str | int) or isinstance(claim, bool) or not str(claim).strip():
                raise InvalidCredentials(f"The token of {self.name} has no claim {self._claim!r} that names anybody.")
            return Verified(str(claim), float(claims["exp"]) + LEEWAY_SECONDS)
        raise InvalidCredentials(f"The token of {self.name} is not signed with any of its keys.") from why

    async def _fetch(self) -> None:
        try:
            keys = _keys_in(await self._read())
        except (OSError, httpx.HTTPError, TimeoutError, ValueError, jwt.PyJWTError) as error:
            log.warning("keys of an issuer not fetched", issuer=self.name, reason=str(error) or type(error).__name__)
            return
        self._keys, self._fetched_at = keys, self._clock()
        self._verified.clear()

    async def _read(self) -> bytes:
        if "://" not in self._source:
            return await asyncio.to_thread(Path(self._source).read_bytes)
        is_tls = self._source.startswith("https:")
        async with (
            asyncio.timeout(FETCH_SECONDS),
            httpx.AsyncClient(verify=trust() if is_tls else False, trust_env=False, follow_redirects=False) as client,
            client.stream("GET", self._source) as answer,
        ):
            answer.raise_for_status()
            content = bytearray()
            async for piece in answer.aiter_bytes():
                content += piece
                if len(content) > MOST_BYTES:
                    raise ValueError(f"more than {MOST_BYTES} bytes came")
            return bytes(content)


def _kid_of(token: bytes) -> str | None:
    try:
        kid = jwt.get_unverified_header(token).get("kid")
    except jwt.PyJWTError as error:
        raise InvalidCredentials("The token is no JWT.") from error
    return kid if isinstance(kid, str) else None


def _keys_in(document: bytes) -> tuple[jwt.PyJWK, ...]:
    """Public keys that verify signatures. Raises `ValueError` where there is none."""
    content = msgspec.json.decode(document)
    listed = content.get("keys") if isinstance(content, dict) else None
    keys = []
    for each in listed[:MOST_KEYS] if isinstance(listed, list) else ():
        if not isinstance(each, dict) or each.get("use", "sig") != "sig" or each.get("kty") == "oct":
            continue
        try:
            key = jwt.PyJWK(each)
        except jwt.PyJWTError:
            continue  # Of a kind that is not known here: others verify with it.
        if key.algorithm_name in ALGORITHMS:
            keys.append(key)
    if not keys:
        raise ValueError("it holds no public key that is known here")
    return tuple(keys)
