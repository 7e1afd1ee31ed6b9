"""`steno replay --survival`: which exact values of a conversation stand in its payloads after it was compacted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from app.commands.terminal import print_json
from lab.commands import playing
from lab.commands.playing import Options, Variant
from lab.replay.presets import chosen
from lab.replay.survival import Survival, Used, without_values
from lab.replay.tables import compared, values_lasting, values_needed, values_used
from lab.replay.tally import Tally

SHOWN_ABSENT = 20


def measure(
    files: Sequence[Path],
    length: int,
    limit: int | None,
    presets: str | None,
    ratios: Sequence[float],
    options: Options,
) -> int:
    """Plays each conversation for each preset, window and share of the limit that recalled passages may take. The exit
    status. Raises `UnreadableRecording` and `ConfigurationError`."""
    lines = playing.variants(chosen(presets) if presets is not None else (None,), options.windows, ratios or (None,))
    recordings = [recording for _, read in playing.read(files, length, limit, options) for recording in read]
    found: list[tuple[Variant, Survival, Tally]] = []
    for variant in lines:
        survival = Survival()
        tally = playing.played(recordings, variant, options, survival.see, survival.asides, without_values)
        found.append((variant, survival, tally))
    if options.format == "json":
        print_json([_as_json(*each) for each in found])
    else:
        _print(found, playing.names(files), options)
    return 1 if any(tally.violations for _, _, tally in found) else 0


def _print(found: Sequence[tuple[Variant, Survival, Tally]], files: str, options: Options) -> None:
    used = [(variant.name, survival.used) for variant, survival, _ in found]
    needed = [(variant.name, survival.needed) for variant, survival, _ in found]
    lasting = [(variant.name, survival.lasting) for variant, survival, _ in found]
    tallies = [(variant.name, tally) for variant, _, tally in found]
    playing.print_grid(values_used(used, options.windows, files), options.format)
    playing.print_grid(values_needed(needed, options.windows, files), options.format)
    playing.print_grid(values_lasting(lasting, options.windows, files), options.format)
    playing.print_grid(compared(tallies, options.windows, files), options.format)
    for name, values in used:
        _list_absent(name, values)
    playing.show_violations(tallies)


def _list_absent(name: str, used: Sequence[Used]) -> None:
    console = Console(stderr=True)
    absent = [each for each in used if not each.stands]
    for each in absent[:SHOWN_ABSENT]:
        place = f"{name}: {each.conversation}, request {each.request}"
        text = f"{place}: {each.value.text} was last said {each.ago:,} messages before, and is not in the payload."
        console.print(text, markup=False, highlight=False, soft_wrap=True)
    if (more := len(absent) - SHOWN_ABSENT) > 0:
        console.print(f"{name}: ... and {more:,} more; --json lists them all", markup=False)


def _as_json(variant: Variant, survival: Survival, tally: Tally) -> dict[str, Any]:
    return {
        "preset": variant.preset or playing.AS_SET,
        "window": variant.window,
        "recall_ratio": variant.recall_ratio,
        "used": len(survival.used),
        "in_the_payload": sum(each.stands for each in survival.used),
        "absent": [each.as_json() for each in survival.used if not each.stands],
        "needed": [each.as_json() for each in survival.needed],
        "lasting": [each.as_json() for each in survival.lasting],
        "replay": tally.as_json(),
    }
