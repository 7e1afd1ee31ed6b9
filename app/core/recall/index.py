"""The index: which passages of a history hold which words, and how well they match a question.

Theory: BM25 (Robertson and Zaragoza, The Probabilistic Relevance Framework, 2009), with two changes, each of which
found more of the evidence for questions about long dialogues. What is asked about is often named in a remark before or
after the one that answers: so each passage's counts are its own, half of its neighbours', and a quarter of theirs (as
fields are weighted in BM25F). And a word's weight is the square of its rarity: a question is made of common words, and
two of them must not weigh more than the name that it is about. To ask for words of the best matches, too (Rocchio,
1971), found no more within the usual budget.

What the words alone rank is corrected twice. A passage that ends in a question often has just the words that are asked
for, and what follows has the answer: a part of its score goes there. And a remark of two words takes nearly all of its
score from its neighbours, and says nothing: the shorter a passage, the less it is worth.

It only grows, as histories do, and it is asked about its beginning: the first so many passages. What comes later
changes nothing for these, so the same question to the same history has the same answer at every replica, whatever else
that has read meanwhile.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import log

from app.core.history.messages import History, Message
from app.core.recall.passages import Passage, called_by, ends_asking, passages_in, text_of
from app.core.recall.words import Words

SATURATION = 1.2
"""BM25's k1: how much a word that is said again adds."""
LENGTH = 0.75
"""BM25's b: how much a long passage counts for less."""
NEIGHBOURS = (0.5, 0.25)
"""Shares of a word's weight for the passages next to the one that holds it, and for those next to them."""
RARITY_POWER = 2
ASKING_SHARE, ANSWERING_SHARE = 0.6, 0.3
"""Shares of the score of a passage that ends in a question: what it keeps, and what the next one gets as well."""
LENGTH_POWER = 0.2
HEADING = 24
"""Characters that a quotation has beside its passage, about."""
COMMON_SHARE = 0.25
"""A word in a larger share of the passages distinguishes nothing, and takes long to look at."""
FEW_PASSAGES = 100
"""A word in at most this many is looked at, however few passages there are."""

MOST_NEAR = 2_000
"""Passages that are looked at for one question, about."""

BYTES_A_WORD = 400
BYTES_A_PASSAGE = 200

Holding = tuple["array[int]", "array[int]"]
"""Places of a word: the numbers of the passages that hold it, ascending, and how often each does."""
NONE: Holding = array("I"), array("H")
Weights = Mapping[str, float]
"""Weights of a question's words."""
Scores = Mapping[int, float]
"""Scores of passages, by their number in the index; those that hold no word of the question are left out."""


