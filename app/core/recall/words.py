"""Words: what a text is found by.

Words of any script, in one case, reduced to their stem where the language is known; in scripts without spaces each
pair of neighbouring characters. What names a thing (an id, a path, an amount) counts as a whole and in its parts: who
asks for `invoice_2041.pdf` means that, and who asks for the invoice may mean it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import pairwise

import snowballstemmer

LONGEST_WORD = 64
"""Characters. What is longer is nothing that people look for, and is known by its beginning."""
LONGEST_NAME = 120
"""Characters. Of something longer, such as encoded bytes, the parts mean nothing."""
TELLING_SHARE = 0.12
"""Least share of a text's words that are among the commonest of its language."""
LEAST_TELLING = 5

_TOKEN = re.compile(r"\w+(?:[-./:@#+'\u2019]\w+|,\d+)*")
_PARTS = re.compile(r"[^\W\d_]+|\d+")
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")
_UNSPACED = re.compile(
    "([\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\uff66-\uff9d\U00020000-\U0003ffff]+)"
)
"""Thai, Lao, Burmese, Khmer, Japanese and Chinese."""
_FIRST_UNSPACED = "\u0e00"

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
    "polish": "i w nie się na jest że do to z jak co ale czy po tak od dla jego są być proszę mi tego przez",
    "turkish": "bir ve bu için de da ne ile çok ben sen mi var daha gibi ama olarak ki o değil kadar nas\u0131l",
    "hungarian": "a az és nem hogy egy is van ez de csak meg mi ha már volt én azt vagy mint kell lesz hogyan",
    "romanian": "și de la în nu o un este pe să cu că care mai pentru din ce sunt dar am fi le cum se",
}
_SCRIPTS = (("russian", "\u0400", "\u04ff"), ("greek", "\u0370", "\u03ff"), ("arabic", "\u0600", "\u06ff"))
_SETS = {language: frozenset(words.split()) for language, words in _COMMONEST.items()}


def language_of(texts: Iterable[str]) -> str:
    """The language that most of the words are in, as Snowball calls it; empty where that is not clear."""
    # Names are in no language: a message full of paths and ids is in that of its few other words.
    tokens = (token for text in texts for token in _TOKEN.findall(text.lower()))
    words = [word for token in tokens if not is_name(token) for word in _PARTS.findall(token)]
    if not words:
        return ""
    found = {language: sum(word in common for word in words) for language, common in _SETS.items()}
    found |= {language: sum(least <= word[0] <= most for word in words) // 2 for language, least, most in _SCRIPTS}
    language = max(found, key=lambda each: found[each])
    return language if found[language] >= max(LEAST_TELLING, TELLING_SHARE * len(words)) else ""


class Words:
    """Reads words, each stem found once. Not to be used by two threads at a time."""

    def __init__(self, language: str) -> None:
        """`language` as `language_of` gives it."""
        self._stemmer = snowballstemmer.stemmer(language) if language else None
        self._stems: dict[str, str] = {}

    def of(self, text: str) -> Iterator[str]:
        """The words of a text, in order; of one thing its whole before its parts."""
        for token in _TOKEN.findall(text):
            if token.isascii() and token.isalpha() and (token.islower() or token.istitle()):
                yield self._stem(token.lower())
            else:
                yield from self._in_token(token)

    def __len__(self) -> int:
        """How many words were seen."""
        return len(self._stems)

    def _in_token(self, token: str) -> Iterator[str]:
        if is_name(token):
            whole = token.casefold()[:LONGEST_WORD]
            yield whole
            if "," in whole:
                yield whole.replace(",", "")
            if token.isdigit() or len(token) > LONGEST_NAME:
                return
        for part in _PARTS.findall(_CAMEL.sub(" ", token)):
            folded = part.casefold()
            if max(folded) < _FIRST_UNSPACED:
                yield self._stem(folded)
                continue
            for place, letters in enumerate(_UNSPACED.split(folded)):
                if not letters:
                    continue
                if place % 2 == 0:
                    yield self._stem(letters)
                elif len(letters) == 1:
                    yield letters
                else:
                    yield from (first + second for first, second in pairwise(letters))

    def _stem(self, word: str) -> str:
        word = word[:LONGEST_WORD]
        if self._stemmer is None:
            return word
        if (stem := self._stems.get(word)) is None:
            stem = self._stems[word] = self._stemmer.stemWord(word)
        return stem


def is_name(word: str) -> bool:
    """Whether a word names one thing, as ids, paths, numbers and addresses do."""
    return any(letter.isdigit() or letter in "_./:@#+" for letter in word)
