"""Recall: of what a conversation's questions are about, how much a model could still find in the payload that asks.

It measures the strategies, and not a model's summaries: the simulator's summariser copies first sentences and names, at
most 400 words, and never sees a question.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import fmean, quantiles
from typing import Any, Literal

from lab.replay.judge import Verdict
from lab.replay.player import Aside, Played
from lab.replay.recordings import Question, Recording

NEAR = 40
"""The words of an answer must stand within so many words of a summary: over all of it they meet by chance."""
UNTELLING = frozenset(
    re.findall(
        r"\w+",
        "a an and are as at be been but by did do does for from had has have he her his i in is it its likely my no not"
        " of on or our she so some that the their them they this to was we were which who will with would yes you your",
    )
)
"""Words that say nothing of an answer; nor do yes and no, which every summary may hold."""

Way = Literal["verbatim", "recalled", "summarised"]
"""How a question can be answered: from messages in the payload; from passages that are recalled in it, or from both;
from a summary."""

ALL_KINDS, SEVERAL, NO_KIND = "all questions", "of several remarks", "of no kind"

_WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class Outcome:
    """One question, asked."""

    question: Question
    way: Way | None = None
    """Way in which the question can be answered; None: it cannot be."""
    tokens: int = 0
    """Tokens of what was recalled for the question."""

    @property
    def to_the_letter(self) -> bool:
        """Whether all its evidence stands in the payload, letter by letter."""
        return self.way in ("verbatim", "recalled")


@dataclass(frozen=True, slots=True)
class Reached:
    """Questions that could be answered at the end of one conversation."""

    conversation: str
    outcomes: Sequence[Outcome]
    by_chance: int | None = None
    """Number of questions without their evidence that another conversation's summaries answer: what such a match is
    worth."""

    @property
    def questions(self) -> int:
        return len(self.outcomes)

    @property
    def reachable(self) -> int:
        return sum(outcome.way is not None for outcome in self.outcomes)

    @property
    def share(self) -> float:
        return self.reachable / self.questions

    def by(self, way: Way) -> int:
        return sum(outcome.way == way for outcome in self.outcomes)

    def as_json(self) -> Mapping[str, Any]:
        return {
            "conversation": self.conversation,
            "questions": self.questions,
            "verbatim": self.by("verbatim"),
            "recalled": self.by("recalled"),
            "summarised": self.by("summarised"),
            "by_chance": self.by_chance,
            "reachable": round(self.share, 4),
            "recalled_tokens": sum(outcome.tokens for outcome in self.outcomes),
        }


@dataclass(slots=True)
class Recall:
    """Gathers what each question found, by conversation."""

    _outcomes: dict[str, list[Outcome]] = field(default_factory=dict)
    _summaries: dict[str, Sequence[str]] = field(default_factory=dict)
    """Summaries of the last payload of each conversation."""

    def see(self, question: Question, played: Played) -> None:
        """The payload in which it was asked, or in which its evidence is looked for."""
        name, verdict = played.recording.name, played.verdict
        # Refused, it was shown to no model.
        way = _way(question, played.recording, verdict) if verdict.accepted else None
        self._outcomes.setdefault(name, []).append(Outcome(question, way, played.recalled))
        self._summaries[name] = verdict.summaries if verdict.accepted else ()

    def asides(self, played: Played) -> Iterator[Aside]:
        """At the end of a conversation each of its questions, as the user's next message."""
        if played.request == len(played.recording.requests):
            for question in played.recording.questions:
                yield Aside(played.recording.asked(question), partial(self.see, question))

    def reached(self) -> list[Reached]:
        """Results by conversation, in the order they were played in."""
        names = list(self._outcomes)
        others = [*names[1:], *names[:1]] if len(names) > 1 else [None] * len(names)
        return [self._reached(name, other) for name, other in zip(names, others, strict=True)]

    def _reached(self, name: str, other: str | None) -> Reached:
        outcomes = self._outcomes[name]
        hidden = [outcome.question for outcome in outcomes if not outcome.to_the_letter]
        chance = None if other is None else sum(_is_answered(each, self._summaries[other]) for each in hidden)
        return Reached(name, outcomes, chance)


@dataclass(frozen=True, slots=True)
class Distribution:
    """Distribution of the conversations' shares."""

    mean: float
    least: float
    quartiles: tuple[float, float, float]
    most: float

    @classmethod
    def of(cls, reached: Sequence[Reached]) -> Distribution:
        shares = [each.share for each in reached]
        lower, median, upper = quantiles(shares, n=4, method="inclusive") if len(shares) > 1 else shares * 3
        return cls(fmean(shares), min(shares), (lower, median, upper), max(shares))

    @property
    def five(self) -> tuple[float, ...]:
        """Least, quartiles, most."""
        return self.least, *self.quartiles, self.most


def shares_by_kind(reached: Iterable[Reached]) -> Mapping[str, tuple[int, float]]:
    """Count and share, by kind of question and for those that need several remarks, of the questions of which all
    evidence stood in the payload letter by letter."""
    groups: dict[str, list[bool]] = {ALL_KINDS: [], SEVERAL: []}
    for outcome in (outcome for each in reached for outcome in each.outcomes):
        groups[ALL_KINDS].append(outcome.to_the_letter)
        groups.setdefault(outcome.question.kind or NO_KIND, []).append(outcome.to_the_letter)
        if len(set(outcome.question.evidence)) > 1:
            groups[SEVERAL].append(outcome.to_the_letter)
    every, several = groups.pop(ALL_KINDS), groups.pop(SEVERAL)
    kinds = sorted(groups.items(), key=lambda group: -len(group[1]))
    ordered = ((ALL_KINDS, every), *kinds, (SEVERAL, several))
    return {name: (len(found), fmean(found)) for name, found in ordered if found}


def answered_in(answer: str, summary: str) -> bool:
    """Whether the words of an answer that tell something stand close together in a summary.

    Words are compared whole, in lower case and without accents, in any order; an answer without telling words is never
    found. Other words for the same thing are not recognised, and words of a short answer may meet by chance.
    """
    wanted = frozenset(_words(answer)) - UNTELLING
    if not wanted:
        return False
    words = _words(summary)
    last_seen: dict[str, int] = {}
    for position, word in enumerate(words):
        if word in wanted:
            last_seen[word] = position
            if len(last_seen) == len(wanted) and position - min(last_seen.values()) < NEAR:
                return True
    return False


def _way(question: Question, recording: Recording, verdict: Verdict) -> Way | None:
    """The best there is: every remark that it takes, in a message that is whole or shortened, or in a passage."""
    remarks = [recording.remarks[name] for name in question.evidence]
    places = [verdict.places[r.index].pieces if r.index in verdict.places else () for r in remarks]
    shown = [any(r.text in piece for piece in pieces) for r, pieces in zip(remarks, places, strict=True)]
    if all(shown):
        return "verbatim"
    passages = [verdict.passages.get(r.index, ()) for r in remarks]
    quoted = [any(r.text in text for text in texts) for r, texts in zip(remarks, passages, strict=True)]
    if all(either or other for either, other in zip(shown, quoted, strict=True)):
        return "recalled"
    return "summarised" if _is_answered(question, verdict.summaries) else None


def _is_answered(question: Question, summaries: Iterable[str]) -> bool:
    return any(answered_in(question.answer, text) for text in summaries)


def _words(text: str) -> list[str]:
    plain = "".join(letter for letter in unicodedata.normalize("NFKD", text) if not unicodedata.combining(letter))
    return _WORD.findall(plain.lower())
