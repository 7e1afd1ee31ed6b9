"""Tables over presets, as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from lab.replay.recall import Outcome, shares_by_kind
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
