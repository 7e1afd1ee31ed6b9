"""Recall index: which passages of a history hold which words, and how well they match a question.

1. A passage is a piece of a text that is found and quoted letter by letter: 480 characters at most, and of a long
   answer of the assistant, which says something of everything, a sentence or two.
2. Words are reduced to their stem where the language is known; in scripts without spaces each pair of characters is a
   word. What names a thing (an id, a path, an amount) counts as a whole and in its parts.
3. Scores are BM25 (Robertson and Zaragoza, The Probabilistic Relevance Framework, 2009) with two changes. A passage
   also counts the words of the passages around it, half for the next ones and a quarter for those behind them, as the
   remark before or after the answer often names what is asked about. A word's weight is the square of its rarity: two
   common words must not outweigh a name.
4. A passage that ends in a question passes a part of its score to the next one, which may have the answer.
5. What the user says weighs more than a long answer to it.

The index only grows, as histories do. It is asked about the first so many passages, so the same question to the same
history has the same result on every replica, whatever else was read.
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

LONGEST_PASSAGE = 480
"""Characters: some sentences, or a dozen lines of code."""
LEAST_SENTENCE = 120
"""Characters of a long answer's passage, unless the answer ends: shorter sentences go together."""
QUESTION_MARKS = "?\uff1f\u061f\u037e"
"""Ends of a question in Latin and most other scripts, Chinese and Japanese, Arabic, and Greek."""
ASKING_SHARE, ANSWERING_SHARE = 0.6, 0.3
"""Shares of the score of a passage that ends in a question: what it keeps, and what the next one gets. A long answer
gets nothing."""
ADVICE_WEIGHT = 0.4
"""Factor for the score of a passage of a long answer, measured: long chats find 53 % without it, 93 % from 0.4 down to
0.2."""

SATURATION, LENGTH = 1.2, 0.75
"""BM25's k1 and b: how much a repeated word adds, and how much a long passage counts for less."""
NEIGHBOURS = (0.5, 0.25)
"""Shares of a word's weight for the passages next to the one that holds it, and for those next to them."""
RARITY_POWER = 2
COMMON_SHARE, FEW_PASSAGES = 0.25, 100
"""A word in a larger share of the passages, and in more than these, distinguishes nothing and takes long to look at."""
MOST_NEAR = 2_000
"""Passages that are scored for one question, about."""

LONGEST_WORD, LONGEST_NAME = 64, 120
"""Characters. Of a longer word only the beginning counts, and the parts of a longer name, such as encoded bytes, mean
nothing."""
LANGUAGE_SHARE, LEAST_COMMON_WORDS = 0.12, 5
"""Least share and number of a text's words that are among the commonest of its language."""
BYTES_A_WORD, BYTES_A_PASSAGE = 400, 200

_BREAKS = ("\n\n", "\n", "}, ", ". ", "? ", "! ", "\u3002", "; ", ", ", ",", " ")
"""Signs behind which a passage may end, the best first."""
_SENTENCE_END = re.compile(r"[.!?\u3002\uff01\uff1f][\"')*\u201d]*\s+|\n\s*")
_LETTERS = re.compile(r"\w")
_TOKEN = re.compile(r"\w+(?:[-./:@#+'\u2019]\w+|,\d+)*")
_PARTS = re.compile(r"[^\W\d_]+|\d+")
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")
_UNSPACED = re.compile(
    "([\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\uff66-\uff9d\U00020000-\U0003ffff]+)"
)
"""Thai, Lao, Burmese, Khmer, Japanese and Chinese."""
_COMMONEST = {
    "english": "the and to of is that it for you with this have what are was not can but please how my your be from",
    "german": "der die und das ist nicht ich es mit sie ein den von auf zu für eine bitte wie wir auch dem kann im",
    "french": "le la les de des et est une pour que pas je vous dans sur ce qui avec il au du en nous sont cette",
    "spanish": "el la de que los y en un una es por con para no se las del lo como más pero su al mi está",
    "portuguese": "o que de não é uma um para com os se da do em por mais como as dos na eu você isso está no",
    "italian": "il di che è la un per non una con sono gli del della si come ma le anche mi alla questo nel ho",
    "dutch": "de het een en van is dat niet ik met voor op zijn te aan er maar om je die ook heb naar bij",
    "swedish": "och att det är en som jag inte på för med den har till ett av om vi kan du var men så från",
    "danish": "og at det er en som jeg ikke på for med den har til et af om vi kan du var men så fra de",
    "norwegian": "og at det er en som jeg ikke på for med den har til et av om vi kan du var men så fra de",
    "finnish": "ja on ei se että hän oli mutta kun tai joka minä sinä niin kuin ovat myös voi olla tämä mitä",
    "polish": "i w nie się na jest że do z jak co ale czy po tak od dla jego są być proszę mi tego przez",
    "turkish": "bir ve bu için de da ne ile çok ben sen mi var daha gibi ama olarak ki o değil kadar nas\u0131l",
    "hungarian": "a az és nem hogy egy is van ez de csak meg mi ha már volt én azt vagy mint kell lesz hogyan",
    "romanian": "și de la în nu o un este pe să cu că care mai pentru din ce sunt dar am fi le cum se",
}
_SCRIPTS = (("russian", "\u0400", "\u04ff"), ("greek", "\u0370", "\u03ff"), ("arabic", "\u0600", "\u06ff"))
_COMMON_WORDS = {language: frozenset(words.split()) for language, words in _COMMONEST.items()}


