"""Fall of a prompt when it is compacted, in windows of several sizes.

A long chat and a coding agent that reads the files of this repository, each twice as long as the window, are played
turn by turn through the whole proxy; the judge of `steno replay` says what was in each payload. Dialogues with
questions, such as LoCoMo's, are played too where their file is given: as many joined as the window needs to be full.

The provider is the simulator, which answers at once. So `waited` is not measured but reckoned: what the summary calls
would have taken a model, one after the other where they were made so, else side by side.

    python -m lab.benchmarks.cliffs [--windows 8000,128000] [--only agent] [--preset default] [locomo.jsonl]

To compare two states of the code, let both agents read the same checkout: `--sources`.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from app.providers.tokenizer import Tokenizer
from app.settings import ConfigurationError, load
from lab.benchmarks import talks
from lab.replay.player import Played, Player
from lab.replay.presets import settings_of
from lab.replay.recall import Reached, Recall
from lab.replay.recordings import Recording, UnreadableRecording, joined, read_recordings
from lab.replay.stage import Stage, stage
from lab.replay.tables import Grid
from lab.replay.tally import Tally
from lab.simulator import Fault, Record, Simulator

MODEL, ENCODING = "gpt-4o", "o200k_base"
WINDOWS = (8_000, 32_000, 128_000)
LEAST_TOKENS = 64_000
LENGTH = 1.8
"""A conversation's tokens for each token of the window."""
KINDS = ("chat", "dialogues", "agent")

OVERLAP_SECONDS = 0.2
"""Seconds that each summary call really takes, so that calls made side by side are seen to be."""
FIRST_TOKEN_SECONDS = 1.0
READ_TOKENS_A_SECOND = 5_000
WRITTEN_TOKENS_A_SECOND = 70

RESULT_ROLE = "tool"
PROBES = 20
"""Requests of each conversation after which its questions are looked for, evenly from the first to the last."""
LONG_RESULT = 1_000
"""Characters of a tool result that is a piece of a file, and more than a mask leaves."""

LINES = (
    "requests", "compactions", "summary calls", "of which folds", "waited, seconds", "longest wait, seconds",
    "tokens forwarded", "tokens of summary calls",
    "first summary at request", "tokens before it", "tokens after it", "fewest tokens after any",
    "first mask at request", "tokens before it", "tokens after it", "long tool results then", "of which whole",
    "prefix kept", "tokens verbatim", "evidence at the end", "evidence on the way", "violations", "seconds played",
)  # fmt: skip


