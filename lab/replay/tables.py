"""Tables over presets, as Markdown, and the measure of recall that one of them shows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, Literal

from lab.replay.judge import Verdict
from lab.replay.player import Played
from lab.replay.recordings import Question, Recording
from lab.replay.tally import Tally


@dataclass(frozen=True, slots=True)
class Grid:
    title: str
    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]

    def markdown(self) -> str:
        """The table with a column for each row: figures are many, and presets few."""
        columns = [self.header, *self.rows]
        widths = [max(map(len, column)) for column in columns]
        ruler = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
        first, *others = zip(*columns, strict=True)
        lines = [
            f"| {cells[0]:<{widths[0]}} | {' | '.join(map(str.rjust, cells[1:], widths[1:]))} |"
            for cells in (first, ruler, *others)
        ]
        return "\n".join((f"{self.title}.", "", *lines))


def compared(tallies: Sequence[tuple[str, Tally]], windows: Sequence[int], files: str) -> Grid:
    """Table of what each preset made of the same requests."""
    header = (
        "preset",
        "requests",
        "too large without Steno",
        "errors",
        "summary calls",
        "compactions",
        "tokens forwarded",
        "summary tokens",
        "prefix kept",
        "verbatim",
        "summarised",
        "shortened",
        "pruned",
        "in refused requests",
        "lost",
        "violations",
    )
    return Grid(_title(files, windows), header, [(name, *_cells(tally)) for name, tally in tallies])


def by_kind(presets: Sequence[tuple[str, Sequence[Outcome], Tally]], windows: Sequence[int], files: str) -> Grid:
    """Table of the questions whose evidence all stood in the payload letter by letter, and of what that cost."""
    kinds = {kind: many for _, outcomes, _ in presets for kind, (many, _) in shares_by_kind(outcomes).items()}
    costs = "recalled tokens per question", "recalled tokens per request", "prefix kept"
    header = ("preset", *(f"{kind} ({many:,})" for kind, many in kinds.items()), *costs)
    rows = []
    for name, outcomes, tally in presets:
        shares = shares_by_kind(outcomes)
        tokens = fmean(outcome.tokens for outcome in outcomes)
        on_the_way = tally.recalled_tokens / max(1, tally.requests)
        spent = f"{tokens:,.0f}", f"{on_the_way:,.0f}", f"{tally.prefix_kept:.1%}"
        rows.append((name, *(f"{shares[kind][1]:.1%}" for kind in kinds), *spent))
    return Grid(f"Evidence in the payload letter by letter, {_title(files, windows)}", header, rows)


def _title(files: str, windows: Sequence[int]) -> str:
    return f"{files}, {'window' if len(windows) == 1 else 'windows'} {', '.join(f'{each:,}' for each in windows)}"


def _cells(tally: Tally) -> tuple[str, ...]:
    shares = (tally.verbatim, tally.summarised, tally.shortened, tally.pruned, tally.refused, tally.lost)
    return (
        f"{tally.requests:,}",
        f"{tally.too_large:,}",
        f"{tally.errors:,}",
        f"{tally.summary_calls:,}",
        f"{tally.compactions:,}",
        f"{tally.tokens_forwarded:,}",
        f"{tally.summary_tokens:,}",
        f"{tally.prefix_kept:.1%}",
        *(f"{tally.share(messages):.1%}" for messages in shares),
        f"{len(tally.violations):,}",
    )


# Recall: whether the evidence of a conversation's questions stands in the payload that asks them, letter by letter.

Way = Literal["verbatim", "recalled"]
"""Place of all evidence: messages of the payload, or for some of it passages that are recalled in it."""

ALL_KINDS, SEVERAL, NO_KIND = "all questions", "of several remarks", "of no kind"


@dataclass(frozen=True, slots=True)
class Outcome:
    question: Question
    way: Way | None = None
    """None: not all of its evidence stands in the payload."""
    tokens: int = 0
    """Tokens of what was recalled for the question."""


@dataclass(slots=True)
class Recall:
    outcomes: list[Outcome] = field(default_factory=list)

    def see(self, question: Question, played: Played) -> None:
        """The payload in which it was asked."""
        # Refused, it was shown to no model.
        way = _way(question, played.recording, played.verdict) if played.verdict.accepted else None
        self.outcomes.append(Outcome(question, way, played.recalled))

    def as_json(self) -> Mapping[str, Any]:
        kinds = shares_by_kind(self.outcomes).items()
        return {
            "kinds": {kind: {"questions": many, "to_the_letter": round(share, 4)} for kind, (many, share) in kinds},
            "recalled_tokens": sum(outcome.tokens for outcome in self.outcomes),
        }


def shares_by_kind(outcomes: Iterable[Outcome]) -> Mapping[str, tuple[int, float]]:
    """Count and share, by kind of question and for those that need several remarks, of the questions of which all
    evidence stood in the payload."""
    groups: dict[str, list[bool]] = {ALL_KINDS: [], SEVERAL: []}
    for outcome in outcomes:
        found = outcome.way is not None
        groups[ALL_KINDS].append(found)
        groups.setdefault(outcome.question.kind or NO_KIND, []).append(found)
        if len(set(outcome.question.evidence)) > 1:
            groups[SEVERAL].append(found)
    every, several = groups.pop(ALL_KINDS), groups.pop(SEVERAL)
    kinds = sorted(groups.items(), key=lambda group: -len(group[1]))
    ordered = ((ALL_KINDS, every), *kinds, (SEVERAL, several))
    return {name: (len(found), fmean(found)) for name, found in ordered if found}


def _way(question: Question, recording: Recording, verdict: Verdict) -> Way | None:
    """Every remark that it takes stands in a message, whole or shortened, among the user's words, or in a passage."""
    remarks = [recording.remarks[name] for name in question.evidence]
    places = [verdict.places[r.index].pieces if r.index in verdict.places else () for r in remarks]
    kept = [piece for message in verdict.payload for piece in message.pieces if "\n<words " in piece]
    shown = [any(r.text in piece for piece in (*pieces, *kept)) for r, pieces in zip(remarks, places, strict=True)]
    if all(shown):
        return "verbatim"
    passages = [verdict.passages.get(r.index, ()) for r in remarks]
    quoted = [any(r.text in text for text in texts) for r, texts in zip(remarks, passages, strict=True)]
    return "recalled" if all(either or other for either, other in zip(shown, quoted, strict=True)) else None
