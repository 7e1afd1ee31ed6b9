"""`steno replay`: recordings in, tables of what happened out, and exit status 1 if anything went missing.

`--recall` and `--survival` play the same recordings, and measure the payloads.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import typer
from rich.console import Console
from rich.table import Table

from app.cli.terminal import print_json
from lab.commands.progress import Advance, Begin, progress
from lab.formats.known import FORMATS, MESSAGES
from lab.replay.converting import converted
from lab.replay.player import Aside, Played, Player
from lab.replay.presets import MAY_REFUSE, chosen, settings_of
from lab.replay.recall import Recall
from lab.replay.recordings import Recording, UnreadableRecording, chain, read_recordings, with_questions
from lab.replay.stage import Stage, stage
from lab.replay.survival import Survival, Used, without_values
from lab.replay.tables import Grid, by_kind, compared, values_needed, values_used
from lab.replay.tally import Tally

SHOWN = 20
"""Lines about violations, and about absent values."""
DEFAULT_MODEL = "gpt-4o"
NO_KEY = "sk-replay"
"""The client wants one; the simulator takes any."""
AS_SET = "as set"
"""The line of a table for the settings in effect, where no preset is named."""
Printed = Literal["table", "json", "markdown"]


@dataclass(frozen=True, slots=True)
class Options:
    """Recordings to play, and the form of the result."""

    files: Sequence[Path]
    windows: tuple[int, ...]
    presets: str | None = None
    """Names with commas, or `all`; None: the settings in effect."""
    ratios: tuple[float, ...] = ()
    """Shares of the limit that recalled passages may take; none: as the preset has it."""
    chain: int = 1
    limit: int | None = None
    upstream: str | None = None
    model: str | None = None
    printed: Printed = "table"
    written: str | None = None
    """The name of the format to play in; None: as recorded."""

    @property
    def names(self) -> str:
        return ", ".join(file.name for file in self.files)

    def read(self) -> list[tuple[Path, list[Recording]]]:
        """The recordings of each file. Raises `UnreadableRecording`."""
        return [
            (file, [self._as_asked(each) for each in chain(read_recordings(file), self.chain)[: self.limit]])
            for file in self.files
        ]

    def recordings(self) -> list[Recording]:
        return [recording for _, recordings in self.read() for recording in recordings]

    def variants(self) -> list[Variant]:
        """Each preset in each window with each share for recalled passages. Raises `ConfigurationError`."""
        presets = (None,) if self.presets is None else chosen(self.presets)
        ratios = self.ratios or (None,)
        made = [Variant(preset, window, ratio) for preset in presets for window in self.windows for ratio in ratios]
        return [replace(each, name=_name(each, several=len(self.windows) > 1)) for each in made]

    def _as_asked(self, recording: Recording) -> Recording:
        return converted(recording, FORMATS[self.written]) if self.written else recording


@dataclass(frozen=True, slots=True)
class Variant:
    """One line of a table: the settings with which everything is played anew."""

    preset: str | None
    window: int
    recall_ratio: float | None = None
    name: str = AS_SET
    """Differences from the other lines, as a name."""

    def tally(self, name: str) -> Tally:
        return Tally(name, self.window, self.preset in MAY_REFUSE)

    def as_json(self) -> Mapping[str, Any]:
        return {"preset": self.preset or AS_SET, "window": self.window, "recall_ratio": self.recall_ratio}


def _name(variant: Variant, *, several: bool) -> str:
    window = [f"{variant.window:,}"] if several else []
    recall = [] if variant.recall_ratio is None else [f"recall {variant.recall_ratio:.0%}"]
    return ", ".join((variant.preset or AS_SET, *window, *recall))


# The commands: each returns the exit status, and raises `UnreadableRecording` or `ConfigurationError`


def replay_files(options: Options) -> int:
    """Replay each file, all with one database, and print its table."""
    files = options.read()
    variant, *_ = options.variants()
    tallies: list[Tally] = []
    with _on_stage(variant, options) as set_up, progress() as begin:
        player = _player(options, set_up)
        for file, recordings in files:
            advance = _advancing(begin, file.name, recordings)
            tallies.append(player.play(recordings, variant.tally(file.name), advance))
    if options.printed == "json":
        print_json([tally.as_json() for tally in tallies])
    else:
        for tally in tallies:
            _show(Console(), tally)
    return _status(tallies)


def compare_presets(options: Options) -> int:
    """Replay the same recordings once for each preset, each with a database of its own."""
    recordings = options.recordings()
    tallies = [(variant, _played(recordings, variant, options)) for variant in options.variants()]
    if options.printed == "json":
        print_json([{"preset": variant.name, **tally.as_json()} for variant, tally in tallies])
    else:
        _print_compared(tallies, options)
    return _status(tally for _, tally in tallies)


def measure_recall(options: Options, questions: Path | None) -> int:
    """Ask each question at the end of its conversation, and look whether the payload has its evidence."""
    recordings = options.recordings()
    if questions is not None:
        recordings = with_questions(recordings, questions)
    asked = [recording.followed_by_a_question() for recording in recordings if recording.questions]
    if not asked:
        raise UnreadableRecording(f"{options.names}: no conversation has questions whose evidence is in it.")
    found = []
    for variant in options.variants():
        recall = Recall()
        tally = _played(asked, variant, options, asides=recall.asides)
        found.append((variant, recall, tally))
    if options.printed == "json":
        print_json(
            [{**variant.as_json(), **recall.as_json(), "replay": tally.as_json()} for variant, recall, tally in found]
        )
    else:
        named = [(variant.name, recall.outcomes, tally) for variant, recall, tally in found]
        _print(by_kind(named, options.windows, options.names), options)
        _print_compared([(variant, tally) for variant, _, tally in found], options)
    return _status(tally for _, _, tally in found)


def measure_survival(options: Options) -> int:
    """Look which exact values of a conversation stand in its payloads after it was compacted."""
    recordings = options.recordings()
    found = []
    for variant in options.variants():
        survival = Survival()
        tally = _played(recordings, variant, options, survival.see, summary_edit=without_values)
        found.append((variant, survival, tally))
    if options.printed == "json":
        print_json(
            [{**variant.as_json(), **seen.as_json(), "replay": tally.as_json()} for variant, seen, tally in found]
        )
    else:
        used = [(variant.name, survival.used) for variant, survival, _ in found]
        needed = [(variant.name, survival.needed) for variant, survival, _ in found]
        _print(values_used(used, options.windows, options.names), options)
        _print(values_needed(needed, options.windows, options.names), options)
        _print_compared([(variant, tally) for variant, _, tally in found], options)
        for name, values in used:
            _list(f"{name}: ", [_absence(each) for each in values if not each.stands])
    return _status(tally for _, _, tally in found)


# Playing


def _played(
    recordings: Sequence[Recording],
    variant: Variant,
    options: Options,
    see: Callable[[Played], None] = lambda _: None,
    asides: Callable[[Played], Iterable[Aside]] = lambda _: (),
    summary_edit: Callable[[str], str] = str,
) -> Tally:
    """All of them on a stage of their own."""
    with _on_stage(variant, options, summary_edit) as set_up, progress() as begin:
        advance = _advancing(begin, variant.name, recordings)

        def answered(request: Played) -> None:
            see(request)
            advance(request)

        return _player(options, set_up).play(recordings, variant.tally(variant.name), answered, asides)


def _on_stage(
    variant: Variant, options: Options, summary_edit: Callable[[str], str] = str
) -> AbstractContextManager[Stage]:
    compaction = settings_of(variant.preset, variant.recall_ratio)
    return stage(options.model or DEFAULT_MODEL, variant.window, options.upstream, compaction, summary_edit)


def _player(options: Options, set_up: Stage) -> Player:
    variable = "ANTHROPIC_API_KEY" if options.written == MESSAGES.name else "OPENAI_API_KEY"
    return Player(
        base_url=set_up.base_url,
        provider=set_up.provider,
        model=options.model or DEFAULT_MODEL,
        count=set_up.count,
        api_key=(os.environ.get(variable) if options.upstream else None) or NO_KEY,
    )


def _advancing(begin: Begin, name: str, recordings: Sequence[Recording]) -> Advance:
    return begin(name, sum(len(recording.requests) for recording in recordings))


# Printing


def _status(tallies: Iterable[Tally]) -> int:
    return 1 if any(tally.violations for tally in tallies) else 0


def _print(grid: Grid, options: Options) -> None:
    if options.printed == "markdown":
        typer.echo(f"{grid.markdown()}\n")
    else:
        grid.show()


def _print_compared(tallies: Sequence[tuple[Variant, Tally]], options: Options) -> None:
    named = [(variant.name, tally) for variant, tally in tallies]
    _print(compared(named, options.windows, options.names), options)
    for name, tally in named:
        _list(f"{name}: ", _violations(tally))


def _show(console: Console, tally: Tally) -> None:
    table = Table(title=f"{tally.file}, window {tally.window:,}", title_justify="left", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for name, value in tally.rows():
        table.add_row(name, value)
    console.print(table)
    _list("", _violations(tally), console)


def _violations(tally: Tally) -> list[str]:
    return [f"{each.conversation}, request {each.request}: {each.kind}: {each.sentence}" for each in tally.violations]


def _absence(used: Used) -> str:
    where = f"{used.conversation}, request {used.request}"
    return f"{where}: {used.value.text} was last said {used.ago:,} messages before, and is not in the payload."


def _list(where: str, lines: Sequence[str], console: Console | None = None) -> None:
    console = console or Console(stderr=True)  # The table may be on its way into a document.
    for line in lines[:SHOWN]:
        console.print(f"{where}{line}", markup=False, highlight=False, soft_wrap=True)
    if (more := len(lines) - SHOWN) > 0:
        console.print(f"{where}... and {more:,} more; --json lists them all", markup=False)