@dataclass
class Course:
    """Results of one run's requests."""

    waits: list[float] = field(default_factory=list)
    """Reckoned seconds, of the requests for which summaries were made."""
    summarised: Played | None = None
    """The first request for which a summary was made."""
    after: list[int] = field(default_factory=list)
    """Tokens forwarded in the requests for which summaries were made."""
    masked: Played | None = None
    """The first request in whose payload a message is shortened."""
    direct: int = 0
    verbatim: int = 0
    reached: list[Reached] = field(default_factory=list)
    """Questions reached at each probe, of those whose evidence had been said by then."""
    reached_last: list[Reached] = field(default_factory=list)
    """The same at the end of each conversation."""

    def see(self, played: Played) -> None:
        requests = len(played.recording.requests)
        if played.request == requests or played.request % max(1, requests // PROBES) == 0:
            self.reached += (found := answerable(played))
            self.reached_last += found if played.request == requests else ()
        self.direct += played.direct
        self.verbatim += played.verbatim
        if played.calls:
            self.summarised = self.summarised or played
            self.after.append(played.forwarded)
            self.waits.append(waited(played.calls))
        if self.masked is None and played.verdict.shortened:
            self.masked = played


def answerable(played: Played) -> list[Reached]:
    """Questions that could be answered from that payload, of those whose evidence was said before it."""
    recording = played.recording
    end = recording.requests[played.request - 1]
    recall = Recall()
    for question in recording.questions:
        if all(recording.remarks[name].index < end for name in question.evidence):
            recall.see(question, played)
    return recall.reached()


def _share(reached: Sequence[Reached]) -> str:
    asked = sum(each.questions for each in reached)
    return f"{sum(each.reachable for each in reached) / asked:.1%}" if asked else "-"


def waited(calls: Iterable[Record]) -> float:
    """Seconds that these summary calls would have taken: a call waits for those that had ended when it was made."""
    ends: list[tuple[float, float]] = []
    for call in sorted(calls, key=lambda call: call.at):
        began = max((reckoned for ended, reckoned in ends if ended <= call.at), default=0.0)
        ends.append((call.finished_at or call.at, began + _call_seconds(call)))
    return max((reckoned for _, reckoned in ends), default=0.0)


def _call_seconds(call: Record) -> float:
    written: int = (call.usage or {}).get("completion_tokens", 0)
    return FIRST_TOKEN_SECONDS + (call.prompt_tokens or 0) / READ_TOKENS_A_SECOND + written / WRITTEN_TOKENS_A_SECOND


def long_results(played: Played) -> tuple[int, int]:
    """Number of long tool results so far that a payload holds in any form, and of those it holds whole."""
    messages = played.recording.messages
    shown = [
        (place.pieces, messages[index]["content"])
        for index, place in played.verdict.places.items()
        if messages[index]["role"] == RESULT_ROLE and len(messages[index]["content"]) >= LONG_RESULT
    ]
    return len(shown), sum(pieces == (content,) for pieces, content in shown)


def column(name: str, recordings: Sequence[Recording], window: int, preset: str) -> tuple[str, ...]:
    """Plays the recordings in a window and says what came of it: a cell for each of `LINES`."""
    course = Course()
    with stage(MODEL, window, compaction=settings_of(preset)) as set_up:
        player = _player(set_up)
        tally = player.play(recordings, Tally(name, window), course.see)
    for violation in tally.violations[:5]:
        where = f"{name}, {window:,}, request {violation.request}"
        print(f"{where}: {violation.kind}: {violation.sentence}", file=sys.stderr)
    first, masked = course.summarised, course.masked
    return (
        f"{tally.requests:,}",
        f"{tally.compactions:,}",
        f"{tally.summary_calls:,}",
        f"{tally.folds:,}",
        f"{sum(course.waits):,.0f}",
        f"{max(course.waits, default=0):,.0f}",
        f"{tally.tokens_forwarded:,}",
        f"{tally.summary_tokens:,}",
        *_cells((first.request, first.direct, first.forwarded, min(course.after)) if first else (), 4),
        *_cells((masked.request, masked.direct, masked.forwarded, *long_results(masked)) if masked else (), 5),
        f"{tally.prefix_kept:.1%}",
        f"{course.verbatim / course.direct:.1%}",
        _share(course.reached_last),
        _share(course.reached),
        f"{len(tally.violations):,}",
        f"{tally.seconds:,.0f}",
    )


def _player(set_up: Stage) -> Player:
    if not isinstance(set_up.provider, Simulator):
        raise TypeError("What the calls would take is reckoned from the simulator's log.")
    set_up.provider.max_messages = None  # The limit of one provider, not of a window.
    set_up.provider.summary_default = Fault(delay=OVERLAP_SECONDS)
    return Player(set_up.base_url, set_up.provider, MODEL, set_up.count)


def _cells(values: tuple[int, ...], columns: int) -> tuple[str, ...]:
    """Cells of a table. Events that did not happen have no numbers."""
    return tuple(f"{value:,}" for value in values) if values else ("-",) * columns


def filling(recordings: Sequence[Recording], window: int, count: Callable[[str], int]) -> list[Recording]:
    """The recordings, joined so that each but the last has at least as many tokens as the window."""
    groups: list[list[Recording]] = [[]]
    size = 0
    for recording in recordings:
        groups[-1].append(recording)
        size += sum(talks.MESSAGE_TOKENS + count(str(message["content"])) for message in recording.messages)
        if size >= window:
            groups.append([])
            size = 0
    return [joined(group).followed_by_a_question() for group in groups if group]


def _conversations(
    kind: str, window: int, dialogues: Sequence[Recording], sources: Path, count: Callable[[str], int]
) -> list[Recording]:
    tokens = max(LEAST_TOKENS, int(LENGTH * window))
    if kind == "chat":
        return [talks.chat(tokens, count).followed_by_a_question()]
    if kind == "agent":
        return [talks.agent(tokens, count, root=sources)]
    return filling(dialogues, window, count)


def _columns(
    options: argparse.Namespace, dialogues: Sequence[Recording], count: Callable[[str], int]
) -> Iterator[tuple[str, ...]]:
    for kind in options.only or KINDS:
        for window in options.windows:
            if recordings := _conversations(kind, window, dialogues, options.sources, count):
                yield (f"{kind}, {window:,}", *column(kind, recordings, window, options.preset))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m lab.benchmarks.cliffs", description="How far a prompt falls.")
    parser.add_argument("files", nargs="*", type=Path, help="dialogues with questions, such as locomo.jsonl")
    parser.add_argument("--windows", type=_sizes, default=WINDOWS, help="tokens, with commas between them")
    parser.add_argument("--only", action="append", choices=KINDS, help="play only these")
    parser.add_argument("--preset", default="default")
    parser.add_argument("--sources", type=Path, default=talks.ROOT, help="the agent reads the files of this checkout")
    return parser.parse_args()


def _sizes(written: str) -> tuple[int, ...]:
    return tuple(map(int, written.split(",")))


def main() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    logging.getLogger().addHandler(logging.NullHandler())
    options = _options()
    try:
        dialogues = [recording for file in options.files for recording in read_recordings(file)]
        columns = list(_columns(options, dialogues, Tokenizer(load().tokenizer.folder).counter(ENCODING)))
    except (ConfigurationError, UnreadableRecording) as error:
        raise SystemExit(str(error)) from error
    header, *lines = zip((options.preset, *LINES), *columns, strict=True)
    print(Grid("How far a prompt falls", header, lines).markdown())


if __name__ == "__main__":
    main()
