"""Standing rules: sentences in which the user sets a rule for what follows, found by code and kept letter by letter.

A sentence is one if it begins like an order for later ("never push to main", "from now on ..."), or says what somebody
wants of the assistant whenever it comes up. What revokes a rule ("you may push to main again") is one as well: both are
kept, in their order, and whoever reads them sees which is newer. Nothing is made out of their meaning.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cache

from msgspec import Struct

from app.core.history.messages import Message
from app.core.history.own_words import own_words
from app.core.summary.beside import fitting
from app.core.summary.rule_patterns import EASTERN, WESTERN, Language
from app.core.summary.sentences import Sentence, sentences_in
from app.core.tokens.estimate import Count

Patterns = Sequence[re.Pattern[str]]

MOST_RULES = 1_000
"""Of one range: whoever writes more has not typed them."""

_EASTERN_SIGN = re.compile("[\u3040-\u30ff\u3400-\u9fff]")


class Rule(Struct, frozen=True):
    text: str
    """Letter by letter."""
    index: int
    """Of its message."""


class NewRules(Struct, frozen=True):
    """What the messages of one compaction set, newest first."""

    kept: tuple[Rule, ...] = ()
    left_out: tuple[Rule, ...] = ()
    """There is no room for these."""

    def between(self, start: int, stop: int) -> tuple[list[str], int]:
        """The rules of a part of these messages, and how many of it are left out."""
        kept = [rule.text for rule in self.kept if start <= rule.index < stop]
        return kept, sum(start <= rule.index < stop for rule in self.left_out)


class _Forms:
    """A language's patterns, ready to be matched."""

    def __init__(self, language: Language) -> None:
        self._opens = re.compile(language.opens, re.IGNORECASE)
        self._begins = re.compile(language.begins, re.IGNORECASE)
        self._holds = re.compile(language.holds, re.IGNORECASE)
        self._tale = re.compile(language.tale, re.IGNORECASE)
        self._asks = re.compile(language.asks, re.IGNORECASE)
        self._heads = re.compile(language.heads, re.IGNORECASE)

    def are_met_by(self, sentence: Sentence) -> bool:
        read = sentence.read
        opening = self._opens.match(read)
        places = {0, opening.end() if opening else 0}
        if sentence.items:
            return any(self._heads.match(read, place) for place in places)
        if sentence.is_question:
            return any(self._asks.match(read, place) for place in places)
        if read.endswith((":", "：")):  # noqa: RUF001 - it is meant
            return False  # What it announces is missing.
        if any(self._begins.match(read, place) for place in places):
            return True
        return self._holds.search(read) is not None and not any(self._tale.match(read, place) for place in places)


@cache
def _forms(languages: Sequence[Language]) -> Sequence[_Forms]:
    """Made when they are needed first: it takes a tenth of a second."""
    return tuple(map(_Forms, languages))


def rules_in(
    messages: Sequence[Message], further: Patterns = (), start: int = 0, stop: int | None = None
) -> list[Rule]:
    """The rules that the user sets in the messages from `start` up to `stop`, newest first, each once: as new as its
    last time. What stands before them says whose words theirs are.

    `further`: what else makes a sentence a rule, wherever it stands in it.
    """
    found: dict[str, Rule] = {}
    for index, pieces in own_words(messages, start, stop):
        for rule in _rules_of(pieces, further):
            found.pop(rule, None)
            found[rule] = Rule(rule, index)
    return [*reversed(found.values())][:MOST_RULES]


def new_rules(found: Iterable[Rule], held: Collection[str], room: int, count: Count) -> NewRules:
    """Those of the rules that are new beside `held`, as many as take at most `room` tokens, the newest first."""
    new = [rule for rule in found if rule.text not in held]
    texts = fitting((rule.text for rule in new), room, count)
    return NewRules(
        tuple(rule for rule in new if rule.text in texts), tuple(rule for rule in new if rule.text not in texts)
    )


def _rules_of(pieces: Iterable[str], further: Patterns) -> Iterator[str]:
    for sentence in sentences_in(pieces):
        if _is_rule(sentence, further):
            yield sentence.text
        else:
            yield from (item.text for item in sentence.items if _is_rule(item, further))


def _is_rule(sentence: Sentence, further: Patterns) -> bool:
    languages = EASTERN if _EASTERN_SIGN.search(sentence.read) else WESTERN
    return any(forms.are_met_by(sentence) for forms in _forms(languages)) or any(
        pattern.search(sentence.read) for pattern in further
    )
