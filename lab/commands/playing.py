"""Playing recordings once or with several settings, for all that `steno replay` measures."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import typer
from rich.console import Console

from lab.commands.progress import Advance, Begin, progress
from lab.formats.known import FORMATS, MESSAGES
from lab.replay.converting import converted
from lab.replay.player import Aside, Played, Player
from lab.replay.presets import MAY_REFUSE, settings_of
from lab.replay.recordings import Recording, chain, read_recordings
from lab.replay.stage import Stage, stage
from lab.replay.tables import Grid
from lab.replay.tally import Tally

SHOWN_VIOLATIONS = 20
DEFAULT_MODEL = "gpt-4o"
NO_KEY = "sk-replay"
"""The client wants one; the simulator takes any."""
AS_SET = "as set"
"""The line of a table for the settings in effect, where no preset is named."""

Format = Literal["table", "json", "markdown"]


@dataclass(frozen=True, slots=True)
class Options:
    """Options for playing recordings."""

    windows: tuple[int, ...]
    stream: bool | None = None
    upstream: str | None = None
    model: str | None = None
    database_url: str | None = None
    format: Format = "table"
    written: str | None = None
    """The name of the format to play in; None: as recorded."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One line of a table: the settings with which everything is played anew."""

    preset: str | None
    """Name of the preset; None: the settings in effect."""
    window: int
    recall_ratio: float | None = None
    """Share of the prompt's limit that recalled passages may take; None: as the preset has it."""
    name: str = AS_SET
    """Differences from the other lines, as a name."""

    @property
    def compaction(self) -> Mapping[str, Any]:
        return settings_of(self.preset, self.recall_ratio)

    def tally(self, name: str) -> Tally:
        return Tally(name, self.window, self.preset in MAY_REFUSE)


def variants(
    presets: Sequence[str | None], windows: Sequence[int], ratios: Sequence[float | None] = (None,)
) -> list[Variant]:
    """Return each preset in each window with each share for recalled passages."""
    made = [Variant(preset, window, ratio) for preset in presets for window in windows for ratio in ratios]
    return [replace(each, name=_name(each, several=len(windows) > 1)) for each in made]


def _name(variant: Variant, *, several: bool) -> str:
    window = [f"{variant.window:,}"] if several else []
    recall = [] if variant.recall_ratio is None else [f"recall {variant.recall_ratio:.0%}"]
    return ", ".join((variant.preset or AS_SET, *window, *recall))


def played(
    recordings: Sequence[Recording],
    variant: Variant,
    options: Options,
    see: Callable[[Played], None] = lambda _: None,
    asides: Callable[[Played], Iterable[Aside]] = lambda _: (),
    summary_edit: Callable[[str], str] = str,
) -> Tally:
    """All of them on a stage of their own."""
    with on_stage(variant, options, summary_edit) as set_up, progress() as begin:
        advance = advancing(begin, variant.name, recordings)

        def answered(request: Played) -> None:
            see(request)
            advance(request)

        return player(options, set_up).play(recordings, variant.tally(variant.name), answered, asides)


def on_stage(
    variant: Variant, options: Options, summary_edit: Callable[[str], str] = str
) -> AbstractContextManager[Stage]:
    model = options.model or DEFAULT_MODEL
    return stage(model, variant.window, options.upstream, options.database_url, variant.compaction, summary_edit)


def player(options: Options, set_up: Stage) -> Player:
    return Player(
        base_url=set_up.base_url,
        provider=set_up.provider,
        model=options.model or DEFAULT_MODEL,
        count=set_up.count,
        stream=options.stream,
        api_key=(os.environ.get(_key_name(options)) if options.upstream else None) or NO_KEY,
    )


def read(files: Sequence[Path], length: int, limit: int | None, options: Options) -> list[tuple[Path, list[Recording]]]:
    """Raises `UnreadableRecording`."""
    return [(file, _as_asked(chain(read_recordings(file), length)[:limit], options)) for file in files]


def advancing(begin: Begin, name: str, recordings: Sequence[Recording]) -> Advance:
    return begin(name, sum(len(recording.requests) for recording in recordings))


def names(files: Sequence[Path]) -> str:
    return ", ".join(file.name for file in files)


def print_grid(grid: Grid, form: Format) -> None:
    if form == "markdown":
        typer.echo(f"{grid.markdown()}\n")
    else:
        grid.show()


def show_violations(tallies: Sequence[tuple[str, Tally]]) -> None:
    console = Console(stderr=True)  # The table may be on its way into a document.
    for name, tally in tallies:
        list_violations(console, tally, f"{name}: ")


def list_violations(console: Console, tally: Tally, where: str) -> None:
    for violation in tally.violations[:SHOWN_VIOLATIONS]:
        place = f"{where}{violation.conversation}, request {violation.request}"
        console.print(f"{place}: {violation.kind}: {violation.sentence}", markup=False, highlight=False)
    if (more := len(tally.violations) - SHOWN_VIOLATIONS) > 0:
        console.print(f"{where}... and {more:,} more; --json lists them all", markup=False)


def _as_asked(recordings: Sequence[Recording], options: Options) -> list[Recording]:
    return [converted(each, FORMATS[options.written]) if options.written else each for each in recordings]


def _key_name(options: Options) -> str:
    return "ANTHROPIC_API_KEY" if options.written == MESSAGES.name else "OPENAI_API_KEY"
