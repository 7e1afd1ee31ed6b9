"""`steno replay`: recordings in, a table of what happened out, and exit status 1 if anything went missing."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from app.replay.converting import converted
from app.replay.formats.known import FORMATS, MESSAGES
from app.replay.player import Played, Player
from app.replay.presets import MAY_REFUSE, chosen, settings_of
from app.replay.recall import Distribution, Reached, Recall
from app.replay.recordings import Recording, UnreadableRecording, chain, read_recordings
from app.replay.stage import Stage, stage
from app.replay.tables import Grid, compared, recalled
from app.replay.tally import Tally

SHOWN_VIOLATIONS = 20
DEFAULT_MODEL = "gpt-4o"
NO_KEY = "sk-replay"
"""The client wants one; the simulator takes any."""
AS_SET = "as set"
"""The line of a table for the settings in force, where no preset is named."""
STRATEGIES_ONLY = (
    "This measures the strategies and not a model's summaries: the simulator's summariser copies first sentences and"
    " names,\nhas at most 400 words and never sees the questions. `by chance` is how often answers are found in the"
    " summaries of\nanother conversation. --upstream asks a real model for the summaries."
)
REAL_SUMMARIES = (
    "The summaries are those of {model}, which never saw the questions; answers are looked for word by word."
    "\n`by chance` is how often they are found in the summaries of another conversation."
)

Format = Literal["table", "json", "markdown"]


@dataclass(frozen=True, slots=True)
class Options:
    """How the recordings are played."""

    window: int
    stream: bool | None = None
    upstream: str | None = None
    model: str | None = None
    database_url: str | None = None
    format: Format = "table"
    written: str | None = None
    """The name of the format to play in; None: as recorded."""


def replay(
    files: Sequence[Path],
    length: int,
    limit: int | None,
    preset: str | None,
    presets: str | None,
    recall: bool,
    options: Options,
) -> int:
    """What of the three is asked for. The exit status. Raises `UnreadableRecording` and `ConfigurationError`.

    `preset` is for a plain replay, or the only one in the table of `recall`; `presets` names those of a table.
    """
    named = () if presets is preset is None else chosen(presets if presets is not None else preset or "")
    if recall:
        return measure_recall(files, limit, named, options)
    if presets is not None:
        return compare_presets(files, length, limit, named, options)
    return replay_files(files, length, limit, preset, options)


def replay_files(files: Sequence[Path], length: int, limit: int | None, preset: str | None, options: Options) -> int:
    """Replays each file and prints its table. The exit status. Raises `UnreadableRecording`."""
    read = _read(files, length, limit, options)
    tallies: list[Tally] = []
    with stage(*_place(options), settings_of(preset)) as set_up, _progress() as bar:
        player = _player(options, set_up)
        for file, recordings in read:
            tally = Tally(file.name, options.window, preset in MAY_REFUSE)
            tallies.append(player.play(recordings, tally, _advancing(bar, file.name, recordings)))
    if options.format == "json":
        _print_json([tally.as_json() for tally in tallies])
    else:
        for tally in tallies:
            _show(Console(), tally)
    return 1 if any(tally.violations for tally in tallies) else 0


def compare_presets(
    files: Sequence[Path], length: int, limit: int | None, presets: Sequence[str], options: Options
) -> int:
    """Replays the same recordings once for each preset, each with a database of its own. The exit status."""
    recordings = [recording for _, read in _read(files, length, limit, options) for recording in read]
    tallies = [(preset, _played(recordings, preset, options)) for preset in presets]
    if options.format == "json":
        _print_json([{"preset": preset, **tally.as_json()} for preset, tally in tallies])
    else:
        _print_grid(compared(tallies, options.window, _names(files)), options.format)
        _show_violations(tallies)
    return 1 if any(tally.violations for _, tally in tallies) else 0


def measure_recall(files: Sequence[Path], limit: int | None, presets: Sequence[str], options: Options) -> int:
    """What of the conversations' questions could be answered after each of them, and at which cost. The exit status."""
    recordings = [recording for _, read in _read(files, 1, limit, options) for recording in read if recording.questions]
    if not recordings:
        raise UnreadableRecording(f'{_names(files)}: no conversation has questions ("qa") whose evidence is in it.')
    asked = [recording.followed_by_a_question() for recording in recordings]
    found: list[tuple[str, list[Reached]]] = []
    tallies: list[tuple[str, Tally]] = []
    for preset in presets or (None,):
        recall = Recall()
        tallies.append((preset or AS_SET, _played(asked, preset, options, recall.see)))
        found.append((preset or AS_SET, recall.reached()))
    note = REAL_SUMMARIES.format(model=options.model) if options.upstream else STRATEGIES_ONLY
    if options.format == "json":
        shown = [
            {**_recall_json(*each), "replay": tally.as_json()} for each, (_, tally) in zip(found, tallies, strict=True)
        ]
        _print_json({"measures": note.replace("\n", " "), "presets": shown})
    else:
        _print_grid(recalled(found, options.window, _names(files), note), options.format)
        _print_grid(compared(tallies, options.window, _names(files)), options.format)
        _show_violations(tallies)
    return 1 if any(tally.violations for _, tally in tallies) else 0


