"""Cost of a served request for a whole process where messages are kept, beside one where they are not.

Two processes on a database each, in turns: a conversation of so many tokens goes on for a number of turns, each with a
question and an answer that are new. Times are milliseconds of the processor, of all threads, for one turn with all that
is stored of it after its answer; the median of some rounds. `first`: the turn that shows the history for the first
time. One run: ratios hold on any machine, times do not.

    python -m lab.benchmarks.archive [postgresql://...]
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from lab.benchmarks.history import Client, processor_nanoseconds, provider
from lab.benchmarks.talks import message
from tests.databases import database_on
from tests.e2e.commands import Serving
from tests.e2e.crowds import replicas

SIZES = (1_000, 10_000, 100_000)
"""Tokens of the history when it begins to be measured."""
MESSAGE_TOKENS = 135
ROUNDS, TURNS = 7, 20
STORED_SECONDS = 1.0
"""Seconds in which everything that waits is written, and nothing else is done."""


def main() -> None:
    server = sys.argv[1] if len(sys.argv) > 1 else None
    columns = ("off", "on", "ratio", "first off", "first on")
    print(f"{'history':>10}" + "".join(f" {column:>10}" for column in columns))
    with ExitStack() as opened:
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory()))
        url = opened.enter_context(provider())
        pair = [_start(opened, folder, url, server, messages=messages) for messages in (False, True)]
        for tokens in SIZES:
            print(_row(pair, tokens), flush=True)


def _start(opened: ExitStack, folder: Path, url: str, server: str | None, *, messages: bool) -> Serving:
    place = folder / str(messages)
    place.mkdir()
    database = f"sqlite:///{place}/steno.db" if server is None else opened.enter_context(database_on(server))
    variables = {
        "STENO_MODELS": '[{"match": "*", "context_window": 10000000}]',
        "STENO_UPSTREAM__DISCOVER_WINDOWS": "false",
        "STENO_CALIBRATION__ENABLED": "false",
        "STENO_STORAGE__MESSAGES": str(messages).lower(),
    }
    (serving,) = opened.enter_context(replicas(1, database, url, place, **variables))
    return serving


def _row(pair: Sequence[Serving], tokens: int) -> str:
    clients = [Client(serving) for serving in pair]
    turns: list[list[float]] = [[], []]
    first: list[list[float]] = [[], []]
    for round_ in range(ROUNDS):
        for number, (serving, client) in enumerate(zip(pair, clients, strict=True)):
            random_ = random.Random(f"{tokens} {round_}")
            history = [message(random_) for _ in range(tokens // MESSAGE_TOKENS | 1)]
            first[number].append(_cost(serving, client, [history]))
            grown = [history := [*history, message(random_), message(random_)] for _ in range(TURNS)]
            turns[number].append(_cost(serving, client, grown))
    off, on = map(median, turns)
    shown = f" {off:10.2f} {on:10.2f} {on / off:10.2f} {median(first[0]):10.1f} {median(first[1]):10.1f}"
    return f"{tokens:>10,}{shown}"


def _cost(serving: Serving, client: Client, histories: Sequence[list[bytes]]) -> float:
    """Milliseconds for each, on the average."""
    before = processor_nanoseconds(serving.process.pid)
    for history in histories:
        client.turn("m", history)
    time.sleep(STORED_SECONDS)
    return (processor_nanoseconds(serving.process.pid) - before) / 1e6 / len(histories)


if __name__ == "__main__":
    main()
