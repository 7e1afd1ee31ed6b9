"""Time to understand a request, by its size, and by the part of it that was seen before.

`seen`: the same body again. `one new`: a history that was seen, and one more message. `unseen`: all of it for the first
time, counting included; the others are counted as well. Each by steps: the body is *split* into messages, these are
*read* and digested, *priced* as far as their tokens are known, made a *conversation*, and *counted*. Times are of the
processor, in microseconds: the median of many, of three for what is unseen. All in one process and one run.

    python -m lab.benchmarks.understanding
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from statistics import median
from time import process_time_ns
from typing import Any

from app.core.history.identity import Identity
from app.core.view.view import Conversation
from app.providers.estimator import Estimator
from app.providers.tokenizer import Tokenizer
from app.runtime.caches import Caches
from app.wire.chat_completions.format import CHAT_COMPLETIONS
from app.wire.reader import MessageReader
from app.wire.types import BOUNDS
from lab.benchmarks.talks import message

SIZES = {"300 B": 1, "4 KB": 7, "40 KB": 72, "400 KB": 720, "4 MB": 7_200}
"""Messages, of about 560 bytes."""
STEPS = ("split", "read", "price", "converse", "count")
UNSEEN = 3
SEEN = 100


class Understanding:
    """Memory of requests that a process has, and how long the steps of the latest one took."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._identity = Identity(b"benchmark")
        self._reader = MessageReader(self._identity, CHAT_COMPLETIONS.message, caches=Caches(1 << 30))
        self._estimator = Estimator(tokenizer)

    def steps(self, body: bytes) -> list[float]:
        """Microseconds of each."""
        took: list[float] = []

        def timed(step: Callable[[], Any]) -> Any:
            began = process_time_ns()
            result = step()
            took.append((process_time_ns() - began) / 1_000)
            return result

        request = timed(lambda: CHAT_COMPLETIONS.read(body, BOUNDS, self._reader.beginnings))
        history = timed(lambda: self._reader.read(request.raw_messages))
        declared = request.declared, request.declarations
        prompt = timed(lambda: self._estimator.prompt("gpt-4o", history, *declared))
        conversation = timed(lambda: Conversation(history, self._identity, "t", prompt.costs, prompt.bound))
        timed(conversation.count)
        return took


def main() -> None:
    tokenizer = Tokenizer()
    if tokenizer.missing:
        raise SystemExit("The tokenizer tables are missing: run `make test` once, or scripts/fetch_tables.py .tables.")
    tokenizer.counter("o200k_base")
    print(f"{'body':>7} {'':>8} {'in all':>9} " + " ".join(f"{step:>9}" for step in STEPS))
    for name, number in SIZES.items():
        random = Random(name)
        history = [message(random) for _ in range(number)]
        unseen = [Understanding(tokenizer) for _ in range(UNSEEN)]
        _show(name, "unseen", [each.steps(_body(history)) for each in unseen])
        process, times = unseen[0], min(SEEN, 20_000 // number + 10)
        _show(name, "seen", [process.steps(_body(history)) for _ in range(times)])
        grown: list[list[float]] = []
        for _ in range(times):
            history = [*history, message(random)]
            grown.append(process.steps(_body(history)))
        _show(name, "one new", grown)


def _body(history: Sequence[bytes]) -> bytes:
    return b'{"model":"gpt-4o","messages":[%b],"temperature":0.7}' % b",".join(history)


def _show(name: str, state: str, runs: Sequence[Sequence[float]]) -> None:
    steps = [median(run[step] for run in runs) for step in range(len(STEPS))]
    in_all = median(map(sum, runs))
    print(f"{name:>7} {state:>8} {in_all:>9,.0f} " + " ".join(f"{step:>9,.1f}" for step in steps), flush=True)


if __name__ == "__main__":
    main()
