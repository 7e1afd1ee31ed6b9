"""Recognition: which conversation a history continues, when the client does not name one.

An id only names a conversation inside its tenant. It never decides which summary applies.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from msgspec import Struct

from app.conversation.identity import Chain, Identity
from app.conversation.messages import Kind, Transcript

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
    """Places by which a request is known later: its last message, and the one before the last user message.

    Each with the number of turns begun there. The second one is how an edited or regenerated turn is known.
    """
    messages, digests = transcript.messages, chain.digests
    end, starts = len(messages), messages.turn_starts
    if not end:
        return ()
    now = digests[end], len(starts)
    if not starts or not starts[-1]:
        return (now,)
    return (digests[starts[-1]], len(starts) - 1), now


def possible_heads(transcript: Transcript, chain: Chain) -> Iterator[bytes]:
    """The places of a history that an earlier request may have left, deepest first: the first ones are the likely."""
    messages, digests, left = transcript.messages, chain.digests, MOST_HEADS
    for end in range(len(messages), 0, -1):
        if messages[end - 1].kind is not Kind.ASSISTANT or end == len(messages) or messages[end].begins_turn:
            yield digests[end]
            if not (left := left - 1):
                return


def goes_on(turn: int, tip_turn: int) -> bool:
    """Whether what is known to have begun so many turns goes on a conversation whose deepest place has begun others."""
    return tip_turn - turn <= 1


def recognise(
    transcript: Transcript, chain: Chain, known: Sequence[Head], identity: Identity, fresh: Callable[[], bytes]
) -> Recognition:
    """The conversation of the deepest known head, if that lies at most one turn behind its tip; else a new one.

    A history nobody knows gets an id derived from its own digest, so that replicas agree; a fork of an older branch
    gets one that random bytes (`fresh`) set apart.
    """
    end = chain[len(transcript)]
    if not known:
        return Recognition(_conversation_id(identity, end))
    deepest = known[0]
    if len(known) > 1:
        deepest = max(known, key=lambda head: (chain.positions.get(head.digest, -1), -head.tip_turn))
    if goes_on(deepest.turn, deepest.tip_turn):
        return Recognition(deepest.conversation_id)
    return Recognition(_conversation_id(identity, end, fresh()), forked_from=deepest.conversation_id)


def _conversation_id(identity: Identity, *seed: bytes) -> str:
    return f"conv_{identity.digest(b'conversation', *seed).hex()[:24]}"
