"""`steno replay`: recordings in, a table of what happened out, and exit status 1 if anything went missing."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from app.replay.player import Player
from app.replay.recordings import Recording, chain, read_recordings
from app.replay.stage import stage
from app.replay.tally import Tally

SHOWN_VIOLATIONS = 20
DEFAULT_MODEL = "gpt-4o"


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
    output, progress_output = Console(), Console(stderr=True)
    tallies: list[Tally] = []
    with stage(model or DEFAULT_MODEL, window, upstream, database_url) as set_up, _progress(progress_output) as bar:
        player = Player(
            base_url=set_up.base_url,
            provider=set_up.provider,
            model=model or DEFAULT_MODEL,
            count=set_up.count,
            stream=stream,
            api_key=os.environ.get("OPENAI_API_KEY") or "sk-replay" if upstream else "sk-replay",
        )
        for file, recordings in read:
            tallies.append(_replay(player, file, recordings, window, bar))
    if as_json:
        print_json(tallies)
    else:
        for tally in tallies:
            _show(output, tally)
    return 1 if any(tally.violations for tally in tallies) else 0


def print_json(tallies: Sequence[Tally]) -> None:
    encoded = msgspec.json.encode([tally.as_json() for tally in tallies])
    Console(soft_wrap=True, highlight=False, markup=False).print(msgspec.json.format(encoded).decode())


def _replay(player: Player, file: Path, recordings: Sequence[Recording], window: int, bar: Progress) -> Tally:
    requests = sum(len(recording.requests) for recording in recordings)
    task = bar.add_task(file.name, total=requests)
    return player.play(recordings, Tally(file.name, window), lambda: bar.advance(task))


def _progress(console: Console) -> Progress:
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
