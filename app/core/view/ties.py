"""Ties: thoughts that a provider takes back only behind the very prompt that they were made behind.

Some providers sign what a model thought over all that stood before it, and refuse it behind anything else: behind a
summary in place of what it was thought about, and behind the whole history where it was thought behind a summary. So of
each view that is sent its print is kept, by the place in the history where the answer goes; and of a history that comes
back, each tied message keeps its thoughts where what stands before it now has the print that stood before it then. No
print was kept of a place that the history itself was sent up to.

Else its thoughts are left out, which every provider takes for a turn that is over. In the turn that is under way some
demand them: there they stay, and the provider is asked to leave out what does not fit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from hashlib import blake2b

from app.core.history.messages import Message
from app.core.tokens.estimate import Cost
from app.core.view.reading import whole
from app.core.view.view import Carried, Conversation, Note, Pinned, Pruned, Recalled, Summary, Verbatim, View

PRINT_BYTES = 16

Prints = Mapping[bytes, frozenset[bytes]]
"""By the chain's digest at a place of the history: the prints of what was sent when it had come so far."""


def tied_places(conversation: Conversation) -> tuple[bytes, ...]:
    """The places whose prints have to be known: before each tied message, and the end."""
    chain, messages = conversation.chain, conversation.transcript.messages
    return (*(chain[index] for index, message in enumerate(messages) if message.tied), chain[len(messages)])


def tie(
    conversation: Conversation, view: View | None, prints: Prints, cost: Cost, *, thinks: bool = True
) -> tuple[View | None, bytes | None]:
    """The view as its provider takes it, None for the history itself; and the print that is to be kept of it, None
    where that need not be. `thinks`: the model is to, and only then its thoughts of the turn under way are demanded."""
    chain, messages = conversation.chain, conversation.transcript.messages
    plain = _plain_prints(messages)
    begun = (turn for turn in reversed(conversation.transcript.turn_starts) if not messages[turn].answers)
    latest = next(begun, -1)  # A message with results goes on with the turn that they belong to.
    untied = set(view.untied) if view else set[int]()
    saved, drops, stood = 0, False, b""
    for index, said in _sent(conversation, view or whole(conversation)):
        holds = False
        if index is not None and messages[index].tied and index not in untied:
            # With several of them nobody knows which was answered.
            holds = prints.get(chain[index], frozenset({plain[index]})) == {stood}
            if not holds and thinks and index > latest:
                drops = True
            elif not holds:
                untied.add(index)
                saved += cost(messages[index]) - cost(replace(messages[index], thoughts=()))
        stood = _next(stood, said, holds)
    end = chain[len(messages)]
    news = None if stood == plain[-1] and end not in prints else stood
    if untied == (view.untied if view else set()) and not drops:
        return view, news
    changed = view or whole(conversation)
    return replace(changed, untied=frozenset(untied), drops=drops, tokens=changed.tokens - saved), news


def _sent(conversation: Conversation, view: View) -> Iterator[tuple[int | None, bytes]]:
    """All that a view sends, in order: which message it is, and what it says."""
    messages = conversation.transcript.messages
    for part in view.parts:
        match part:
            case Summary(chunk):
                yield None, chunk.id.encode()
            case Note(text=text) | Recalled(text=text):
                yield None, text.encode("utf-8", "surrogatepass")
            case Verbatim(start, stop) | Pinned(start, stop):
                yield from ((index, messages[index].digest) for index in range(start, stop))
            case Carried(index):
                yield index, messages[index].digest
            case Pruned():
                pass
            case _:
                left = repr((part.texts, part.calls)).encode("utf-8", "surrogatepass")
                yield part.index, messages[part.index].digest + left


def _plain_prints(messages: tuple[Message, ...]) -> list[bytes]:
    """Of the history itself: what stands before each message, and the whole."""
    prints = [b""]
    for message in messages:
        prints.append(_next(prints[-1], message.digest, message.tied))
    return prints


def _next(stood: bytes, said: bytes, thinks: bool) -> bytes:
    """The print of what stood, and then something that was said, with its tied thoughts or without."""
    return blake2b(stood + said + bytes([thinks]), digest_size=PRINT_BYTES, person=b"steno-ties").digest()
