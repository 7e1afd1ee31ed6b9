"""Identity: keyed digests by which a summary finds the history it was made from, and the conversation of a history.

An id only names a conversation inside its tenant. It never decides which summary applies.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import blake2b

from msgspec import Struct

from app.conversation.lazy import lazy
from app.conversation.messages import History, Kind, Transcript

DIGEST_BYTES = 16


class Identity:
    """Digests keyed with the server secret, so that stored ones do not reveal short messages."""

    def __init__(self, secret: bytes) -> None:
        key = blake2b(secret, digest_size=32, person=b"steno-identity").digest()
        self._keyed = blake2b(key=key, digest_size=DIGEST_BYTES)
        """Keyed digest of nothing: a copy of it is made in half the time that a new one takes."""

    def digest(self, *parts: bytes) -> bytes:
        """MAC of the parts, each with its length, so that no two lists of parts meet."""
        return self.digester(*parts[:-1])(parts[-1])

    def digester(self, *first: bytes) -> Callable[[bytes], bytes]:
        """`digest` of these parts and one more."""
        begun = self._keyed.copy()

        def digest(last: bytes) -> bytes:
            made = begun.copy()
            made.update(len(last).to_bytes(8, "big"))
            made.update(last)
            return made.digest()

        for part in first:
            begun.update(len(part).to_bytes(8, "big") + part)

        return digest

    def tenant(self, credential: bytes) -> str:
        """Key of a tenant's data, which does not reveal the credential: everything that is stored or looked up carries
        it."""
        return self.digest(b"tenant", credential).hex()

    def person(self, *names: str) -> str:
        """Key of the data of a person who is known by names, not by a secret of his own."""
        return self.digest(b"person", *(name.encode("utf-8", "surrogatepass") for name in names)).hex()

    def chain(self, tenant: str, digests: Iterable[bytes]) -> Chain:
        """The chain over unchained message digests, beginning at the tenant's root."""
        return self._lengthened(Chain((self.digest(b"root", tenant.encode()),)), digests)

    def chain_of(self, tenant: str, history: History) -> Chain:
        """The chain over a history, which keeps that of its latest tenant: what is known of a beginning is not worked
        out again."""
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


LONGEST_NAME = 256
"""Characters of a conversation's name."""
_CONTROL = re.compile("[\0-\x1f\x7f-\x9f]")
MOST_HEADS = 200
"""How many positions are asked about, from the end; a client that adds more between two requests starts anew."""


class Head(Struct, frozen=True):
    """A place in a history that a conversation is known to have reached."""

    digest: bytes
    conversation_id: str
    turn: int
    """Turns begun by that place."""
    tip_turn: int
    """Turns begun by the deepest place the conversation is known to have reached."""


class Recognition(Struct, frozen=True):
    conversation_id: str
    forked_from: str | None = None
    by_name: bool = False
    """Whether the client named it."""


def read_name(given: str) -> str:
    """A client's name for a conversation, without the spaces around it: a header could not hold those.

    Raises `ValueError`, which says what has no name.
    """
    name = given.strip(" ")
    if len(name) > LONGEST_NAME:
        raise ValueError(f"it has {len(name)} characters")
    if found := _CONTROL.search(name):
        raise ValueError(f"it holds the control character U+{ord(found[0]):04X}")
    return name


Heads = tuple[tuple[bytes, int], ...]
"""Digests that a request leaves behind to be known by, each with the number of turns begun there."""


def heads_of(transcript: Transcript, chain: Chain) -> Heads:
    """Places by which a request is known later: the message before its last turn, by which an edited or regenerated
    turn is known, and its last message."""
    end, starts = len(transcript), transcript.turn_starts
    now = ((chain[end], len(starts)),) if end else ()
    return ((chain[starts[-1]], len(starts) - 1), *now) if starts and starts[-1] else now


def possible_heads(transcript: Transcript, chain: Chain) -> Iterator[bytes]:
    """The places of a history that an earlier request may have left, deepest first: the first ones are the likely."""
    messages, digests, left = transcript.messages, chain.digests, MOST_HEADS
    for end in range(len(messages), 0, -1):
        if messages[end - 1].kind is not Kind.ASSISTANT or end == len(messages) or messages[end].begins_turn:
            yield digests[end]
            if not (left := left - 1):
                return


def recognise(
    transcript: Transcript, chain: Chain, known: Sequence[Head], identity: Identity, fresh: Callable[[], bytes]
) -> Recognition:
    """The conversation of the deepest known head, if that lies at most one turn behind its tip; else a new one.

    An unknown history gets an id derived from its own digest, so that replicas agree; a fork of an older branch
    gets one that random bytes (`fresh`) set apart.
    """
    end = chain[len(transcript)]
    if not known:
        return Recognition(_conversation_id(identity, end))
    deepest = known[0]
    if len(known) > 1:
        deepest = max(known, key=lambda head: (chain.positions.get(head.digest, -1), -head.tip_turn))
    if deepest.tip_turn - deepest.turn <= 1:
        return Recognition(deepest.conversation_id)
    return Recognition(_conversation_id(identity, end, fresh()), forked_from=deepest.conversation_id)


def _conversation_id(identity: Identity, *seed: bytes) -> str:
    return f"conv_{identity.digest(b'conversation', *seed).hex()[:24]}"
