"""Time to count a turn, against the length of the history before it.

Each turn is one new message behind a history that was counted before. `tokenising` is what the turn spends on text,
`look-ups` what it takes to read the messages and to find the rest in memory. `naive` tokenises the whole history, as a
proxy without a memory does on every request. All in one process and one run, so the ratios hold on any machine.

    python -m lab.benchmarks.counting
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from statistics import median
from time import perf_counter

import msgspec

from app.core.history.identity import Identity
from app.core.tokens.declarations import Declarations
from app.core.tokens.estimate import Count
from app.runtime.caches import Caches
from app.tokens.estimator import Estimator
from app.tokens.tokenizer import Tokenizer
from app.wire.chat_completions.messages import read_message
from app.wire.reader import MessageReader

SIZES = (1_000, 3_000, 10_000, 30_000, 100_000, 300_000, 1_000_000)
"""Tokens of the history."""
TURNS = 15
MESSAGE_WORDS = 110
WORDS = (
    "order parcel address refund Tuesday invoice 4711 the a of and was sent to because customer agreed that clerk"
    " wrote warehouse return label email never again price reduced by 12.50 euro since March, please confirm"
)


class Timed(Tokenizer):
    """Adds up the seconds spent on text."""

    seconds = 0.0

    def counter(self, encoding: str) -> Count:  # type: ignore[override]
        count = super().counter(encoding)

        def timed(text: str) -> int:
            began = perf_counter()
            tokens = count(text)
            self.seconds += perf_counter() - began
            return tokens

        return timed


def main() -> None:
    tokenizer, reader = Timed(), MessageReader(Identity(b"benchmark"), read_message, caches=Caches(1 << 30))
    if tokenizer.missing:
        raise SystemExit("The tokenizer tables are missing: run `make test` once, or scripts/fetch_tables.py .tables.")
    estimator, count = Estimator(tokenizer), tokenizer.counter("o200k_base")

    def turn(raw: Sequence[bytes]) -> tuple[float, float]:
        """Seconds of the whole turn, and of its text."""
        tokenizer.seconds, began = 0.0, perf_counter()
        estimator.prompt("gpt-4o", reader.read(raw), b"", Declarations).costs()
        return perf_counter() - began, tokenizer.seconds

    print(f"{'history':>10} {'messages':>9} {'tokenising':>11} {'look-ups':>9} {'naive':>9} {'naive':>7}")
    print(f"{'tokens':>10} {'':>9} {'ms':>11} {'ms':>9} {'ms':>9} {'/ turn':>7}")
    for size in SIZES:
        history = messages(size, count)
        turn(history)
        turns = [turn([*history, message(random.Random(f"{size} {number}"))]) for number in range(TURNS)]
        whole, text = median(whole for whole, _ in turns), median(text for _, text in turns)
        texts = [msgspec.json.decode(raw)["content"] for raw in history]
        naive = median(seconds(lambda: sum(map(count, texts))) for _ in range(3))  # noqa: B023 - run at once
        print(
            f"{size:>10,} {len(history):>9,} {text * 1e3:>11.3f} {(whole - text) * 1e3:>9.3f}"
            f" {naive * 1e3:>9.2f} {naive / whole:>7.1f}"
        )


def messages(size: int, count: Callable[[str], int]) -> list[bytes]:
    random_ = random.Random(size)
    made: list[bytes] = []
    tokens = 0
    while tokens < size:
        made.append(message(random_))
        tokens += count(msgspec.json.decode(made[-1])["content"]) + 4
    return made


def message(random_: random.Random) -> bytes:
    text = " ".join(random_.choices(WORDS.split(), k=MESSAGE_WORDS))
    return msgspec.json.encode({"role": random_.choice(("user", "assistant")), "content": text})


def seconds(work: Callable[[], object]) -> float:
    began = perf_counter()
    work()
    return perf_counter() - began


if __name__ == "__main__":
    main()
