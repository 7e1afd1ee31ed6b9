"""Ties: thoughts that a provider takes back only behind the very prompt that they were made behind.

Some providers sign what a model thought over all that stood before it, and refuse it behind anything else: behind a
summary in place of what it was thought about, and behind the whole history where it was thought behind a summary. So of
each view that is sent its print is kept, by the place in the history where the answer goes; and of a history that comes
back, each tied message keeps its thoughts where what stands before it now has the print that stood before it then. No
print was kept of a place that the history itself was sent up to. Tools stand before everything: a print begins with
those that we add, so thoughts made without them do not fit behind them.

Else its thoughts are left out, which every provider takes for a turn that is over. In the turn that is under way some
demand them: there they stay, and the provider is asked to drop what does not fit. From then on everything stays as it
is sent, and the provider is asked each time, until something else is done to what stands before: a mark is kept of that
place, bound to what stood before it. So a thought made behind such a prompt keeps the prompt as it was sent, and with
it what the model saw of it: it fits whether its provider signs the one or the other. A mark is kept also where a
provider refused a thought that seemed to fit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import blake2b

from msgspec import Struct
from msgspec.structs import replace

from app.core.history.messages import Kind, Message
from app.core.tokens.estimate import Cost
from app.core.view.reading import whole
from app.core.view.view import Carried, Conversation, Note, Pinned, Pruned, Recalled, Summary, Verbatim, View

PRINT_BYTES = 16

MARK = b"\1"
"""First byte of a mark, so that it is told from a print by its length."""

Prints = Mapping[bytes, frozenset[bytes]]
"""Prints by the chain's digest at a place of the history: those of what was sent when it had come so far, and the marks
of what stood before it when the provider was first asked to drop thoughts."""


class Tied(Struct, frozen=True):
    """A view as its provider takes it."""

    view: View | None
    """View that is sent; None for the history itself."""
    news: tuple[tuple[bytes, bytes], ...] = ()
    """Entries to be kept before the request is sent: places, each with a print or a mark."""


def tied_places(conversation: Conversation) -> tuple[bytes, ...]:
    """The places whose prints have to be known: before each tied message, and the end."""
    chain, messages = conversation.chain, conversation.transcript.messages
    return (*(chain[index] for index, message in enumerate(messages) if message.tied), chain[len(messages)])


def tie(
    conversation: Conversation,
    view: View | None,
    prints: Prints,
    cost: Cost,
    *,
    thinks: bool = True,
) -> Tied:
    """The view with the thoughts that fit. `thinks`: the model is to, and only then its thoughts of the turn under way
    are demanded, and its answer is tied."""
    chain, messages = conversation.chain, conversation.transcript.messages
    plain = _plain_prints(messages)
    users = (i for i in reversed(range(len(messages))) if messages[i].kind is Kind.USER or messages[i].is_told)
    latest = next((i for i in users if not messages[i].answers), -1)  # One with results goes on for its provider, too.
    left_out = view.untied if view else frozenset[int]()
    untied = set(left_out)
    kept: list[tuple[bytes, bytes]] = []
    marked, drops, stood = False, False, b""
    for index, said in _sent(conversation, view or whole(conversation)):
        goes = index is not None and messages[index].tied and index not in untied
        if index is not None and goes:
            found = prints.get(chain[index], frozenset())
            marked = marked or _mark(stood) in found
            drops = drops or (thinks and marked)
            # With several prints nobody knows which was answered.
            holds = (_prints_in(found) or {plain[index]}) == {stood}
            if not holds and thinks and index > latest and not drops:
                drops = True
                kept.append((chain[index], _mark(stood)))
            elif not drops and (marked or not holds):
                goes = False
                untied.add(index)
        stood = _next(stood, said, goes)
    if marked and not thinks:  # None is demanded, and what stands before the mark may not fit, either.
        return tie_refused(conversation, view, cost, thinks=False)
    end = chain[len(messages)]
    if thinks and (stood != plain[-1] or _prints_in(prints.get(end, frozenset()))):
        kept.append((end, stood))
    news = tuple((place, print_) for place, print_ in kept if print_ not in prints.get(place, ()))
    if untied == left_out and not drops:
        return Tied(view, news)
    return Tied(_with(conversation, view, untied, cost, drops=drops), news)


def tie_refused(
    conversation: Conversation,
    view: View | None,
    cost: Cost,
    *,
    thinks: bool = True,
) -> Tied:
    """View that is sent after a provider refused thoughts in this: it is to drop them, from here on; and where the
    model is not to think, none are sent."""
    messages, stood = conversation.transcript.messages, b""
    sent: set[int] = set()
    mark = None
    for index, said in _sent(conversation, view or whole(conversation)):
        goes = index is not None and messages[index].tied and (view is None or index not in view.untied)
        if index is not None and goes:
            sent.add(index)
            mark = conversation.chain[index], _mark(stood)
        stood = _next(stood, said, goes)
    if mark is None:
        return Tied(view)
    if not thinks:
        return Tied(_with(conversation, view, sent, cost, drops=False))
    return Tied(replace(view or whole(conversation), drops=True), (mark,))


def _with(conversation: Conversation, view: View | None, untied: set[int], cost: Cost, *, drops: bool) -> View:
    """The view with these messages untied, too."""
    changed, messages = view or whole(conversation), conversation.transcript.messages
    more = untied - changed.untied
    saved = sum(cost(messages[index]) - cost(replace(messages[index], thoughts=())) for index in more)
    return replace(changed, untied=changed.untied | more, drops=drops, tokens=changed.tokens - saved)


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
    """Prints of the history itself: what stands before each message, and the whole."""
    prints = [b""]
    for message in messages:
        prints.append(_next(prints[-1], message.digest, message.tied))
    return prints


def _prints_in(found: frozenset[bytes]) -> frozenset[bytes]:
    """Without the marks."""
    return frozenset(each for each in found if len(each) == PRINT_BYTES)


def _mark(stood: bytes) -> bytes:
    return MARK + stood


def _next(stood: bytes, said: bytes, thinks: bool) -> bytes:
    """The print of what stood, and then something that was sent, with its tied thoughts or without."""
    return blake2b(stood + said + bytes([thinks]), digest_size=PRINT_BYTES, person=b"steno-ties").digest()
