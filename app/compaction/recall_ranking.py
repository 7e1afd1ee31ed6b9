"""Ranking for recall: full-text search over the passages of a history.

1. A passage is a piece of a message, at most 480 characters long, that recall finds and quotes verbatim. In a long
   answer of the assistant, which mentions many subjects, a passage is one or two sentences.
2. Words are stemmed if the language is known. In scripts without spaces, each pair of characters is a word. A name (id,
   path, amount) is indexed as a whole and by its parts.
3. Scores are BM25 (Robertson and Zaragoza, The Probabilistic Relevance Framework, 2009) with two changes. Words of the
   passages next to a passage count half, and words two passages away a quarter: a neighbour often names the subject. A
   word's weight is the square of its rarity, so that two common words do not outweigh a name.
4. A passage that ends with a question gives part of its score to the next passage, which may contain the answer.
5. Passages of long answers have a lower weight.

The index only grows, like its history. A search covers only the passages before a given position. So the same question
about the same history has the same result on every replica, even if a replica has indexed later messages.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from math import log

import snowballstemmer
from msgspec import Struct

from app.conversation.messages import History, Kind, Message
from app.conversation.wordings import read_wordings

LONGEST_PASSAGE = 480
"""Maximum characters of a passage: a few sentences, or a dozen lines of code."""
LEAST_SENTENCE = 120
"""Minimum characters of a passage in a long answer. The passage ends with the first sentence that ends after them."""
QUESTION_MARKS = "?\uff1f\u061f\u037e"
"""Question marks: Latin and most scripts, Chinese and Japanese, Arabic, Greek."""
ASKING_SHARE, ANSWERING_SHARE = 0.6, 0.3
"""Shares of the score of a passage that ends with a question: the passage keeps `ASKING_SHARE`, and the next passage
gets `ANSWERING_SHARE`. If the next passage is part of a long answer, the question keeps its whole score."""
ADVICE_WEIGHT = 0.4
"""Factor for the score of each passage of a long answer (see `is_advice`), so that shorter messages rank higher."""

SATURATION, LENGTH = 1.2, 0.75
"""BM25's k1 and b: effect of repeated words, and of the length of a passage."""
NEIGHBOURS = (0.5, 0.25)
"""Factors for the count of a word in the passages one and two positions before or after the scored passage."""
RARITY_POWER = 2
COMMON_SHARE, FEW_PASSAGES = 0.25, 100
"""Words in more than `COMMON_SHARE` of the passages, and in more than `FEW_PASSAGES` passages, are ignored. Such words
do not distinguish passages, and scoring them is slow."""
MOST_NEAR = 2_000
"""Approximate maximum number of passages that are scored for one question."""

LONGEST_WORD, LONGEST_NAME = 64, 120
"""`LONGEST_WORD`: characters after which a word is cut. `LONGEST_NAME`: maximum characters of a name whose parts are
indexed; longer names are usually encoded bytes."""
LANGUAGE_SHARE, LEAST_COMMON_WORDS = 0.12, 5
"""Steno recognises a language if at least this share and this number of words are common words of the language."""
BYTES_A_WORD, BYTES_A_PASSAGE = 400, 200

_BREAKS = ("\n\n", "\n", "}, ", ". ", "? ", "! ", "\u3002", "; ", ", ", ",", " ")
"""Separators after which a passage may end, the best first."""
_SENTENCE_END = re.compile(r"[.!?\u3002\uff01\uff1f][\"')*\u201d]*\s+|\n\s*")
_LETTERS = re.compile(r"\w")
_TOKEN = re.compile(r"\w+(?:[-./:@#+'\u2019]\w+|,\d+)*")
_PARTS = re.compile(r"[^\W\d_]+|\d+")
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")
_UNSPACED = re.compile(
    "([\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\uff66-\uff9d\U00020000-\U0003ffff]+)"
)
"""Scripts without spaces: Thai, Lao, Burmese, Khmer, Japanese, Chinese."""
_SCRIPTS = (("russian", "\u0400", "\u04ff"), ("greek", "\u0370", "\u03ff"), ("arabic", "\u0600", "\u06ff"))
_WORDINGS = read_wordings(__package__, "recall_ranking.toml")
_COMMON_WORDS = {language: frozenset(words.split()) for language, words in _WORDINGS.items()}