class Index:
    """Index of one history. Not to be used by two threads at a time."""

    def __init__(self, language: str) -> None:
        self._words = Words(language)
        self._passages: list[Passage] = []
        self._asking = bytearray()
        """Flag of each passage: whether it ends in a question."""
        self._first_of: list[int] = []
        """Number of each message's first passage."""
        self._length_before = array("q", [0])
        self._holding: dict[str, Holding] = {}
        self._entries = 0

    def __len__(self) -> int:
        """How many messages it has read."""
        return len(self._first_of)

    @property
    def size(self) -> int:
        """About how many bytes it takes."""
        words = len(self._holding) + len(self._words)
        return 8 * self._entries + BYTES_A_WORD * words + BYTES_A_PASSAGE * len(self._passages)

    def read(self, messages: Iterable[Message]) -> None:
        """The history goes on with these."""
        for message in messages:
            self._first_of.append(len(self._passages))
            for passage in passages_in(message, len(self._first_of) - 1):
                self._asking.append(ends_asking(message, passage))
                self._add(passage, self._counted(message, passage))

    def counted(self, text: str) -> Counter[str]:
        """The words of a text."""
        return Counter(self._words.of(text))

    def passages_before(self, message: int) -> int:
        """How many passages the messages before this one have."""
        return self._first_of[message] if message < len(self) else len(self._passages)

    def passage(self, number: int) -> Passage:
        return self._passages[number]

    def rarity(self, word: str, among: int) -> float:
        """How much a word distinguishes among the first so many passages; most for one that none of them holds."""
        held = self._holding.get(word)
        holding = bisect_left(held[0], among) if held else 0
        return float(log(1 + (among - holding + 0.5) / (holding + 0.5)) ** RARITY_POWER)

    def holds(self, word: str, among: int) -> bool:
        """Whether one of the first so many passages holds a word."""
        held = self._holding.get(word)
        return held is not None and held[0][0] < among

    def scores(self, asked: Weights, among: int) -> Scores:
        """How well each of the first so many passages matches.

        Only those are looked at that are near one of the rarest words: others have no part of what is asked about.
        """
        held = {word: self._held_among(word, among) for word in asked}
        words = [word for word in asked if 0 < len(held[word][0]) <= max(COMMON_SHARE * among, FEW_PASSAGES)]
        words.sort(key=lambda word: len(held[word][0]))
        near = self._near([held[word][0] for word in words], among)
        usual = self._length_before[among] / among * (1 + 2 * sum(NEIGHBOURS)) if among else 0.0
        scores: dict[int, float] = {}
        for word in words:
            weight = asked[word] * self.rarity(word, among)
            for number, often in _with_neighbours(held[word], near).items():
                length = 1 - LENGTH + LENGTH * self._length_around(number, among) / usual
                matched = weight * often * (SATURATION + 1) / (often + SATURATION * length)
                scores[number] = scores.get(number, 0.0) + matched
        return self._corrected(scores, among)

    def _corrected(self, scores: Scores, among: int) -> Scores:
        """Scores with what questions pass on, and by length."""
        passed = dict(scores)
        for number, score in scores.items():
            if self._asking[number]:
                passed[number] += (ASKING_SHARE - 1) * score
                if number + 1 < among:
                    passed[number + 1] = passed.get(number + 1, 0.0) + ANSWERING_SHARE * score
        return {number: score * self._length(number) ** LENGTH_POWER for number, score in passed.items()}

    def _length(self, number: int) -> int:
        passage = self._passages[number]
        return HEADING + passage.stop - passage.start

    def _held_among(self, word: str, among: int) -> Holding:
        numbers, often = self._holding.get(word) or NONE
        stop = bisect_left(numbers, among)
        return numbers[:stop], often[:stop]

    def _near(self, holding: Sequence[Sequence[int]], among: int) -> frozenset[int]:
        """The passages that hold the rarest of these words, which come first, and those around them."""
        reach = range(-len(NEIGHBOURS), len(NEIGHBOURS) + 1)
        near: set[int] = set()
        for numbers in holding:
            if near and len(near) + len(reach) * len(numbers) > MOST_NEAR:
                break
            for distance in reach:
                near.update(number + distance for number in numbers)
        return frozenset(number for number in near if 0 <= number < among)

    def words_of(self, number: int, history: History) -> Counter[str]:
        """The words of a passage. They are read again: to keep them would take as much room as the rest."""
        passage = self._passages[number]
        return self._counted(history[passage.message], passage)

    def _counted(self, message: Message, passage: Passage) -> Counter[str]:
        counted = self.counted(text_of(message, passage))
        if tool := called_by(message, passage.source):
            counted.update(self._words.of(tool))
        return counted

    def _add(self, passage: Passage, words: Counter[str]) -> None:
        number, length = len(self._passages), words.total()
        self._passages.append(passage)
        self._length_before.append(self._length_before[-1] + length)
        for word, often in words.items():
            if (held := self._holding.get(word)) is None:
                held = self._holding[word] = (array("I"), array("H"))
            held[0].append(number)
            held[1].append(often)
        self._entries += len(words)

    def _length_around(self, number: int, among: int) -> float:
        before = self._length_before
        length = before[number + 1] - before[number]
        inner, weighed = length, float(length)
        for distance, share in enumerate(NEIGHBOURS, 1):
            outer = before[min(number + distance + 1, among)] - before[max(0, number - distance)]
            weighed += share * (outer - inner)
            inner = outer
        return weighed


def _with_neighbours(held: Holding, near: frozenset[int]) -> Mapping[int, float]:
    """How often a word stands in each passage that is `near`, its neighbours counted in."""
    often: dict[int, float] = {}
    for number, times in zip(*held, strict=True):
        if number not in near:
            continue
        often[number] = often.get(number, 0.0) + times
        for distance, share in enumerate(NEIGHBOURS, 1):
            for neighbour in (number - distance, number + distance):
                if neighbour in near:
                    often[neighbour] = often.get(neighbour, 0.0) + share * times
    return often
