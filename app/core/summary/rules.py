"""Standing rules: sentences in which the user sets a rule for what follows, found by code and kept letter by letter.

A sentence is one if it begins like an order for later ("never push to main", "from now on ..."), or says what somebody
wants of the assistant whenever it comes up. What revokes a rule ("you may push to main again") is one as well: both are
kept, in their order, and whoever reads them sees which is newer. Nothing is made out of their meaning.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from hashlib import blake2b

from msgspec import Struct

from app.core.history.authored_text import authored_text
from app.core.history.messages import Message
from app.core.summary.beside import fitting
from app.core.summary.sentences import Sentence, sentences_in
from app.core.wordings import read_wordings
from app.tokens.estimate import Count

WINDOW_SHARE = 0.01
"""Share of the window that rules take at most."""
MOST_RULES = 1_000
"""Most rules of one range: whoever writes more has not typed them."""
REMEMBERED = 16_384
"""Sentences of which this process keeps whether they set a rule, at about 300 bytes each: while no summary can be made,
they come again with every request."""

_WESTERN = ("english", "german", "french", "spanish", "portuguese", "italian")
_EASTERN = ("chinese", "japanese")
_PATTERNS = ("opens", "begins", "holds", "tale", "asks", "heads")
_NEVER = "(?!)"
_EASTERN_SIGN = re.compile("[\u3040-\u30ff\u3400-\u9fff]")


class Rule(Struct, frozen=True):
    text: str
    """Letter by letter."""
    index: int
    """Position of its message."""


class NewRules(Struct, frozen=True):
    """Rules that the messages of one compaction set, newest first."""

    kept: tuple[Rule, ...] = ()
    left_out: tuple[Rule, ...] = ()
    """Rules that there is no room for."""

    def between(self, start: int, stop: int) -> tuple[list[str], int]:
        """The rules of a part of these messages, and how many of it are left out."""
        kept = [rule.text for rule in self.kept if start <= rule.index < stop]
        return kept, sum(start <= rule.index < stop for rule in self.left_out)


class _Language:
    """Patterns of one language, as `languages/<name>.toml` lists them.

    Most sentences with "always" or "never" are no rules: somebody speaks of himself or of others. So a rule is what
    begins like an order, or is said to "you"; and what begins with another subject is a tale. Every pattern is matched
    against single sentences of bounded length, without regard to case. A form that the file leaves out never matches.
    """

    def __init__(self, name: str) -> None:
        patterns = _patterns(name)
        self._opens = patterns["opens"]
        """Thanks, a greeting or a name that may stand before a rule; it may match nothing."""
        self._begins = patterns["begins"]
        """How a rule begins, after an optional `opens`."""
        self._holds = patterns["holds"]
        """Words that make a sentence a rule wherever they stand, unless the sentence begins as a tale."""
        self._tale = patterns["tale"]
        """How a sentence begins whose subject is somebody else than who is addressed."""
        self._asks = patterns["asks"]
        """How a question that sets a rule begins."""
        self._heads = patterns["heads"]
        """How a heading begins under which rules are listed."""

    def sets_rule(self, sentence: Sentence) -> bool:
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
def _language(name: str) -> _Language:
    """Made when it is needed first: all of them take a tenth of a second."""
    return _Language(name)


def _patterns(language: str) -> Mapping[str, re.Pattern[str]]:
    """The patterns of a language's file; a list is of alternatives.

    `greetings` stands for `opens`: words of which up to four may come before a rule, or a name of one or two words.
    """
    read = read_wordings(__package__, f"languages/{language}.toml")["patterns"]
    written = {name: said if isinstance(said, str) else "|".join(said) for name, said in read.items()}
    if "greetings" in written:
        opening = r"(?:(?:{greetings})(?:\s?[,.:;!–—-]+\s*|\s+)){1,4}|[^\W\d_]{2,15}(?: [^\W\d_]{2,15})?,\s+|"  # noqa: RUF001
        written["opens"] = opening.replace("{greetings}", written["greetings"])
    return {name: re.compile(written.get(name, _NEVER), re.IGNORECASE) for name in _PATTERNS}


def rules_in(messages: Sequence[Message], start: int = 0, stop: int | None = None) -> list[Rule]:
    """The rules that the user sets in the messages from `start` up to `stop`, newest first, each once: as new as its
    last time. What stands before them says whose words theirs are.
    """
    found: dict[str, Rule] = {}
    for index, pieces in authored_text(messages, start, stop):
        for rule in rules_of(pieces):
            found.pop(rule, None)
            found[rule] = Rule(rule, index)
    return [*reversed(found.values())][:MOST_RULES]


def new_rules(found: Iterable[Rule], held: Collection[str], room: int, count: Count) -> NewRules:
    """Rules that are new beside `held`, as many as take at most `room` tokens, the newest first."""
    new = [rule for rule in found if rule.text not in held]
    texts = fitting((rule.text for rule in new), room, count)
    return NewRules(
        tuple(rule for rule in new if rule.text in texts), tuple(rule for rule in new if rule.text not in texts)
    )


def rules_of(pieces: Iterable[str]) -> Iterator[str]:
    """The rules in what the user wrote of one message, in their order."""
    for sentence in sentences_in(pieces):
        if _is_rule(sentence):
            yield sentence.text
        else:
            yield from (item.text for item in sentence.items if _is_rule(item))


def _is_rule(sentence: Sentence) -> bool:
    key = f"{bool(sentence.items)} {sentence.read}".encode("utf-8", "surrogatepass")
    kept = _kept(blake2b(key, digest_size=16).digest())
    if not kept:
        languages = _EASTERN if _EASTERN_SIGN.search(sentence.read) else _WESTERN
        kept.append(any(_language(name).sets_rule(sentence) for name in languages))
    return kept[0]


@lru_cache(REMEMBERED)
def _kept(_: bytes) -> list[bool]:
    """List that holds whether the sentence with this digest sets a rule, once that is known."""
    return []
