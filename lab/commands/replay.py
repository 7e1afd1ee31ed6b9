"""`steno replay`: recordings in, a table of what happened out, and exit status 1 if anything went missing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from app.commands.terminal import print_json
from lab.commands import playing
from lab.commands.playing import Options, Variant
from lab.commands.progress import progress
from lab.replay.presets import chosen
from lab.replay.tables import compared
from lab.replay.tally import Tally


def replay_files(files: Sequence[Path], length: int, limit: int | None, preset: str | None, options: Options) -> int:
    """Replays each file and prints its table. The exit status. Raises `UnreadableRecording`, `ConfigurationError`."""
    read = playing.read(files, length, limit, options)
    variant = Variant(chosen(preset)[0] if preset else None, options.windows[0])
    tallies: list[Tally] = []
    with playing.on_stage(variant, options) as set_up, progress() as begin:
        player = playing.player(options, set_up)
        for file, recordings in read:
            advance = playing.advancing(begin, file.name, recordings)
            tallies.append(player.play(recordings, variant.tally(file.name), advance))
    if options.format == "json":
        print_json([tally.as_json() for tally in tallies])
    else:
        for tally in tallies:
            _show(Console(), tally)
    return 1 if any(tally.violations for tally in tallies) else 0


def compare_presets(files: Sequence[Path], length: int, limit: int | None, presets: str, options: Options) -> int:
    """Replays the same recordings once for each preset, each with a database of its own. The exit status."""
    lines = playing.variants(chosen(presets), options.windows)
    recordings = [recording for _, read in playing.read(files, length, limit, options) for recording in read]
    tallies = [(variant.name, playing.played(recordings, variant, options)) for variant in lines]
    if options.format == "json":
        print_json([{"preset": name, **tally.as_json()} for name, tally in tallies])
    else:
        playing.print_grid(compared(tallies, options.windows, playing.names(files)), options.format)
        playing.show_violations(tallies)
    return 1 if any(tally.violations for _, tally in tallies) else 0


def _show(console: Console, tally: Tally) -> None:
    table = Table(title=f"{tally.file}, window {tally.window:,}", title_justify="left", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for name, value in tally.rows():
        table.add_row(name, value)
    console.print(table)
    playing.list_violations(console, tally, "")
