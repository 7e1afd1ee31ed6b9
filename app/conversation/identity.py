"""Identity: keyed digests that link a summary to the summarised history, and a history to its conversation.

A conversation's id is only a name within its tenant. It never decides which summary applies.
A conversation's title is the user's first words.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import blake2b
from itertools import islice

from msgspec import Struct

from app.conversation.authored_text import authored_in
from app.conversation.client_context import without_context
from app.conversation.messages import History, Kind, Message, Transcript, lazy

DIGEST_BYTES = 16


class Identity:
    """Digests keyed with the server secret, so that stored digests do not reveal short messages."""

    def __init__(self, secret: bytes) -> None:
        key = blake2b(secret, digest_size=32, person=b"steno-identity").digest()
        self._keyed = blake2b(key=key, digest_size=DIGEST_BYTES)
        """Keyed hash without data. Copying it takes half the time of creating a new one."""

    def digest(self, *parts: bytes) -> bytes:
        """Return a keyed hash of the parts and their lengths. The lengths distinguish ("a", "bc") from ("ab", "c")."""
        return self.digester(*parts[:-1])(parts[-1])

    def digester(self, *first: bytes) -> Callable[[bytes], bytes]:
        """Return a function that computes `digest(*first, last)` of its argument `last`."""
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
        """Return the key under which Steno stores a tenant's data. The key does not reveal the credential."""
        return self.digest(b"tenant", credential).hex()

    def person(self, *names: str) -> str:
        """Return the key under which Steno stores the data of a caller identified by names, not by a credential."""
        return self.digest(b"person", *(name.encode("utf-8", "surrogatepass") for name in names)).hex()

    def chain(self, tenant: str, digests: Iterable[bytes]) -> Chain:
        """Return the chain of these message digests. The chain begins with a digest of the tenant."""
        return self._lengthened(Chain((self.digest(b"root", tenant.encode()),)), digests)

    def chain_of(self, tenant: str, history: History) -> Chain:
        """Return the chain of a history. The history caches its chain for the latest tenant, so that Steno computes
        only the links for new messages."""
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
        links: list[bytes] = []
        link, keyed = chain.digests[-1], self._keyed
        for own in digests:
            made = keyed.copy()
            made.update(link)
            made.update(own)
            links.append(link := made.digest())
        return Chain((*chain.digests, *links))


class Chain(Struct, frozen=True, eq=False, dict=True, weakref=True):
    """Chain of digests: `digests[i]` identifies the tenant and the first i messages after the instructions."""

    digests: Sequence[bytes]

    @lazy
    def positions(self) -> dict[bytes, int]:
        return {digest: position for position, digest in enumerate(self.digests)}

    def __getitem__(self, position: int) -> bytes:
        return self.digests[position]


class _Chained(Struct, frozen=True):
    identity: Identity
    tenant: str
    chain: Chain


LONGEST_NAME = 256
"""Maximum length of a conversation's name, in characters."""
_CONTROL = re.compile("[\0-\x1f\x7f-\x9f]")
MOST_HEADS = 200
"""Maximum number of positions that Steno looks up, from the history's end back. If no earlier request stored one of
these positions, Steno begins a new conversation."""


class Head(Struct, frozen=True):
    """Stored position in the history of an earlier request. Steno recognises the conversation by such positions."""

    digest: bytes
    conversation_id: str
    turn: int
    """Number of turns that begin before the position."""
    tip_turn: int
    """Number of turns that begin before the conversation's last stored position."""


class Recognition(Struct, frozen=True):
    conversation_id: str
    forked_from: str | None = None
    by_name: bool = False
    """True if the client named the conversation."""


def read_name(given: str) -> str:
    """Remove spaces at both ends of a conversation's name, as HTTP does with the value of a header.

    Raise `ValueError` for a name that is too long or has control characters.
    """
    name = given.strip(" ")
    if len(name) > LONGEST_NAME:
        raise ValueError(f"it has {len(name)} characters")
    if found := _CONTROL.search(name):
        raise ValueError(f"it holds the control character U+{ord(found[0]):04X}")
    return name


Heads = tuple[tuple[bytes, int], ...]
"""Digests by which Steno recognises later requests, each with the number of turns that begin before its position."""


def heads_of(transcript: Transcript, chain: Chain) -> Heads:
    """Return the heads of a request: the positions before its last turn and after its last message. If the client edits
    or regenerates the last turn, Steno recognises the conversation by the position before this turn."""
    messages, digests = transcript.messages, chain.digests
    end, starts = len(messages), messages.turn_starts
    now = ((digests[end], len(starts)),) if end else ()
    return ((digests[starts[-1]], len(starts) - 1), *now) if starts and starts[-1] else now


def possible_heads(transcript: Transcript, chain: Chain) -> Iterator[bytes]:
    """Yield the digests of positions that an earlier request may have stored, the last (likeliest) position first."""
    messages, digests, left = transcript.messages, chain.digests, MOST_HEADS
    for end in range(len(messages), 0, -1):
        if messages[end - 1].kind is not Kind.ASSISTANT or end == len(messages) or messages[end].begins_turn:
            yield digests[end]
            if not (left := left - 1):
                return


def recognise(chain: Chain, known: Sequence[Head], identity: Identity, fresh: Callable[[], bytes]) -> Recognition:
    """Return the conversation of the known head that is latest in the history. Return a new conversation if no head is
    known, or if the latest head is more than one turn before its conversation's last head.

    The id of a new conversation depends on the history's digest, so that all replicas agree. If the history continues
    an older position of a conversation, the new conversation is a fork. A fork's id also depends on random bytes.
    """
    end = chain.digests[-1]
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


LONGEST_TITLE, LONGEST_TITLED = 80, 200_000
"""Maximum characters of a title, and maximum bytes of a message that Steno searches for a title."""
TITLE_MESSAGES = 3
"""Number of user messages that Steno searches for a title, from the first."""


def title_of(messages: Sequence[Message]) -> str:
    """Return the first words of the user on one line, as a title; empty if the first messages have no such words."""
    of_user = (message for message in messages if message.kind is Kind.USER)
    for message in islice(of_user, TITLE_MESSAGES):
        if len(message.raw) <= LONGEST_TITLED:
            words = " ".join(" ".join(authored_in(without_context(message.own_texts))).split())
            if len(words) > LONGEST_TITLE:
                cut = words[:LONGEST_TITLE]  # The last word may be cut: remove it, unless it is the only one.
                return f"{cut.rpartition(' ')[0].rstrip(' ,;:-') or cut}\N{HORIZONTAL ELLIPSIS}"
            if words:
                return words
    return ""
