"""`steno replay --recall`: how much of what a conversation's questions are about stands in the payloads that ask."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from app.commands.terminal import print_json
from lab.commands import playing
from lab.commands.playing import Options, Variant
from lab.replay.presets import chosen
from lab.replay.recall import Distribution, Reached, Recall, shares_by_kind
from lab.replay.recordings import UnreadableRecording, with_questions
from lab.replay.tables import by_kind, compared, recalled
from lab.replay.tally import Tally

STRATEGIES_ONLY = (
    "This measures the strategies and not a model's summaries: the simulator's summariser copies first sentences and"
    " names, has at most 400 words and never sees the questions. `by chance` is how often answers are found in the"
    " summaries of another conversation. --upstream asks a real model for the summaries."
)
REAL_SUMMARIES = (
    "The summaries are those of {model}, which never saw the questions; answers are looked for word by word."
    " `by chance` is how often they are found in the summaries of another conversation."
)


def measure(
    files: Sequence[Path],
    limit: int | None,
    presets: str | None,
    ratios: Sequence[float],
    questions: Path | None,
    options: Options,
) -> int:
    """Plays each conversation, and asks each of its questions at its end, for each preset, window and share of the
    limit that recalled passages may take. The exit status. Raises `UnreadableRecording` and `ConfigurationError`."""
    lines = playing.variants(chosen(presets) if presets is not None else (None,), options.windows, ratios or (None,))
    recordings = [recording for _, read in playing.read(files, 1, limit, options) for recording in read]
    if questions is not None:
        recordings = with_questions(recordings, questions)
    asked = [recording.followed_by_a_question() for recording in recordings if recording.questions]
    if not asked:
        raise UnreadableRecording(f"{playing.names(files)}: no conversation has questions whose evidence is in it.")
    found: list[tuple[Variant, Sequence[Reached], Tally]] = []
    for variant in lines:
        recall = Recall()
        tally = playing.played(asked, variant, options, asides=recall.asides)
        found.append((variant, recall.reached(), tally))
    note = REAL_SUMMARIES.format(model=options.model) if options.upstream else STRATEGIES_ONLY
    if options.format == "json":
        shown = [_as_json(*each) for each in found]
        print_json({"measures": note, "presets": shown})
    else:
        _print(found, f"{playing.names(files)}", note, options)
    return 1 if any(tally.violations for _, _, tally in found) else 0


def _print(found: Sequence[tuple[Variant, Sequence[Reached], Tally]], files: str, note: str, options: Options) -> None:
    reached = [(variant.name, reached) for variant, reached, _ in found]
    tallies = [(variant.name, tally) for variant, _, tally in found]
    playing.print_grid(recalled(reached, options.windows, files, note), options.format)
    playing.print_grid(
        by_kind([(*each, tally) for each, (_, tally) in zip(reached, tallies, strict=True)], options.windows, files),
        options.format,
    )
    playing.print_grid(compared(tallies, options.windows, files), options.format)
    playing.show_violations(tallies)


def _as_json(variant: Variant, reached: Sequence[Reached], tally: Tally) -> dict[str, Any]:
    spread = Distribution.of(reached)
    kinds = shares_by_kind(reached)
    return {
        "preset": variant.preset or playing.AS_SET,
        "window": variant.window,
        "recall_ratio": variant.recall_ratio,
        "mean": round(spread.mean, 4),
        "min_quartiles_max": [round(share, 4) for share in spread.five],
        "kinds": {kind: {"questions": many, "to_the_letter": round(share, 4)} for kind, (many, share) in kinds.items()},
        "conversations": [each.as_json() for each in reached],
        "replay": tally.as_json(),
    }
