"""`steno replay`: recordings in, tables of what happened out, and exit status 1 if anything went missing.

`--recall` and `--survival` play the same recordings, and measure the payloads.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import typer

from app.cli.terminal import print_json
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

PARTS = 10
SHOWN = 20
"""Lines about violations, and about absent values."""
DEFAULT_MODEL = "gpt-4o"
NO_KEY = "sk-replay"
"""The client wants one; the simulator takes any."""
AS_SET = "as set"
"""The line of a table for the settings in effect, where no preset is named."""


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
    as_json: bool = False
    written: str | None = None
    """The name of the format to play in; None: as recorded."""

    @property
    def names(self) -> str:
        return ", ".join(file.name for file in self.files)

    def recordings(self) -> list[Recording]:
        """Raises `UnreadableRecording`."""
        read = (each for file in self.files for each in chain(read_recordings(file), self.chain)[: self.limit])
        return [converted(each, FORMATS[self.written]) if self.written else each for each in read]

    def variants(self) -> list[Variant]:
        """Each preset in each window with each share for recalled passages. Raises `ConfigurationError`."""
        presets = (None,) if self.presets is None else chosen(self.presets)
        ratios = self.ratios or (None,)
        made = [Variant(preset, window, ratio) for preset in presets for window in self.windows for ratio in ratios]
        return [replace(each, name=_name(each, several=len(self.windows) > 1)) for each in made]


@dataclass(frozen=True, slots=True)
class Variant:
    """One line of a table: the settings with which everything is played anew."""

    preset: str | None
    window: int
    recall_ratio: float | None = None
    name: str = AS_SET
    """Differences from the other lines, as a name."""

    def as_json(self) -> Mapping[str, Any]:
        return {"preset": self.preset or AS_SET, "window": self.window, "recall_ratio": self.recall_ratio}


def _name(variant: Variant, *, several: bool) -> str:
    window = [f"{variant.window:,}"] if several else []
    recall = [] if variant.recall_ratio is None else [f"recall {variant.recall_ratio:.0%}"]
    return ", ".join((variant.preset or AS_SET, *window, *recall))


# The commands: each returns the exit status, and raises `UnreadableRecording` or `ConfigurationError`


def replay(options: Options) -> int:
    """Replay the same recordings once for each preset, window and share, each with a database of its own."""
    recordings = options.recordings()
    return _print_tallies([(line.name, _played(recordings, line, options)) for line in options.variants()], options)


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
        found.append((variant, recall, _played(asked, variant, options, asides=recall.asides)))
    named = [(variant.name, recall.outcomes, tally) for variant, recall, tally in found]
    return _print_measured(found, options, by_kind(named, options.windows, options.names))


def measure_survival(options: Options) -> int:
    """Look which exact values of a conversation stand in its payloads after it was compacted."""
    recordings = options.recordings()
    found = []
    for variant in options.variants():
        survival = Survival()
        tally = _played(recordings, variant, options, survival.see, summary_edit=without_values)
        found.append((variant, survival, tally))
    used = [(variant.name, survival.used) for variant, survival, _ in found]
    needed = [(variant.name, survival.needed) for variant, survival, _ in found]
    grids = (
        values_used(used, options.windows, options.names),
        values_needed(needed, options.windows, options.names),
    )
    status = _print_measured(found, options, *grids)
    for name, values in used:
        _list(f"{name}: ", [_absence(each) for each in values if not each.stands])
    return status


# Playing


def _played(
    recordings: Sequence[Recording],
    variant: Variant,
    options: Options,
    see: Callable[[Played], None] = lambda _: None,
    asides: Callable[[Played], Iterable[Aside]] = lambda _: (),
    summary_edit: Callable[[str], str] = str,
) -> Tally:
    """All of them on a stage of their own, with a line on standard error for each tenth of the requests."""
    requests, done = sum(len(recording.requests) for recording in recordings), 0

    def answered(request: Played) -> None:
        nonlocal done
        see(request)
        done += 1
        if done * PARTS // requests > (done - 1) * PARTS // requests:
            typer.echo(f"{variant.name}: {done:,} of {requests:,} requests ({done / requests:.0%})", err=True)

    with _on_stage(variant, options, summary_edit) as set_up:
        tally = Tally(variant.name, variant.window, variant.preset in MAY_REFUSE)
        return _player(options, set_up).play(recordings, tally, answered, asides)


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


# Printing


def _print_measured(found: Sequence[tuple[Variant, Recall | Survival, Tally]], options: Options, *grids: Grid) -> int:
    """Print what was measured of each variant, and the tallies."""
    if options.as_json:
        print_json(
            [{**variant.as_json(), **seen.as_json(), "replay": tally.as_json()} for variant, seen, tally in found]
        )
        return _status(tally for _, _, tally in found)
    for grid in grids:
        typer.echo(f"{grid.markdown()}\n")
    return _print_tallies([(variant.name, tally) for variant, _, tally in found], options)


def _print_tallies(lines: Sequence[tuple[str, Tally]], options: Options) -> int:
    if options.as_json:
        print_json([tally.as_json() for _, tally in lines])
    else:
        typer.echo(f"{compared(lines, options.windows, options.names).markdown()}\n")
        for name, tally in lines:
            _list(f"{name}: ", _violations(tally))
    return _status(tally for _, tally in lines)


def _status(tallies: Iterable[Tally]) -> int:
    return 1 if any(tally.violations for tally in tallies) else 0


def _violations(tally: Tally) -> list[str]:
    return [f"{each.conversation}, request {each.request}: {each.kind}: {each.sentence}" for each in tally.violations]


def _absence(used: Used) -> str:
    where = f"{used.conversation}, request {used.request}"
    return f"{where}: {used.value.text} was last said {used.ago:,} messages before, and is not in the payload."


def _list(where: str, lines: Sequence[str]) -> None:
    for line in lines[:SHOWN]:
        typer.echo(f"{where}{line}", err=True)  # The table may be on its way into a document.
    if (more := len(lines) - SHOWN) > 0:
        typer.echo(f"{where}... and {more:,} more; --json lists them all", err=True)