def language_of(texts: Iterable[str]) -> str:
    """Name of the language that most words are in, as Snowball has it; empty where that is not clear."""
    # Names are in no language: a message full of paths and ids is in that of its few other words.
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
    """Position after the leading instructions."""
    source: int
    """Number of the source among the message's texts, and then its calls' arguments."""
    start: int
    stop: int
    """End of the passage, in characters of its source."""


def sources(message: Message) -> Sequence[str]:
    return (*message.texts, *(call.arguments for call in (*message.calls, *message.settled)))


def tool_called(message: Message, source: int) -> str:
    calls = (*message.calls, *message.settled)
    return calls[source - len(message.texts)].name if source >= len(message.texts) else ""


def text_of(message: Message, passage: Passage) -> str:
    return sources(message)[passage.source][passage.start : passage.stop]


def is_advice(message: Message) -> bool:
    """Whether a message is a long answer of the assistant."""
    return message.kind is Kind.ASSISTANT and sum(map(len, message.texts)) > LONGEST_PASSAGE


def passages_in(message: Message, index: int) -> Iterator[Passage]:
    """A message's passages, in order; none of sealed messages, which only their provider may read, nor of thoughts."""
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
"""Numbers of the passages that hold a word, ascending, and how often each does."""
NO_POSTINGS: Postings = array("I"), array("H")
Weights = Mapping[str, float]
"""Weights of a question's words."""
Scores = Mapping[int, float]
"""Scores of passages by their number; those that hold no word of the question are missing."""


class Index:
    """Index of one history. Not to be used by two threads at a time."""

    def __init__(self, language: str) -> None:
        self._stemmer = snowballstemmer.stemmer(language) if language else None
        self._stems: dict[str, str] = {}
        self.passages: list[Passage] = []
        self._weights = array("f")
        """Factor of each passage's score, by its speaker."""
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
        """The words of a text, in order; of a name the whole before its parts."""
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
        """The words of a passage, read again: to keep them would take as much memory as the rest."""
        passage = self.passages[number]
        return self._count(history[passage.message], passage)

    def passages_before(self, message: int) -> int:
        return self._first_passages[message] if message < len(self) else len(self.passages)

    def rarity(self, word: str, among: int) -> float:
        """How much a word distinguishes among the first so many passages; most for one that none of them holds."""
        holding = len(self._postings_among(word, among)[0])
        return float(log(1 + (among - holding + 0.5) / (holding + 0.5)) ** RARITY_POWER)

    def scores(self, asked: Weights, among: int) -> Scores:
        """Score those of the first so many passages that are near one of the rarest words."""
        postings = {word: self._postings_among(word, among) for word in asked}
        words = [word for word in asked if 0 < len(postings[word][0]) <= max(COMMON_SHARE * among, FEW_PASSAGES)]
        words.sort(key=lambda word: len(postings[word][0]))
        near = set[int]()  # The passages that hold the first, rarest words, and those around them.
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
    """How often a word stands in each passage that is `near`, its neighbours counted in."""
    often: dict[int, float] = {}
    for number, times in zip(*postings, strict=True):
        if number in near:
            often[number] = often.get(number, 0.0) + times
            for distance, share in enumerate(NEIGHBOURS, 1):
                for neighbour in (number - distance, number + distance):
                    if neighbour in near:
                        often[neighbour] = often.get(neighbour, 0.0) + share * times
    return often
