"""Replay recorded conversations: `python -m lab.replay FILE...`

A replay takes recordings, prints a table of what happened, and exits with 1 if anything went missing.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from app.cli.command import LEAST_WINDOW, fail, keep_quiet
from app.settings import ConfigurationError
from lab.replay.player import Player
from lab.replay.recordings import Recording, UnreadableRecording, chain, read_recordings
from lab.replay.stage import MAY_REFUSE, chosen, stage
from lab.replay.tally import Tally, compared

SHOWN = 20
"""Lines about violations."""
MODEL = "gpt-4o"
AS_SET = "as set"
"""Name of the column for the settings in effect, where no preset is named."""

cli = typer.Typer(
    rich_markup_mode="markdown", context_settings={"help_option_names": ["-h", "--help"]}, add_completion=False
)


@cli.command()
def replay(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Recorded conversations: JSON or JSON lines.")],
    window: Annotated[int, typer.Option(min=LEAST_WINDOW, help="Context window in tokens.")] = 8_000,
    length: Annotated[int, typer.Option("--chain", min=1, help="Join so many conversations into one.")] = 1,
    limit: Annotated[int | None, typer.Option(min=1, help="Replay so many conversations of each file.")] = None,
    presets: Annotated[str | None, typer.Option(help="Replay with these presets: `all`, or names with commas.")] = None,
) -> None:
    """Replay recorded conversations turn by turn and judge what the provider received; exit 1 if anything is lost."""
    keep_quiet()
    try:
        recordings = [each for file in files for each in chain(read_recordings(file), length)[:limit]]
        tallies = [_played(recordings, preset, window) for preset in (chosen(presets) if presets else (None,))]
    except (UnreadableRecording, ConfigurationError) as error:
        fail(str(error))
    title = f"{', '.join(file.name for file in files)}, window {window:,}"
    typer.echo(f"{compared(tallies, title).markdown()}\n")
    for tally in tallies:
        _list_violations(tally)
    sys.exit(any(tally.violations for tally in tallies))


def _played(recordings: Sequence[Recording], preset: str | None, window: int) -> Tally:
    """All of them on a stage of their own."""
    name = preset or AS_SET
    typer.echo(f"{name}: {sum(len(recording.requests) for recording in recordings):,} requests", err=True)
    with stage(MODEL, window, compaction={"preset": preset} if preset else None) as set_up:
        player = Player(set_up.base_url, set_up.provider, MODEL, set_up.count)
        return player.play(recordings, Tally(name, window, preset in MAY_REFUSE))


def _list_violations(tally: Tally) -> None:
    """On standard error: the table may be on its way into a document."""
    for each in tally.violations[:SHOWN]:
        where = f"{tally.name}: {each.conversation}, request {each.request}"
        typer.echo(f"{where}: {each.kind}: {each.sentence}", err=True)
    if (more := len(tally.violations) - SHOWN) > 0:
        typer.echo(f"{tally.name}: ... and {more:,} more", err=True)


if __name__ == "__main__":
    cli(prog_name="python -m lab.replay")
