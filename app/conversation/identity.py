"""Identity: keyed digests by which a summary finds the history it was made from, and no other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b

from msgspec import Struct

from app.conversation.lazy import lazy
from app.conversation.messages import History

DIGEST_BYTES = 16


class Identity:
    """Digests keyed with the server secret, so that stored ones do not reveal short messages."""

    def __init__(self, secret: bytes) -> None:
        key = blake2b(secret, digest_size=32, person=b"steno-identity").digest()
        self._keyed = blake2b(key=key, digest_size=DIGEST_BYTES)
        """Keyed digest of nothing: a copy of it is made in half the time that a new one takes."""

    def digest(self, *parts: bytes) -> bytes:
        """MAC of the parts, each with its length, so that no two lists of parts meet."""
        made = self._keyed.copy()
        made.update(b"".join(map(_framed, parts)))
        return made.digest()

    def digester(self, *first: bytes) -> Callable[[bytes], bytes]:
        """`digest` of these parts and one more."""
        begun = self._keyed.copy()
        begun.update(b"".join(map(_framed, first)))

        def digest(last: bytes) -> bytes:
            made = begun.copy()
            made.update(len(last).to_bytes(8, "big"))
            made.update(last)
            return made.digest()

        return digest

    def tenant(self, credential: bytes) -> str:
        """Key of a tenant's data, which does not reveal the credential: everything that is stored or looked up carries
        it."""
        return self.digest(b"tenant", credential).hex()

    def person(self, *names: str) -> str:
        """Key of the data of somebody who is known by names, not by a secret of his own."""
        return self.digest(b"person", *(name.encode("utf-8", "surrogatepass") for name in names)).hex()

    def chain(self, tenant: str, digests: Iterable[bytes]) -> Chain:
        """The chain over unchained message digests, beginning at the tenant's root."""
        return self._lengthened(Chain((self.digest(b"root", tenant.encode()),)), digests)

    def chain_of(self, tenant: str, history: History) -> Chain:
        """The chain over a history. What is known of a beginning of it is not worked out again.

        It keeps that of one tenant, the latest: any number of them may send the same history.
        """
        kept: _Chained | None = history.chained
        is_own = kept is not None and kept.tenant == tenant and kept.identity is self
        chain = kept.chain if kept is not None and is_own else self.chain(tenant, ())
        if (known := len(chain.digests) - 1) < len(history) or not is_own:
            chain = self._lengthened(chain, [message.digest for message in history[known:]])
            history.chained = _Chained(self, tenant, chain)
            if (shorter := history.shorter) is not None:
                shorter.chained = _Chained(self, tenant, Chain(chain.digests[: len(shorter) + 1]))
        return chain

    def _lengthened(self, chain: Chain, digests: Iterable[bytes]) -> Chain:
        links, link, keyed = list[bytes](), chain.digests[-1], self._keyed
        for own in digests:
            made = keyed.copy()
            made.update(link)
            made.update(own)
            links.append(link := made.digest())
        return Chain((*chain.digests, *links))


def _framed(part: bytes) -> bytes:
    return len(part).to_bytes(8, "big") + part


class Chain(Struct, frozen=True, eq=False, dict=True, weakref=True):
    """`digests[i]` stands for the first i messages after the instructions, and for whose they are."""

    digests: Sequence[bytes]

    @lazy
    def positions(self) -> dict[bytes, int]:
        return {digest: position for position, digest in enumerate(self.digests)}

    def __getitem__(self, position: int) -> bytes:
        return self.digests[position]


class _Chained(Struct, frozen=True):
    """The chain that is known of a history."""

    identity: Identity
    tenant: str
    chain: Chain
