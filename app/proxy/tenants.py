"""Tenants: whose a request is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from time import monotonic, time
from typing import Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from app.core.history.identity import Identity
from app.edge.credentials import OWN_KEY, keys_in
from app.edge.proxies import Network, client_of, is_from_this_machine, is_trusted
from app.edge.relayed import Headers
from app.errors import InvalidCredentials, MissingCredentials
from app.providers.proofs import Proofs, Token, lasting
from app.providers.providers import Provider
from app.proxy.issuers import Issuer, claims_in
from app.proxy.keyring import LOOK_SECONDS, Keyring
from app.runtime.bounded import MOST_REMEMBERED, BoundedMap
from app.store import StoreUnavailable
from app.store.client_keys import KeyLimits
from app.store.link_calls import LinkCalls
from app.store.tenant_links import Mark

ANONYMOUS = "anonymous"
LOOK_AGAIN_SECONDS = 60.0
"""Time after which a token is looked at again, and whether something is stored for a person's key: a replica that does
not know persons yet may have stored it."""
LONGEST_NAME = 500
"""Characters of what a proxy says about who calls."""

By = Literal["jwt", "header", "owner", "oauth", "single", "key", "session", "nothing"]
"""Ways in which a caller is known: `owner` by a key that Steno gave out; `session` is one of the inspector's."""


class Known(Struct, frozen=True):
    """Identity of a caller, and how it is known."""

    tenant: str
    by: By
    until: float = inf
    """End of that knowledge, by the monotonic clock: a token that says it expires."""
    mark: Mark = Mark(0, 0)
    """Mark of the links between tenants that it was found with."""
    roots: tuple[str, ...] = ()
    """Further tenants at whose digests its histories may begin."""
    limits: KeyLimits | None = None
    """Limits of the key that Steno gave out; None where it is no such key."""
    key: str = ""
    """Id of that key."""
    expires: float = inf
    """End of a key or token, in seconds since 1970."""

    @property
    def tenants(self) -> tuple[str, ...]:
        """Tenant and roots."""
        return self.tenant, *self.roots

    @property
    def is_proven(self) -> bool:
        """True where somebody whom the operator trusts says who it is."""
        return self.by in ("jwt", "header")


class Rules(Struct, frozen=True):
    """Ways to know a caller beside his key, as the operator allows them."""

    issuers: Mapping[str, Issuer] = {}
    header: bytes | None = None
    proofs: Proofs | None = None
    """Proofs of OAuth tokens; None where these are keys like others."""
    tenant: str | None = None
    """Name of the one tenant for all."""
    spends: bool = False
    """True if an upstream has the operator's key: then callers have to be known by a token, a header or Steno's key."""


class Claim(Struct, frozen=True):
    """Name that a request gives its sender, before anything is verified."""

    by: Literal["jwt", "header", "oauth", "single"]
    names: tuple[str, ...]
    """Names by which the sender is known, as far as they are known yet."""
    token: bytes = b""
    claims: Mapping[str, Any] = {}


def claim_of(
    rules: Rules, keys: Sequence[bytes], headers: Headers, peer: str, trusted: Sequence[Network]
) -> Claim | None:
    """The first thing in a request that says who sent it; None where the key is all there is. Raises
    `InvalidCredentials`."""
    said = None if rules.header is None else _said(rules.header, headers, is_trusted(peer, trusted))
    if rules.issuers or rules.proofs is not None:
        tokens = [(key, claims) for key in keys if (claims := claims_in(key)) is not None]
    else:
        tokens = []
    for token, claims in tokens:
        if isinstance(issuer := claims.get("iss"), str) and issuer in rules.issuers:
            return Claim("jwt", (issuer,), token)
    if said is not None:
        return Claim("header", (said,))
    for token, claims in tokens if rules.proofs is not None else ():
        if (names := lasting(claims)) is not None:
            return Claim("oauth", names, token, claims)
    return None if rules.tenant is None else Claim("single", (rules.tenant,))


