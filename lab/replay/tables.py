"""Tables over presets: one line each, for the terminal or as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import get_args

from rich.console import Console
from rich.table import Table

from lab.replay.recall import Distribution, Reached, Way, shares_by_kind
from lab.replay.survival import FAR, KINDS, Needed, Used
from lab.replay.tally import Tally


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

    @property
    def width(self) -> int:
        """Width on a terminal: only the names of columns may be wrapped, between words."""
        columns = zip(self.header, *self.rows, strict=True)
        return 1 + sum(3 + max(map(len, (*name.split(), *cells))) for name, *cells in columns)

    def show(self) -> None:
        """Show in the width of the output. Where the columns do not fit, they become lines, and the lines columns."""
        console = Console()
        for grid in (self,) if self.width <= console.width else self._turned(console.width):
            console.print(grid.table())
        if self.note:
            console.print(self.note, highlight=False)

    def _turned(self, width: int) -> list[Grid]:
        """Grids of as many lines each as fit beside each other."""
        parts: list[list[tuple[str, ...]]] = []
        for row in self.rows:
            if parts and self._of_columns([*parts[-1], row]).width <= width:
                parts[-1].append(row)
            else:
                parts.append([row])
        return [self._of_columns(part) for part in parts]

    def _of_columns(self, rows: Sequence[tuple[str, ...]]) -> Grid:
        header, *turned = zip(self.header, *rows, strict=True)
        return Grid(self.title, header, turned)

    def table(self) -> Table:
        table = Table(title=self.title, title_justify="left")
        for place, name in enumerate(self.header):
            table.add_column(name, justify="right" if place else "left", overflow="fold")
        for row in self.rows:
            table.add_row(*row)
        return table


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


def recalled(
    presets: Sequence[tuple[str, Sequence[Reached]]], windows: Sequence[int], files: str, summariser: str
) -> Grid:
    """Table of what the questions could reach, and how."""
    spread_over = "min", "lower quartile", "median", "upper quartile", "max"
    header = ("preset", "mean", *spread_over, "verbatim", "recalled", "in a summary", "by chance")
    rows = []
    for name, reached in presets:
        spread = Distribution.of(reached)
        rows.append((name, *(f"{share:.1%}" for share in (spread.mean, *spread.five)), *_parts(reached)))
    return Grid(f"Reachable question evidence, {_title(files, windows)}", header, rows, summariser)


def by_kind(presets: Sequence[tuple[str, Sequence[Reached], Tally]], windows: Sequence[int], files: str) -> Grid:
    """Table of the questions whose evidence all stood in the payload letter by letter, and of what that cost."""
    kinds = {kind: many for _, reached, _ in presets for kind, (many, _) in shares_by_kind(reached).items()}
    costs = "recalled tokens per question", "recalled tokens per request", "prefix kept"
    header = ("preset", *(f"{kind} ({many:,})" for kind, many in kinds.items()), *costs)
    rows = []
    for name, reached, tally in presets:
        shares = shares_by_kind(reached)
        tokens = fmean(outcome.tokens for each in reached for outcome in each.outcomes)
        on_the_way = tally.recalled_tokens / max(1, tally.requests)
        spent = f"{tokens:,.0f}", f"{on_the_way:,.0f}", f"{tally.prefix_kept:.1%}"
        rows.append((name, *(f"{shares[kind][1]:.1%}" for kind in kinds), *spent))
    return Grid(f"Evidence in the payload letter by letter, {_title(files, windows)}", header, rows)


def values_used(lines: Sequence[tuple[str, Sequence[Used]]], windows: Sequence[int], files: str) -> Grid:
    """Table of the values that answers use and that were last said long before: how many stood in the payload."""
    kinds = [kind for kind in KINDS if any(each.value.kind == kind for _, used in lines for each in used)]
    rows = []
    for name, used in lines:
        parts = (used, *([each for each in used if each.value.kind == kind] for kind in kinds))
        rows.append((name, f"{len(used):,}", *(_share([each.stands for each in part]) for part in parts)))
    title = f"Values used again after more than {FAR} messages, {_title(files, windows)}"
    return Grid(title, ("preset", "used", "in the payload", *kinds), rows)


def values_needed(lines: Sequence[tuple[str, Sequence[Needed]]], windows: Sequence[int], files: str) -> Grid:
    """Table of the identifiers that answers use and that no whole message has: how many stood in the payload, and there
    on a line that says what they are, and whose."""
    rows = []
    for name, needed in lines:
        labelled = [each.labelled for each in needed if each.labelled is not None]
        owned = [each.owned for each in needed if each.owned is not None]
        shares = _share([each.stands for each in needed]), _share(labelled), _share(owned)
        rows.append((name, f"{len(needed):,}", *shares))
    title = f"Identifiers used again that no whole message has, {_title(files, windows)}"
    return Grid(title, ("preset", "used", "in the payload", "labelled", "owned"), rows)


def _share(found: Sequence[bool]) -> str:
    return f"{fmean(found):.1%}" if found else "-"


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


def _parts(reached: Sequence[Reached]) -> tuple[str, ...]:
    """Over all questions, whichever conversation they are about."""
    questions = sum(each.questions for each in reached)
    chance = [each.by_chance for each in reached if each.by_chance is not None]
    ways = (sum(each.by(way) for each in reached) for way in get_args(Way))
    return (*(f"{part / questions:.1%}" for part in ways), f"{sum(chance) / questions:.1%}" if chance else "-")
