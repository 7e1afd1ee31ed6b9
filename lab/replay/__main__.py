"""Replay recorded conversations: `python -m lab.replay FILE...`

A replay takes recordings, prints tables of what happened, and exits with 1 if anything went missing. `--recall` plays
the same recordings, and measures the payloads.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from app.cli.command import LEAST_WINDOW, fail, failing_on, keep_quiet, print_json
from app.settings import ConfigurationError
from lab.replay.player import Played, Player
from lab.replay.recordings import Question, Recording, UnreadableRecording, chain, read_recordings
from lab.replay.stage import MAY_REFUSE, chosen, settings_of, stage
from lab.replay.tables import Recall, by_kind, compared
from lab.replay.tally import Tally

cli = typer.Typer(
    rich_markup_mode="markdown", context_settings={"help_option_names": ["-h", "--help"]}, add_completion=False
)

Presets = Annotated[str | None, typer.Option(help="Replay with these presets: `all`, or names with commas.")]


def refuse(*problems: tuple[object, str]) -> None:
    """Exit with the message of the first problem that exists."""
    for is_there, message in problems:
        if is_there:
            fail(message)


def _numbers(option: str, written: str, read: Callable[[str], Any], fits: Callable[[Any], bool], what: str) -> Any:
    """Parse the numbers of an option; exit if one does not fit."""
    try:
        numbers = tuple(dict.fromkeys(map(read, written.split(","))))
    except ValueError:
        numbers = ()
    if not numbers or not all(map(fits, numbers)):
        fail(f"{option} is {what}, or several with commas, and not {written!r}.")
    return numbers


@cli.command()
def replay(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Recorded conversations: JSON or JSON lines.")],
    window: Annotated[str, typer.Option(help="Context window in tokens, or several with commas.")] = "8000",
    chain: Annotated[int, typer.Option(min=1, help="Join so many conversations into one.")] = 1,
    limit: Annotated[int | None, typer.Option(min=1, help="Replay so many conversations of each file.")] = None,
    presets: Presets = None,
    recall: Annotated[bool, typer.Option("--recall", help="Measure what the files' questions could reach.")] = False,
    recall_ratio: Annotated[
        str | None, typer.Option(help="Measure with these shares of the limit for recalled passages, such as 0,0.05.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Replay recorded conversations turn by turn and judge what the provider received; exit 1 if anything is lost."""
    keep_quiet()
    least = f"at least {LEAST_WINDOW:,} tokens"
    windows = _numbers("--window", window, int, lambda tokens: tokens >= LEAST_WINDOW, least)
    share = "a share of at least 0 and less than 1"
    ratios = _numbers("--recall-ratio", recall_ratio, float, lambda r: 0 <= r < 1, share) if recall_ratio else ()
    refuse(
        (recall and chain > 1, "--recall needs conversations as they are, without --chain."),
    )
    options = Options(files, windows, presets, ratios, chain, limit, as_json)
    with failing_on(UnreadableRecording, ConfigurationError):
        sys.exit(measure_recall(options) if recall else compare(options))


# Replay

PARTS = 10
SHOWN = 20
"""Lines about violations."""
MODEL = "gpt-4o"
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
    as_json: bool = False

    @property
    def names(self) -> str:
        return ", ".join(file.name for file in self.files)

    def recordings(self) -> list[Recording]:
        """Raises `UnreadableRecording`."""
        return [each for file in self.files for each in chain(read_recordings(file), self.chain)[: self.limit]]

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


def compare(options: Options) -> int:
    """Replay the same recordings once for each preset, window and share, each with a database of its own."""
    recordings = options.recordings()
    return _print_tallies([(line.name, _played(recordings, line)) for line in options.variants()], options)


def measure_recall(options: Options) -> int:
    """Ask each question at the end of its conversation, and look whether the payload has its evidence."""
    asked = [recording.followed_by_a_question() for recording in options.recordings() if recording.questions]
    if not asked:
        raise UnreadableRecording(f"{options.names}: no conversation has questions whose evidence is in it.")
    found = []
    for variant in options.variants():
        recall = Recall()
        found.append((variant, recall, _played(asked, variant, recall.see)))
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
    heard: Callable[[Question, Played], object] | None = None,
) -> Tally:
    """All of them on a stage of their own, with a line on standard error for each tenth of the requests."""
    requests, done = sum(len(recording.requests) for recording in recordings), 0

    def answered(_: Played) -> None:
        nonlocal done
        done += 1
        if done * PARTS // requests > (done - 1) * PARTS // requests:
            typer.echo(f"{variant.name}: {done:,} of {requests:,} requests ({done / requests:.0%})", err=True)

    with stage(MODEL, variant.window, compaction=settings_of(variant.preset, variant.recall_ratio)) as set_up:
        player = Player(set_up.base_url, set_up.provider, MODEL, set_up.count)
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


if __name__ == "__main__":
    cli(prog_name="python -m lab.replay")