def _recall_json(preset: str, reached: Sequence[Reached]) -> dict[str, Any]:
    spread = Distribution.of(reached)
    return {
        "preset": preset,
        "mean": round(spread.mean, 4),
        "min_quartiles_max": [round(share, 4) for share in spread.five],
        "conversations": [each.as_json() for each in reached],
    }


def _played(
    recordings: Sequence[Recording],
    preset: str | None,
    options: Options,
    see: Callable[[Played], None] = lambda _: None,
) -> Tally:
    """One preset on a stage of its own."""
    tally = Tally(preset or AS_SET, options.window, preset in MAY_REFUSE)
    with stage(*_place(options), settings_of(preset)) as set_up, _progress() as bar:
        advance = _advancing(bar, preset or AS_SET, recordings)

        def answered(played: Played) -> None:
            see(played)
            advance(played)

        return _player(options, set_up).play(recordings, tally, answered)


def _read(
    files: Sequence[Path], length: int, limit: int | None, options: Options
) -> list[tuple[Path, list[Recording]]]:
    return [(file, _as_asked(chain(read_recordings(file), length)[:limit], options)) for file in files]


def _as_asked(recordings: Sequence[Recording], options: Options) -> list[Recording]:
    return [converted(each, FORMATS[options.written]) if options.written else each for each in recordings]


def _place(options: Options) -> tuple[str, int, str | None, str | None]:
    return options.model or DEFAULT_MODEL, options.window, options.upstream, options.database_url


def _player(options: Options, set_up: Stage) -> Player:
    return Player(
        base_url=set_up.base_url,
        provider=set_up.provider,
        model=options.model or DEFAULT_MODEL,
        count=set_up.count,
        stream=options.stream,
        api_key=(os.environ.get(_key_name(options)) if options.upstream else None) or NO_KEY,
    )


def _key_name(options: Options) -> str:
    return "ANTHROPIC_API_KEY" if options.written == MESSAGES.name else "OPENAI_API_KEY"


def _advancing(bar: Progress, name: str, recordings: Sequence[Recording]) -> Callable[[Played], None]:
    task = bar.add_task(name, total=sum(len(recording.requests) for recording in recordings))
    return lambda _: bar.advance(task)


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


def _names(files: Sequence[Path]) -> str:
    return ", ".join(file.name for file in files)


def _print_json(value: Any) -> None:
    typer.echo(msgspec.json.format(msgspec.json.encode(value)))


def _print_grid(grid: Grid, form: Format) -> None:
    if form == "markdown":
        typer.echo(grid.markdown())
    else:
        grid.show()


def _show(console: Console, tally: Tally) -> None:
    table = Table(title=f"{tally.file}, window {tally.window:,}", title_justify="left", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for name, value in tally.rows():
        table.add_row(name, value)
    console.print(table)
    _list_violations(console, tally, "")


def _show_violations(tallies: Sequence[tuple[str, Tally]]) -> None:
    console = Console(stderr=True)  # The table may be on its way into a document.
    for preset, tally in tallies:
        _list_violations(console, tally, f"{preset}: ")


def _list_violations(console: Console, tally: Tally, where: str) -> None:
    for violation in tally.violations[:SHOWN_VIOLATIONS]:
        place = f"{where}{violation.conversation}, request {violation.request}"
        console.print(f"{place}: {violation.kind}: {violation.sentence}", markup=False, highlight=False)
    if (more := len(tally.violations) - SHOWN_VIOLATIONS) > 0:
        console.print(f"{where}... and {more:,} more; --json lists them all", markup=False)
