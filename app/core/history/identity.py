"""Identity: keyed digests by which a summary finds the history it was made from, and no other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from app.core.history.messages import History
from app.core.lazy import lazy

DIGEST_BYTES = 16


class Identity:
    """Digests keyed with the server secret, so that stored ones do not reveal short messages."""

    def __init__(self, secret: bytes) -> None:
        self._key = blake2b(secret, digest_size=32, person=b"steno-identity").digest()

    def digest(self, *parts: bytes) -> bytes:
        """MAC of the parts, each with its length, so that no two lists of parts meet."""
        lengths = [len(part).to_bytes(8, "big") for part in parts]
        content = b"".join([piece for both in zip(lengths, parts, strict=True) for piece in both])
        return blake2b(content, key=self._key, digest_size=DIGEST_BYTES).digest()

    def tenant(self, credential: bytes) -> str:
        """Whose data: everything that is stored or looked up carries it, and it does not reveal the credential."""
        return self.digest(b"tenant", credential).hex()

    def chain(self, tenant: str, digests: Iterable[bytes]) -> Chain:
        """The chain over unchained message digests, beginning at the tenant's root."""
        return self._lengthened(Chain((self.digest(b"root", tenant.encode()),)), digests)

    def chain_of(self, tenant: str, history: History) -> Chain:
        """The chain over a history. What is known of a beginning of it is not worked out again.

        It keeps that of one tenant, the latest: any number of them may send the same history.
        """
        kept = history.kept.get(self)
        chain: Chain = kept[1] if kept is not None and kept[0] == tenant else self.chain(tenant, ())
        if len(history) >= len(chain.digests):
            chain = self._lengthened(chain, (message.digest for message in history[len(chain.digests) - 1 :]))
            history.kept[self] = tenant, chain
            if history.shorter is not None:
                history.shorter.kept[self] = tenant, Chain(chain.digests[: len(history.shorter) + 1])
        return chain

    def _lengthened(self, chain: Chain, digests: Iterable[bytes]) -> Chain:
        links, key = list(chain.digests), self._key
        for own in digests:
            links.append(blake2b(links[-1] + own, key=key, digest_size=DIGEST_BYTES).digest())
        return Chain(tuple(links))


@dataclass(frozen=True)
class Chain:
    """`digests[i]` stands for the first i messages after the instructions, and for whose they are."""

    digests: Sequence[bytes]

    @lazy
    def positions(self) -> dict[bytes, int]:
        return {digest: position for position, digest in enumerate(self.digests)}

    def __getitem__(self, position: int) -> bytes:
        return self.digests[position]