def language_of(texts: Iterable[str]) -> str:
    """Return Snowball's name of the language of the texts; empty if the language is unclear."""
    # Names have no language, so paths and ids do not count.
    tokens = (token for text in texts for token in _TOKEN.findall(text.lower()))
    words = [word for token in tokens if not _is_name(token) for word in _PARTS.findall(token)]
    if not words:
        return ""
    counts = {language: sum(word in common for word in words) for language, common in _COMMON_WORDS.items()}
    counts |= {language: sum(least <= word[0] <= most for word in words) // 2 for language, least, most in _SCRIPTS}
    language = max(counts, key=counts.__getitem__)
    return language if counts[language] >= max(LEAST_COMMON_WORDS, LANGUAGE_SHARE * len(words)) else ""


def _is_name(word: str) -> bool:
    return any(letter.isdigit() or letter in "_./:@#+" for letter in word)


class Passage(Struct, frozen=True, order=True):
    message: int
    source: int
    """Index in `sources(message)`: texts of the message, then arguments of its calls."""
    start: int
    stop: int
    """End of the passage, in characters of the source."""


def sources(message: Message) -> Sequence[str]:
    return (*message.texts, *(call.arguments for call in (*message.calls, *message.settled)))


def tool_called(message: Message, source: int) -> str:
    calls = (*message.calls, *message.settled)
    return calls[source - len(message.texts)].name if source >= len(message.texts) else ""


def text_of(message: Message, passage: Passage) -> str:
    return sources(message)[passage.source][passage.start : passage.stop]


def is_advice(message: Message) -> bool:
    """Return whether a message is a long answer of the assistant."""
    return message.kind is Kind.ASSISTANT and sum(map(len, message.texts)) > LONGEST_PASSAGE


def passages_in(message: Message, index: int) -> Iterator[Passage]:
    """Yield the passages of a message in order, except thoughts. A sealed message has none, because only its provider
    can read it."""
    if message.sealed:
        return
    is_answer = message.kind is Kind.ASSISTANT
    for number, text in enumerate(sources(message)):
        is_split = is_answer and number < len(message.texts) and len(text) > LONGEST_PASSAGE
        for start, stop in _sentences(text) if is_split else _pieces(text, 0, len(text)):
            if _LETTERS.search(text, start, stop):
                yield Passage(index, number, start, stop)


def _sentences(text: str) -> Iterator[tuple[int, int]]:
    start = 0
    for end in _SENTENCE_END.finditer(text):
        if end.end() - start >= LEAST_SENTENCE:
            yield from _pieces(text, start, end.end())
            start = end.end()
    yield from _pieces(text, start, len(text))


def _pieces(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    while end - start > LONGEST_PASSAGE:
        least, most = start + LONGEST_PASSAGE // 2, start + LONGEST_PASSAGE
        breaks = ((text.rfind(mark, least, most), len(mark)) for mark in _BREAKS)
        stop = next((place + length for place, length in breaks if place >= 0), most)
        yield start, stop
        start = stop
    if start < end:
        yield start, end


Postings = tuple["array[int]", "array[int]"]
"""Numbers of the passages that contain a word, ascending, and the word's count in each passage."""
NO_POSTINGS: Postings = array("I"), array("H")
Weights = Mapping[str, float]
Scores = Mapping[int, float]
"""Scores by passage number. Passages without a score are absent."""


class Index:
    """Index of one history. Not thread-safe."""

    def __init__(self, language: str) -> None:
        self._stemmer = snowballstemmer.stemmer(language) if language else None
        self._stems: dict[str, str] = {}
        self.passages: list[Passage] = []
        self._weights = array("f")
        """Factor for each passage's score."""
        self._is_question = bytearray()
        self._first_passages: list[int] = []
        """Number of each message's first passage."""
        self._words_before = array("q", [0])
        self._postings: dict[str, Postings] = {}
        self._entries = 0

    def __len__(self) -> int:
        return len(self._first_passages)

    @property
    def size(self) -> int:
        words = len(self._postings) + len(self._stems)
        return 8 * self._entries + BYTES_A_WORD * words + BYTES_A_PASSAGE * len(self.passages)

    def read(self, messages: Iterable[Message]) -> None:
        for message in messages:
            weight = ADVICE_WEIGHT if is_advice(message) else 1.0
            self._first_passages.append(len(self.passages))
            for number, passage in enumerate(passages_in(message, len(self) - 1), len(self.passages)):
                words = self._count(message, passage)
                self.passages.append(passage)
                self._weights.append(weight)
                self._is_question.append(text_of(message, passage).rstrip().endswith(tuple(QUESTION_MARKS)))
                self._words_before.append(self._words_before[-1] + words.total())
                for word, often in words.items():
                    numbers, counts = self._postings.setdefault(word, (array("I"), array("H")))
                    numbers.append(number)
                    counts.append(often)
                self._entries += len(words)

    def words_in(self, text: str) -> Iterator[str]:
        """Yield the words of a text, in order. A name comes before its parts."""
        for token in _TOKEN.findall(text):
            if token.isascii() and token.isalpha() and (token.islower() or token.istitle()):
                yield self._stem(token.lower())
                continue
            if _is_name(token):
                whole = token.casefold()[:LONGEST_WORD]
                yield whole
                if "," in whole:
                    yield whole.replace(",", "")
                if token.isdigit() or len(token) > LONGEST_NAME:
                    continue
            for part in _PARTS.findall(_CAMEL.sub(" ", token)):
                for place, letters in enumerate(_UNSPACED.split(part.casefold())):
                    if place % 2 and len(letters) > 1:
                        yield from (first + second for first, second in pairwise(letters))
                    elif letters:
                        yield letters if place % 2 else self._stem(letters)

    def _stem(self, word: str) -> str:
        word = word[:LONGEST_WORD]
        if self._stemmer is None:
            return word
        if (stem := self._stems.get(word)) is None:
            stem = self._stems[word] = self._stemmer.stemWord(word)
        return stem

    def count(self, text: str) -> Counter[str]:
        return Counter(self.words_in(text))

    def words_of(self, number: int, history: History) -> Counter[str]:
        """Count the words of a passage. The counts are not stored, because they would double the memory."""
        passage = self.passages[number]
        return self._count(history[passage.message], passage)

    def passages_before(self, message: int) -> int:
        return self._first_passages[message] if message < len(self) else len(self.passages)

    def rarity(self, word: str, among: int) -> float:
        """Return the rarity of a word in the first `among` passages; it is highest if no passage has the word."""
        holding = len(self._postings_among(word, among)[0])
        return float(log(1 + (among - holding + 0.5) / (holding + 0.5)) ** RARITY_POWER)

    def scores(self, asked: Weights, among: int) -> Scores:
        """Score passages that have one of the rarest words, or are at most two positions from such a passage. Only the
        first `among` passages count."""
        postings = {word: self._postings_among(word, among) for word in asked}
        words = [word for word in asked if 0 < len(postings[word][0]) <= max(COMMON_SHARE * among, FEW_PASSAGES)]
        words.sort(key=lambda word: len(postings[word][0]))
        near = set[int]()  # Passages with one of the rarest words, and their neighbours.
        reach = range(-len(NEIGHBOURS), len(NEIGHBOURS) + 1)
        for numbers in (postings[word][0] for word in words):
            if near and len(near) + len(reach) * len(numbers) > MOST_NEAR:
                break
            near.update(number + distance for number in numbers for distance in reach)
        near.intersection_update(range(among))
        usual = self._words_before[among] / among * (1 + 2 * sum(NEIGHBOURS)) if among else 0.0
        scores: dict[int, float] = {}
        for word in words:
            weight = asked[word] * self.rarity(word, among)
            for number, often in _with_neighbours(postings[word], near).items():
                length = 1 - LENGTH + LENGTH * self._words_around(number, among) / usual
                matched = weight * often * (SATURATION + 1) / (often + SATURATION * length)
                scores[number] = scores.get(number, 0.0) + matched
        passed = dict(scores)
        for number, score in scores.items():
            if self._is_question[number] and number + 1 < among and self._weights[number + 1] == 1:
                passed[number] -= (1 - ASKING_SHARE) * score
                passed[number + 1] = passed.get(number + 1, 0.0) + ANSWERING_SHARE * score
        return {number: score * self._weights[number] for number, score in passed.items()}

    def _postings_among(self, word: str, among: int) -> Postings:
        numbers, often = self._postings.get(word) or NO_POSTINGS
        stop = bisect_left(numbers, among)
        return (numbers, often) if stop == len(numbers) else (numbers[:stop], often[:stop])

    def _count(self, message: Message, passage: Passage) -> Counter[str]:
        return self.count(f"{text_of(message, passage)}\n{tool_called(message, passage.source)}")

    def _words_around(self, number: int, among: int) -> float:
        before = self._words_before
        inner = before[number + 1] - before[number]
        weighed = float(inner)
        for distance, share in enumerate(NEIGHBOURS, 1):
            outer = before[min(number + distance + 1, among)] - before[max(0, number - distance)]
            weighed += share * (outer - inner)
            inner = outer
        return weighed


def _with_neighbours(postings: Postings, near: set[int]) -> Mapping[int, float]:
    """Return a word's count in each passage of `near`. A count includes weighted counts in neighbouring passages."""
    often: dict[int, float] = {}
    for number, times in zip(*postings, strict=True):
        if number in near:
            often[number] = often.get(number, 0.0) + times
            for distance, share in enumerate(NEIGHBOURS, 1):
                for neighbour in (number - distance, number + distance):
                    if neighbour in near:
                        often[neighbour] = often.get(neighbour, 0.0) + share * times
    return often
