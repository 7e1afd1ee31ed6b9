"""Recall: of what a conversation's questions are about, how much a model could still find in the last payload.

It measures the strategies, and not a model's summaries: the simulator's summariser copies first sentences and names, at
most 400 words, and never sees a question.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, quantiles
from typing import Any

from app.replay.player import Played
from app.replay.recordings import Question

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

_WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class Reached:
    """What was reachable at the end of one conversation."""

    conversation: str
    questions: int
    verbatim: int = 0
    """Questions of which all evidence stands in the payload."""
    summarised: int = 0
    """Others whose answer stands in a summary."""
    by_chance: int | None = None
    """Of the questions without their evidence, those answered in another conversation's summaries: what such a match
    is worth."""

    @property
    def share(self) -> float:
        return (self.verbatim + self.summarised) / self.questions

    def as_json(self) -> Mapping[str, Any]:
        return {
            "conversation": self.conversation,
            "questions": self.questions,
            "verbatim": self.verbatim,
            "summarised": self.summarised,
            "by_chance": self.by_chance,
            "reachable": round(self.share, 4),
        }


@dataclass(slots=True)
class Recall:
    """Gathers the last payload of each conversation."""

    _last: dict[str, Played] = field(default_factory=dict)

    def see(self, played: Played) -> None:
        self._last[played.recording.name] = played

    def reached(self) -> list[Reached]:
        """By conversation, in the order they were played in."""
        played = [last for last in self._last.values() if last.recording.questions]
        others = [*played[1:], *played[:1]] if len(played) > 1 else [None] * len(played)
        return [_reached(last, other) for last, other in zip(played, others, strict=True)]


@dataclass(frozen=True, slots=True)
class Distribution:
    """Of the conversations' shares."""

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


def _reached(last: Played, other: Played | None) -> Reached:
    recording = last.recording
    hidden = [question for question in recording.questions if not _is_shown(question, last)]
    return Reached(
        conversation=recording.name,
        questions=len(recording.questions),
        verbatim=len(recording.questions) - len(hidden),
        summarised=_answered(hidden, last),
        by_chance=None if other is None else _answered(hidden, other),
    )


def _is_shown(question: Question, last: Played) -> bool:
    """Whether every remark that it takes to answer stands in the payload, in a message that is whole or shortened."""
    remarks = (last.recording.remarks[name] for name in question.evidence)
    shown = last.verdict.places if last.verdict.accepted else {}  # Refused, it was shown to no model.
    return all(r.index in shown and any(r.text in piece for piece in shown[r.index].pieces) for r in remarks)


def _answered(questions: Sequence[Question], last: Played) -> int:
    """How many are answered in the summaries of that payload."""
    texts = last.verdict.summaries if last.verdict.accepted else ()
    return sum(any(answered_in(question.answer, text) for text in texts) for question in questions)


def _words(text: str) -> list[str]:
    plain = "".join(letter for letter in unicodedata.normalize("NFKD", text) if not unicodedata.combining(letter))
    return _WORD.findall(plain.lower())