def _said(name: bytes, headers: Headers, is_believed: bool) -> str | None:
    """Value of the header that says who calls; None where there is none, or it is empty."""
    values = [value.strip() for key, value in headers if key == name]
    if not values:
        return None
    shown = name.decode()
    if not is_believed:
        raise InvalidCredentials(f"{shown} is believed from the proxies in server.trusted_proxies only.", shown)
    if len(values) > 1 or len(values[0]) > LONGEST_NAME:
        raise InvalidCredentials(f"{shown} stands there more than once, or is too long: nobody knows who calls.", shown)
    return values[0].decode("latin-1") or None


@dataclass(slots=True)
class Tenants:
    """Tenants by a keyed digest of who calls: stored everywhere, and it gives nothing away.

    A key is the same one in whichever header it is sent: it is the secret that distinguishes callers. Of a request with
    several keys the tenant is whoever holds all of them: one of them alone may be a placeholder that many callers
    send, such as the key an SDK insists on beside the gateway's own.
    """

    identity: Identity
    allow_unauthenticated: bool | Literal["loopback"]
    trusted_proxies: Sequence[Network]
    links: LinkCalls
    rules: Rules | None = None
    """None where the key is all that says who calls."""
    keyring: Keyring | None = None
    """Keys that Steno gave out; None where it gives out none."""
    _seen: BoundedMap[tuple[str, str], bool] = field(
        default_factory=lambda: BoundedMap(MOST_REMEMBERED, seconds=LOOK_AGAIN_SECONDS)
    )
    """Persons with the keys that they were seen with lately: what was stored for these is theirs by now."""

    def is_local(self, headers: Iterable[tuple[bytes, bytes]], peer: str) -> bool:
        """True if the request, which `peer` sent, comes from this machine."""
        return is_from_this_machine(headers, peer, self.trusted_proxies)

    def client(self, headers: Iterable[tuple[bytes, bytes]], peer: str) -> str:
        """Return the network address that the request came from: the peer's, or what a trusted proxy says; of IPv6
        the /64, which one caller has all of. Empty if it is not known."""
        return client_of(headers, peer, self.trusted_proxies)

    def holds(self, known: Known) -> bool:
        """False once it is to be found out anew who that is."""
        return known.mark == self.links.mark and (known.until == inf or monotonic() < known.until)

    async def known(
        self, headers: Iterable[tuple[bytes, bytes]], peer: str, query: bytes = b"", provider: Provider | None = None
    ) -> Known:
        """Find out who sent a request, which came from `peer`. `provider`: the one that it goes to, if that is known.

        Raises `MissingCredentials` if nothing says so, `InvalidCredentials` if that is not to be believed, and
        `IdentityUnavailable`.
        """
        headers = list(headers)
        keys = keys_in(headers, query)
        rules = self.rules
        claim = None if rules is None else claim_of(rules, keys, headers, peer, self.trusted_proxies)
        if claim is not None and claim.by == "jwt" and rules is not None:
            return await self._verified(rules.issuers[claim.names[0]], claim, keys, peer)
        if claim is not None and claim.by == "header":
            person = self.identity.person("header", *claim.names)
            # Nothing that is stored for a key goes to that person: a gateway's is everybody's.
            return self.of(person, "header")
        if own := [key for key in keys if key.startswith(OWN_KEY)]:
            return await self._owner_of(own, in_query=not set(own) <= set(keys_in(headers)))
        if self.keyring is not None:
            raise MissingCredentials("No key of this Steno was sent. Ask its operator for one (`steno keys add`).")
        if rules is None:
            return self.of(self._own(keys, headers, peer), "key" if keys else "nothing")
        if rules.spends and (rules.issuers or rules.header is not None):
            raise MissingCredentials("Nothing says who calls, and the operator pays here. Sign in with a token.")
        if claim is not None and claim.by == "oauth" and rules.proofs is not None:
            token = Token(self._own_of(keys), claim.token, claim.claims, headers)
            if (proven := await rules.proofs.of(token, provider)) is not None:
                await self._keep(proven.person, token.own)
                return self.of(proven.person, "oauth", proven.until)
            claim = claim_of(replace(rules, proofs=None), keys, headers, peer, self.trusted_proxies)
        if claim is None:
            return self.of(self._own(keys, headers, peer), "key" if keys else "nothing")
        person = self.identity.person(claim.by, *claim.names)
        await self._keep(person, self._own(keys, headers, peer))
        return self.of(person, "single" if keys else "nothing")

    async def _verified(self, issuer: Issuer, claim: Claim, keys: Sequence[bytes], peer: str) -> Known:
        """Caller with a JWT. Raises `InvalidCredentials` and `IdentityUnavailable`."""
        verified = await issuer.verified(claim.token)
        person = self.identity.person("jwt", issuer.name, verified.claim)
        await self._keep(person, self._own_of(keys))
        others = [key for key in keys if key != claim.token]
        # A proxy may add a key of its own, which many have.
        if others and not is_trusted(peer, self.trusted_proxies):
            await self._keep(person, self._own_of(others))
        # Also on an open connection it is looked again: the issuer may withdraw a key.
        lasts = min(verified.expires - time(), LOOK_AGAIN_SECONDS)
        return replace(self.of(person, "jwt", monotonic() + lasts), expires=verified.expires)

    def of(self, tenant: str, by: By, until: float = inf) -> Known:
        """Caller whom the door knows as this tenant, or as an alias of another one."""
        tenant = self.links.resolved(tenant, persons=self.rules is not None)
        return Known(tenant, by, until, self.links.mark, self.links.roots(tenant))

    def signed_in(self, tenant: str) -> Known:
        """Caller who is this tenant, by a session of the inspector."""
        return Known(tenant, "session", mark=self.links.mark, roots=self.links.roots(tenant))

    async def _keep(self, person: str, *keys: str) -> None:
        """Give a person what was stored for his keys, the first time that both are seen."""
        for key in keys:
            if (person, key) in self._seen:
                continue
            try:
                await self.links.claim(person, key, self.identity.person("apart", key))
            except StoreUnavailable:
                continue  # The next request tries again.
            self._seen.keep((person, key), True)

    def _own(self, keys: Sequence[bytes], headers: Headers, peer: str) -> str:
        """Tenant of the keys themselves. Raises `MissingCredentials` if there has to be one and is none."""
        if keys:
            return self._own_of(keys)
        if self.allow_unauthenticated is True:
            return ANONYMOUS
        if self.allow_unauthenticated == "loopback":
            if self.is_local(headers, peer):
                return ANONYMOUS
            raise MissingCredentials(
                "No API key was sent. Send an Authorization header, or let the operator set"
                " STENO_ALLOW_UNAUTHENTICATED=1 for requests from other machines."
            )
        raise MissingCredentials(
            "No API key was sent. Send an Authorization header: server.allow_unauthenticated is false here."
        )

    def _own_of(self, keys: Sequence[bytes]) -> str:
        # No header can hold a NUL; what a query has of them is not the sender's own key.
        return self.identity.tenant(b"\0".join(key.replace(b"\0", b"") for key in keys))

    async def _owner_of(self, keys: Sequence[bytes], *, in_query: bool) -> Known:
        """Caller with a key that Steno gave out."""
        if in_query:
            raise InvalidCredentials("A key of Steno belongs into a header: a query stands in logs.")
        found = None if self.keyring is None or len(keys) > 1 else await self.keyring.find(keys[0])
        if found is None:
            raise InvalidCredentials("This key is not known here, was revoked or has expired. Ask for another one.")
        expires = inf if found.expires_at is None else found.expires_at
        lasts = min(LOOK_SECONDS, expires - time())
        # No key that a caller makes up can hold a NUL.
        tenant = self.identity.tenant(b"owner\0" + found.owner.encode())
        known = self.of(tenant, "owner", monotonic() + lasts)
        return replace(known, limits=found.limits, key=found.id, expires=expires)
