"""The question: what a user's message asks a history for, and whether anything in it is an answer.

Most messages of a conversation ask for nothing that is left out, and quotations that are not needed cost tokens and a
part of the provider's cache. What distinguishes them is how much of the message one passage accounts for: a question
about something names it with few words, most of which stand around the answer; a remark in passing has many, of which
any passage holds a few. Words of the latest messages do not count: a message that goes on from these has before it what
it is about. A message that asks, by its question marks, needs less of a match than one that states; one that does
both needs the more of one, the less of it asks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from heapq import nlargest
from re import MULTILINE
from re import compile as pattern

from msgspec import Struct

from app.core.history.authored_text import authored_in
from app.core.history.client_context import without_context
from app.core.history.messages import History, Kind, Message
from app.core.recall.index import Index, Weights
from app.core.recall.passages import QUESTION_MARKS

ASKING_FLOOR = 0.20
"""Share of a question's words, each by its rarity, that the best passage and its neighbours have to hold."""
STATING_FLOOR = 0.65
"""Floor for a message without a question mark."""
RECENT_MESSAGES = 6
"""Messages before the question that it may go on from, as far as none of them is left out."""
SPEAKER_WEIGHT = 1.3
"""Factor for what somebody said who is named in the question."""
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

_SENTENCE = pattern(rf"\S.*?(?:[{QUESTION_MARKS}]+|[\u3002\uff01]|[.!]+(?=\s)|$)", MULTILINE)

_NAME = pattern(r"[^\W\d_]+")
_SPEAKERS = {
    Kind.ASSISTANT: pattern(
        r"(?i:\byou are|\byour name is|\bassistant is|\bassistant:) (?:called |named )?([A-Z]\w+)"
        r"|\b([A-Z]\w+) (?:is |\()(?:the )?assistant\b"
    ),
    Kind.USER: pattern(
        r"(?i:\buser is|\buser's name is|\buser:|\btalking (?:to|with)|\bchatting with)"
        r" (?:called |named )?([A-Z]\w+)"
        r"|\b([A-Z]\w+) (?:is |\()(?:the )?user\b"
    ),
}
"""How instructions say who is who."""

Speakers = Mapping[str, Kind]
"""Kinds of message by the names of those who say them."""
NOBODY: Speakers = {}

May = Callable[[int], bool]
"""Whether a passage may be quoted, by its number."""


class Found(Struct, frozen=True):
    passages: Sequence[int]
    """Numbers of the passages, the best first."""
    scores: Sequence[float]
    """Their scores."""
    match: float
    """How much of the question the best of them accounts for, from 0 to 1."""
    words: int
    """Number of different words that were asked for."""


NOTHING = Found((), (), 0.0, 0)


def found_for(
    question: int, history: History, index: Index, among: int, may: May, speakers: Speakers = NOBODY
) -> Found:
    """Passages among the first `among` that belong to what the user's message at `question` is about. Results ask
    nothing, also where a client writes them as the user's texts."""
    text = _read("\n".join(authored_in(without_context(history[question].own_texts))))
    if not text.strip():
        return NOTHING
    asking = _asking(text)
    named = frozenset(speakers[name] for name in _NAME.findall(text) if name in speakers)
    names = index.counted(" ".join(speakers)) if named else {}
    asked: Weights = {word: 1.0 for word in index.counted(text) if word not in names}
    missing = 1 - sum(index.rarity(word, among) for word in asked) / (LITTLE * index.rarity("", among))
    goes_on_from = question
    before = history[question - 1] if question else None
    if missing > 0 and before is not None and before.kind is Kind.ASSISTANT:
        said = _read(before.text)
        if _asking(said[-ASKED_LAST:]):
            asking, goes_on_from = 1.0, question - 1
            asked = {**dict.fromkeys(index.counted(said), missing * BEFORE_WEIGHT), **asked}
    asked = _rarest(asked, index, among)
    scores = index.scores(asked, among)
    if len(named) == 1:
        scores = {number: score * _weight(history, index, number, named) for number, score in scores.items()}
    best = nlargest(MOST_FOUND, filter(may, scores), key=lambda number: (scores[number], -number))
    if not best:
        return NOTHING
    left_out = index.passage(among - 1).message + 1
    recent = history[max(left_out, goes_on_from - RECENT_MESSAGES) : goes_on_from]
    match = _match(asked, best[0], index, among, history, recent)
    if match < STATING_FLOOR - (STATING_FLOOR - ASKING_FLOOR) * asking:
        return NOTHING
    return Found(best, [scores[number] for number in best], match, len(asked))


def speakers_in(instructions: Iterable[Message]) -> Speakers:
    """Names of the roles, as far as the instructions say it."""
    texts = [text[:READ_CHARACTERS] for message in instructions for text in message.texts]
    found = ((kind, said.finditer(text)) for text in texts for kind, said in _SPEAKERS.items())
    return {match[1] or match[2]: kind for kind, matches in found for match in matches}


def _weight(history: History, index: Index, number: int, named: AbstractSet[Kind]) -> float:
    return SPEAKER_WEIGHT if history[index.passage(number).message].kind in named else 1


def _asking(text: str) -> float:
    """Share of a text's characters that stand in sentences which ask, from 0 to 1."""
    sentences = _SENTENCE.findall(text)
    asked = sum(len(sentence) for sentence in sentences if sentence.endswith(tuple(QUESTION_MARKS)))
    return asked / max(1, sum(map(len, sentences)))


def _rarest(asked: Weights, index: Index, among: int) -> Weights:
    weighed = nlargest(MOST_WORDS, ((weight * index.rarity(word, among), word) for word, weight in asked.items()))
    return {word: asked[word] for _, word in weighed}


def _match(asked: Weights, best: int, index: Index, among: int, history: History, recent: Iterable[Message]) -> float:
    """Share of the question that the best passage and its neighbours hold, each word by its rarity; the words of recent
    messages count as missing."""
    around = range(max(0, best - 1), min(best + 2, among))
    held = set[str]().union(*(index.words_of(number, history) for number in around))
    held -= set[str]().union(*(index.counted(_read(message.text)) for message in recent))
    known = {word: 1.0 if index.holds(word, among) else UNKNOWN_WEIGHT for word in asked}
    mass = sum(weight * index.rarity(word, among) * known[word] for word, weight in asked.items())
    matched = sum(weight * index.rarity(word, among) for word, weight in asked.items() if word in held)
    return matched / mass


def _read(text: str) -> str:
    half = READ_CHARACTERS // 2
    return text if len(text) <= READ_CHARACTERS else f"{text[:half]}\n{text[-half:]}"
