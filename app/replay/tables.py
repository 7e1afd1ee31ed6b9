"""Tables over presets: one line each, for the terminal or as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from app.replay.recall import Distribution, Reached
from app.replay.tally import Tally

WIDTH = 200
"""Columns are not folded where the output is no terminal."""


@dataclass(frozen=True, slots=True)
class Grid:
    title: str
    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    note: str = ""

    def markdown(self) -> str:
        ruler = ("---", *("---:" for _ in self.header[1:]))
        lines = [f"| {' | '.join(cells)} |" for cells in (self.header, ruler, *self.rows)]
        return "\n".join((f"{self.title}.", "", *lines, *(("", self.note) if self.note else ())))

    def show(self) -> None:
        table = Table(title=self.title, title_justify="left")
        for place, name in enumerate(self.header):
            table.add_column(name, justify="right" if place else "left", overflow="fold")
        for row in self.rows:
            table.add_row(*row)
        console = Console()
        if not console.is_terminal:
            console = Console(width=WIDTH)
        console.print(table)
        if self.note:
            console.print(self.note, highlight=False)


def compared(tallies: Sequence[tuple[str, Tally]], window: int, files: str) -> Grid:
    """What each preset made of the same requests."""
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
    return Grid(f"{files}, window {window:,}", header, [(name, *_cells(tally)) for name, tally in tallies])


def recalled(presets: Sequence[tuple[str, Sequence[Reached]]], window: int, files: str, summariser: str) -> Grid:
    """What was reachable at the ends of the conversations."""
    spread_over = "min", "lower quartile", "median", "upper quartile", "max"
    header = ("preset", "mean", *spread_over, "verbatim", "in a summary", "by chance")
    rows = []
    for name, reached in presets:
        spread = Distribution.of(reached)
        rows.append((name, *(f"{share:.1%}" for share in (spread.mean, *spread.five)), *_parts(reached)))
    return Grid(f"Reachable question evidence, {files}, window {window:,}", header, rows, summariser)


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


def _parts(reached: Sequence[Reached]) -> tuple[str, ...]:
    """Over all questions, whichever conversation they are about."""
    questions = sum(each.questions for each in reached)
    chance = [each.by_chance for each in reached if each.by_chance is not None]
    whole = sum(each.verbatim for each in reached), sum(each.summarised for each in reached)
    return (*(f"{part / questions:.1%}" for part in whole), f"{sum(chance) / questions:.1%}" if chance else "-")
