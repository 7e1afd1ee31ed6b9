"""`steno replay`: recordings in, tables of what happened out, and exit status 1 if anything went missing.

`--recall` plays the same recordings, and measures the payloads.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import typer

from app.cli.terminal import print_json
from lab.formats.known import FORMATS
from lab.replay.converting import converted
from lab.replay.player import Played, Player
from lab.replay.presets import MAY_REFUSE, chosen, settings_of
from lab.replay.recall import Recall
from lab.replay.recordings import Question, Recording, UnreadableRecording, chain, read_recordings, with_questions
from lab.replay.stage import stage
from lab.replay.tables import by_kind, compared
from lab.replay.tally import Tally

PARTS = 10
SHOWN = 20
"""Lines about violations."""
DEFAULT_MODEL = "gpt-4o"
KEYS = {"messages": "ANTHROPIC_API_KEY", "gemini": "GEMINI_API_KEY"}
"""Variables with the provider's key by format; otherwise OpenAI's."""
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
        found.append((variant, recall, _played(asked, variant, options, recall.see)))
    if options.as_json:
        print_json(
            [{**variant.as_json(), **recall.as_json(), "replay": tally.as_json()} for variant, recall, tally in found]
        )
        return _status(tally for _, _, tally in found)
    named = [(variant.name, recall.outcomes, tally) for variant, recall, tally in found]
    typer.echo(f"{by_kind(named, options.windows, options.names).markdown()}\n")
    return _print_tallies([(name, tally) for name, _, tally in named], options)


# Playing


def _played(
    recordings: Sequence[Recording],
    variant: Variant,
    options: Options,
    heard: Callable[[Question, Played], object] | None = None,
) -> Tally:
    """All of them on a stage of their own, with a line on standard error for each tenth of the requests."""
    requests, done = sum(len(recording.requests) for recording in recordings), 0

    def answered(_: Played) -> None:
        nonlocal done
        done += 1
        if done * PARTS // requests > (done - 1) * PARTS // requests:
            typer.echo(f"{variant.name}: {done:,} of {requests:,} requests ({done / requests:.0%})", err=True)

    compaction, model = settings_of(variant.preset, variant.recall_ratio), options.model or DEFAULT_MODEL
    api_key = os.environ.get(KEYS.get(options.written or "", "OPENAI_API_KEY")) if options.upstream else None
    with stage(model, variant.window, options.upstream, compaction) as set_up:
        player = Player(set_up.base_url, set_up.provider, model, set_up.count, api_key or NO_KEY)
        tally = Tally(variant.name, variant.window, variant.preset in MAY_REFUSE)
        return player.play(recordings, tally, answered, heard)


# Printing


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


def _list(where: str, lines: Sequence[str]) -> None:
    for line in lines[:SHOWN]:
        typer.echo(f"{where}{line}", err=True)  # The table may be on its way into a document.
    if (more := len(lines) - SHOWN) > 0:
        typer.echo(f"{where}... and {more:,} more; --json lists them all", err=True)
