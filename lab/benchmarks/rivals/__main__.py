"""Steno beside others on the same conversations: what each keeps, what it costs, and what a provider refuses of it.

    python -m lab.benchmarks.rivals FILE [--arms default,keep-last] [--windows 32000,64000] [--sample 6]

A conversation is sent request by request, as its client sends it, to Steno, to another's proxy or through another's
rule; behind each is a simulator that reports what its prompt cache has, and makes all summaries. The cost is that of
prompts and summaries: answers cost the same everywhere. Conversations are chained until they outgrow the window.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from lab.benchmarks.relay.environments import Missing
from lab.benchmarks.rivals.arms import CACHED, COMPLETION, PROXIES, RULES, Arm, arm
from lab.benchmarks.rivals.kept import DUE_RATIO, NOTHING, Kept, Memory, said
from lab.replay.recordings import Recording, chain, joined, read_recordings
from lab.replay.sent import Message
from lab.replay.tally import Grid
from lab.simulator import Record

BASE = "never"
STENOS = ("default", "default+prices")
OTHERS = (*(name for name in RULES if name != BASE), *PROXIES)
KEPT_SHARE = 0.95
"""A prompt of which the cache has less than this share of the one before breaks its prefix."""
CHARACTERS = 4
"""Characters of a token, for the length of a chain."""


@dataclass(slots=True)
class Bill:
    """Calls that the provider received, over all conversations."""

    paid: float = 0.0
    """Price of all calls, in tokens of a prompt."""
    requests: int = 0
    summaries: int = 0
    breaks: int = 0
    too_large: int = 0
    invalid: int = 0
    kept: Kept = field(default_factory=Kept)

    def pay(self, record: Record) -> None:
        if record.usage is not None:
            cached = record.usage["prompt_tokens_details"]["cached_tokens"]
            self.paid += record.usage["prompt_tokens"] - (1 - CACHED) * cached
            self.paid += COMPLETION * record.usage["completion_tokens"]

    def refuse(self, record: Record, window: int) -> None:
        if record.status != 200:
            over = (record.prompt_tokens or 0) > window
            self.too_large += over
            self.invalid += not over


def play(recordings: Sequence[Recording], name: str, window: int) -> Bill:
    """All conversations through one arm. Raises `Missing` where it is not installed."""
    bill = Bill()
    with arm(name, window) as against:
        for recording in recordings:
            _play(recording, against, window, bill)
    return bill


def _play(recording: Recording, against: Arm, window: int, bill: Bill) -> None:
    desk, memory, before = against.desk(), Memory(recording), 0
    for end in recording.requests:
        history = recording.messages[:end]
        records = against.send(history, desk)
        bill.requests += 1
        for record in records:
            bill.pay(record)
            bill.refuse(record, window)
        answers = [record for record in records if against.is_answer(record)]
        bill.summaries += len(records) - len(answers)
        accepted = next((record for record in reversed(answers) if record.status == 200), None)
        if accepted is not None and accepted.usage is not None:
            cached = accepted.usage["prompt_tokens_details"]["cached_tokens"]
            bill.breaks += cached < KEPT_SHARE * before
            before = accepted.usage["prompt_tokens"]
        memory.look(end, _payload(accepted), bill.kept, due=desk.tokens(history) > DUE_RATIO * window)
    for question in recording.questions or ():
        records = against.send(recording.followed_by_a_question().asked(question), desk, aside=True)
        answers = [record for record in records if against.is_answer(record) and record.status == 200]
        memory.ask(question, _payload(answers[-1] if answers else None), bill.kept)


def _payload(record: Record | None) -> str:
    """Text of an accepted prompt; empty where there is none."""
    messages: Sequence[Message] = (record.messages or ()) if record else ()
    return "\n".join(map(said, messages))


def grown(recordings: Sequence[Recording], window: int) -> Iterator[Recording]:
    """Conversations one after the other as one, until it is longer than the window; those left over are too short."""
    group: list[Recording] = []
    for recording in recordings:
        group.append(recording)
        if sum(map(_tokens, group)) > window:
            yield joined(group)
            group = []


def _tokens(recording: Recording) -> int:
    return sum(len(said(message)) for message in recording.messages) // CHARACTERS


HEADER = ("", "cost", "summaries", "breaks", "far identifiers", "evidence", "too large", "invalid")


def row(name: str, bill: Bill, base: Bill) -> tuple[str, ...]:
    kept = bill.kept
    return (
        *(name, f"{bill.paid / base.paid:.2f}", f"{bill.summaries}", f"{bill.breaks}"),
        *(str(kept.far), str(kept.evidence)),
        *(f"{bill.too_large}", f"{bill.invalid}"),
    )


def table(file: Path, recordings: Sequence[Recording], arms: Sequence[str], window: int) -> Grid:
    base = play(recordings, BASE, window)
    rows = []
    for name in arms:
        try:
            rows.append(row(name, play(recordings, name, window), base))
        except Missing as missing:
            rows.append((name, f"not installed: {missing}", *(NOTHING for _ in HEADER[2:])))
    told = [place for place in range(len(HEADER)) if any(each[place] != NOTHING for each in rows)]
    header, *rows = (tuple(each[place] for place in told) for each in (HEADER, *rows))
    title = f"{file.name}, {len(recordings)} conversations, {base.requests:,} requests, window {window:,}"
    return Grid(title, header, rows)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Steno beside others on the same conversations.")
    parser.add_argument("file", type=Path)
    parser.add_argument("--arms", default=",".join((*STENOS, *OTHERS)))
    parser.add_argument("--windows", default="32000,64000,128000")
    parser.add_argument("--chain", type=int, help="conversations in one; otherwise as many as outgrow the window")
    parser.add_argument("--sample", type=int, default=6, help="conversations of the file that are read; 0: all")
    options = parser.parse_args(arguments)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    talks = read_recordings(options.file)[: options.sample or None]
    for window in map(int, options.windows.split(",")):
        chained = chain(talks, options.chain) if options.chain else list(grown(talks, window))
        grid = table(options.file, chained, options.arms.split(","), window)
        print(f"{grid.markdown()}\n", flush=True)


if __name__ == "__main__":
    main()
