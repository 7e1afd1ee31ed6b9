"""The question: what a user's message asks a history for, and whether anything in it is an answer.

Most messages of a conversation ask for nothing that is left out, and quotations that are not needed cost tokens and a
part of the provider's cache. What distinguishes them is how much of the message one passage accounts for: a question
about something names it with few words, most of which stand around the answer; a remark in passing has many, of which
any passage holds a few. A message that asks, by its question mark, needs less of a match than one that states.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import nlargest
from re import compile as pattern

from msgspec import Struct

from app.core.history.blocks import without_blocks
from app.core.history.messages import History, Kind
from app.core.history.own_words import before_results
from app.core.recall.index import Index, Weights

ASKING_FLOOR = 0.30
"""Share of a question's words, each by its rarity, that the best passage and its neighbours have to hold."""
STATING_FLOOR = 0.65
"""Floor for a message without a question mark."""
FULL_MATCH = 0.40
"""Share from which on all of the budget is used; below it a part."""
LITTLE = 2.0
"""Words of a message that together are as rare as two that nobody said before: with less it says little by itself, as
"yes, that one" does, and the assistant's message before it is asked for, too."""
BEFORE_WEIGHT = 0.5
ASKED_LAST = 100
"""Characters at the end of the assistant's message in which it asks what the reply answers."""
UNKNOWN_WEIGHT = 0.25
"""Weight of a word that nobody said before: it cannot be matched, and says little of whether the others are."""
MOST_WORDS = 64
READ_CHARACTERS = 4_000
"""Most characters that are read of a message; of a longer one its beginning and its end."""
MOST_FOUND = 200

_ASKS = pattern(r"[?\uff1f\u061f\u037e]")

May = Callable[[int], bool]
"""Whether a passage may be quoted, by its number."""


class Found(Struct, frozen=True):
    passages: Sequence[int]
    """Numbers of the passages, the best first."""
    match: float
    """How much of the question the best of them accounts for, from 0 to 1."""


NOTHING = Found((), 0.0)


def found_for(question: int, history: History, index: Index, among: int, may: May) -> Found:
    """Passages among the first `among` that belong to what the user's message at `question` is about. Results ask
    nothing, also where a client writes them as the user's texts."""
    text = _read("\n".join(before_results(without_blocks(history[question]))))
    if not text.strip():
        return NOTHING
    asked = dict.fromkeys(index.counted(text), 1.0)
    missing = 1 - sum(index.rarity(word, among) for word in asked) / (LITTLE * index.rarity("", among))
    before = history[question - 1] if question else None
    if missing > 0 and before is not None and before.kind is Kind.ASSISTANT:
        said = _read(before.text)
        text = f"{said[-ASKED_LAST:]}\n{text}"
        asked = {**dict.fromkeys(index.counted(said), missing * BEFORE_WEIGHT), **asked}
    return _found(_rarest(asked, index, among), _ASKS.search(text) is not None, history, index, among, may)


def _rarest(asked: Weights, index: Index, among: int) -> Weights:
    weighed = nlargest(MOST_WORDS, ((weight * index.rarity(word, among), word) for word, weight in asked.items()))
    return {word: asked[word] for _, word in weighed}


def _found(asked: Weights, asks: bool, history: History, index: Index, among: int, may: May) -> Found:
    known = {word: 1.0 if index.holds(word, among) else UNKNOWN_WEIGHT for word in asked}
    mass = sum(weight * index.rarity(word, among) * known[word] for word, weight in asked.items())
    scores = index.scores(asked, among)
    best = nlargest(MOST_FOUND, filter(may, scores), key=lambda number: (scores[number], -number))
    if not best or not mass:
        return NOTHING
    around = (number for number in range(best[0] - 1, best[0] + 2) if 0 <= number < among)
    held = set[str]().union(*(index.words_of(number, history) for number in around))
    match = sum(weight * index.rarity(word, among) for word, weight in asked.items() if word in held) / mass
    return NOTHING if match < (ASKING_FLOOR if asks else STATING_FLOOR) else Found(best, match)


def _read(text: str) -> str:
    half = READ_CHARACTERS // 2
    return text if len(text) <= READ_CHARACTERS else f"{text[:half]}\n{text[-half:]}"
