"""Tallies of replays, and the table that compares them, as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from lab.replay.judge import Verdict, Violation

FROM_REFUSALS = frozenset({"refused", "no_answer"})
_FATES = ("verbatim", "summarised", "shortened", "pruned", "lost")


@dataclass(slots=True)
class Tally:
    name: str
    window: int
    may_refuse: bool = False
    """The settings do not promise that every request fits: what the provider refuses is counted, and no violation."""
    requests: int = 0
    summary_calls: int = 0
    compactions: int = 0
    """Accepted requests in which summaries were made or taken up, or other messages than before shortened or left
    out."""
    folds: int = 0
    prefix_breaks: int = 0
    previous_bytes: int = 0
    kept_bytes: int = 0
    tokens_direct: int = 0
    tokens_forwarded: int = 0
    summary_tokens: int = 0
    """Prompts of the summary calls."""
    largest_prompt: int = 0
    too_large: int = 0
    """Requests that the provider would have refused without Steno."""
    errors: int = 0
    """Requests to which the client got an error."""
    messages: int = 0
    """Number of messages in the histories, over all requests; the following add up to it."""
    verbatim: int = 0
    summarised: int = 0
    shortened: int = 0
    pruned: int = 0
    lost: int = 0
    refused: int = 0
    """Number of messages in requests that the provider did not answer."""
    violations: list[Violation] = field(default_factory=list)

    @property
    def prefix_kept(self) -> float:
        """Share of the previous payloads' bytes with which the next ones began."""
        return self.kept_bytes / self.previous_bytes if self.previous_bytes else 1.0

    def add(self, verdict: Verdict, direct: int, forwarded: int, summary_tokens: int) -> None:
        """One more request, with the tokens of the client's own history, of its payload and of its summary calls."""
        self.requests += 1
        self.tokens_direct += direct
        self.summary_tokens += summary_tokens
        self.too_large += direct > self.window
        self._sum(verdict, ("summary_calls", "folds", "messages"))
        if verdict.accepted:
            self.compactions += verdict.compaction
            self.prefix_breaks += verdict.broke
            self.tokens_forwarded += forwarded
            self.largest_prompt = max(self.largest_prompt, forwarded)
            self._sum(verdict, ("previous_bytes", "kept_bytes", *_FATES))
        else:
            self.refused += verdict.messages

    def _sum(self, verdict: Verdict, names: Iterable[str]) -> None:
        for name in names:
            setattr(self, name, getattr(self, name) + getattr(verdict, name))

    def object(self, violations: Iterable[Violation]) -> None:
        self.violations += (each for each in violations if not (self.may_refuse and each.kind in FROM_REFUSALS))

    def share(self, messages: int) -> float:
        return messages / self.messages if self.messages else 0.0


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


def compared(tallies: Sequence[Tally], title: str) -> Grid:
    """Table of what each preset made of the same requests."""
    rows = [_cells(tally) for tally in tallies]
    return Grid(title, tuple(rows[0]), [tuple(row.values()) for row in rows])


def _cells(tally: Tally) -> dict[str, str]:
    return {
        "preset": tally.name,
        "requests": f"{tally.requests:,}",
        "too large without Steno": f"{tally.too_large:,}",
        "errors": f"{tally.errors:,}",
        "summary calls": f"{tally.summary_calls:,}",
        "compactions": f"{tally.compactions:,}",
        "tokens forwarded": f"{tally.tokens_forwarded:,}",
        "summary tokens": f"{tally.summary_tokens:,}",
        "prefix kept": f"{tally.prefix_kept:.1%}",
        "verbatim": f"{tally.share(tally.verbatim):.1%}",
        "summarised": f"{tally.share(tally.summarised):.1%}",
        "shortened": f"{tally.share(tally.shortened):.1%}",
        "pruned": f"{tally.share(tally.pruned):.1%}",
        "in refused requests": f"{tally.share(tally.refused):.1%}",
        "lost": f"{tally.share(tally.lost):.1%}",
        "violations": f"{len(tally.violations):,}",
    }
