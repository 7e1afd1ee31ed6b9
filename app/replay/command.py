"""`steno replay`: recordings in, a table of what happened out, and exit status 1 if anything went missing."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from app.replay.player import Player
from app.replay.recordings import Recording, chain, read_recordings
from app.replay.stage import stage
from app.replay.tally import Tally

SHOWN_VIOLATIONS = 20
DEFAULT_MODEL = "gpt-4o"
NO_KEY = "sk-replay"
"""The client wants one; the simulator takes any."""


def replay_files(
    files: Sequence[Path],
    *,
    window: int,
    length: int,
    limit: int | None,
    stream: bool | None,
    upstream: str | None,
    model: str | None,
    database_url: str | None,
    as_json: bool,
) -> int:
    """Replays each file and prints its table. The exit status. Raises `UnreadableRecording`."""
    read = [(file, chain(read_recordings(file), length)[:limit]) for file in files]
    tallies: list[Tally] = []
    with stage(model or DEFAULT_MODEL, window, upstream, database_url) as set_up, _progress() as bar:
        player = Player(
            base_url=set_up.base_url,
            provider=set_up.provider,
            model=model or DEFAULT_MODEL,
            count=set_up.count,
            stream=stream,
            api_key=(os.environ.get("OPENAI_API_KEY") if upstream else None) or NO_KEY,
        )
        for file, recordings in read:
            tallies.append(_replay(player, file, recordings, window, bar))
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode([tally.as_json() for tally in tallies])))
    else:
        for tally in tallies:
            _show(Console(), tally)
    return 1 if any(tally.violations for tally in tallies) else 0


def _replay(player: Player, file: Path, recordings: Sequence[Recording], window: int, bar: Progress) -> Tally:
    requests = sum(len(recording.requests) for recording in recordings)
    task = bar.add_task(file.name, total=requests)
    return player.play(recordings, Tally(file.name, window), lambda: bar.advance(task))


def _progress() -> Progress:
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("requests"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    )


def _show(console: Console, tally: Tally) -> None:
    table = Table(title=f"{tally.file}, window {tally.window:,}", title_justify="left", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for name, value in tally.rows():
        table.add_row(name, value)
    console.print(table)
    for violation in tally.violations[:SHOWN_VIOLATIONS]:
        place = f"{violation.conversation}, request {violation.request}"
        console.print(f"{place}: {violation.kind}: {violation.sentence}", markup=False, highlight=False)
    if (more := len(tally.violations) - SHOWN_VIOLATIONS) > 0:
        console.print(f"... and {more:,} more; --json lists them all", markup=False)
