"""Cost and savings of compactions, by list prices: the worked examples of docs/costs.md, and recorded conversations.

    python -m lab.benchmarks.costs                          the examples alone
    python -m lab.benchmarks.costs FILE [MODEL] [LIMIT]     and each way to summarise, over the file's conversations

The recorded ones are replayed through Steno before the simulator, which says how much of each prompt one of the last 64
began with: that is what its cache has. No answer is streamed, because a stream tells its usage only to those who ask.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

from app.core.tokens.economy import Change, Rates, rates_of
from app.core.tokens.usage import Price, Tokens, cost
from app.providers.registry import tariff
from app.wire.usage import read_usage
from lab.replay.player import Played, Player
from lab.replay.recordings import Recording, read_recordings
from lab.replay.stage import stage
from lab.replay.tally import Tally
from lab.simulator import Record

MODELS = ("gpt-4o-mini", "gpt-4.1", "gpt-5", "claude-sonnet-4-5", "gemini-2.5-flash", "deepseek-chat")
BEFORE, INSTRUCTIONS, TAIL, SUMMARIES, GROWTH = 90_000, 2_000, 16_000, 6_000, 1_500
"""The example: a prompt at the trigger of a 128,000 token window, and what is left of it."""
SUMMARISED = BEFORE - INSTRUCTIONS - TAIL
CHANGE = Change(SUMMARISED - SUMMARIES, SUMMARIES + TAIL, GROWTH)
MILLION = 1_000_000
WINDOW = 8_000
MODEL = "deepseek-chat"


def examples() -> list[str]:
    """A Markdown table: after how many requests the example has paid, by model."""
    header = "| model | prompt | from the cache | not warm | warm, `transcript` | warm, `prefix` |"
    return [header, "|---|---:|---:|---:|---:|---:|", *map(_example, MODELS)]


def _example(model: str) -> str:
    price = _price(model)
    cold, warm = rates_of(price, warm=False), rates_of(price, warm=True)
    if cold is None or warm is None:
        raise ValueError(f"{model} has no price of its cache")
    by_style = (_requests(cold, _calls(price, price.prompt)), *_by_style(price, warm))
    return f"| {model} | {price.prompt:g} | {price.cached:g} | {' | '.join(map(str, by_style))} |"


def _by_style(price: Price, warm: Rates) -> tuple[int, int]:
    quoted, shown = _calls(price, price.prompt), _calls(price, warm.again)
    return _requests(warm, quoted), _requests(warm, shown)


def _calls(price: Price, read: float) -> float:
    return SUMMARISED * read + SUMMARIES * price.completion


def _requests(rates: Rates, calls: float) -> int:
    """Within which it saves what it costs."""
    costs = calls + CHANGE.rewritten * (rates.anew - rates.again)
    return ceil(costs / (CHANGE.freed * rates.again))


def _price(model: str) -> Price:
    found = tariff(model)
    if found is None:
        raise ValueError(f"{model} has no list price")
    return found.base


# Recorded conversations


@dataclass(frozen=True, slots=True)
class Spent:
    """Spending of a number of calls."""

    calls: int
    prompt: int
    cached: int
    completion: int
    cost: float

    @classmethod
    def by(cls, records: Iterable[Record], price: Price) -> Spent:
        told = [read_usage(record.usage) for record in records if record.usage]
        return cls(
            len(told),
            _sum(told, "prompt"),
            _sum(told, "cached"),
            _sum(told, "completion"),
            sum(cost(tokens, price) or 0.0 for tokens in told),
        )

    @property
    def cached_share(self) -> float:
        return self.cached / self.prompt if self.prompt else 0.0


def _sum(told: Iterable[Tokens], name: str) -> int:
    return sum(getattr(tokens, name) or 0 for tokens in told)


WAYS: Mapping[str, Mapping[str, str]] = {
    "transcript, gate off": {"SUMMARY__STYLE": "transcript", "COMPACTION__COST_GATE__ENABLED": "false"},
    "transcript": {"SUMMARY__STYLE": "transcript"},
    "prefix, gate off": {"SUMMARY__STYLE": "prefix", "COMPACTION__COST_GATE__ENABLED": "false"},
    "prefix": {"SUMMARY__STYLE": "prefix"},
}


@contextmanager
def _settings(given: Mapping[str, str]) -> Iterator[None]:
    """Settings, as the stage reads them from the environment."""
    os.environ.update({f"STENO_{name}": value for name, value in given.items()})
    try:
        yield
    finally:
        for name in given:
            del os.environ[f"STENO_{name}"]


def replayed(recordings: Sequence[Recording], model: str, settings: Mapping[str, str]) -> tuple[Tally, Spent, Spent]:
    """Return the spending of the conversations' own calls, and of those for summaries."""
    summaries: list[Record] = []
    chats: list[Record] = []

    def see(played: Played) -> None:
        summaries.extend(played.calls)
        chats.extend(record for record in set_up.provider.log if record not in played.calls)

    with _settings(settings), stage(model, WINDOW) as set_up:
        player = Player(set_up.base_url, set_up.provider, model, set_up.count, stream=False)
        tally = player.play(recordings, Tally(model, WINDOW), see)
    price = _price(model)
    return tally, Spent.by(chats, price), Spent.by(summaries, price)


def measured(recordings: Sequence[Recording], model: str) -> list[str]:
    """A Markdown table: one line for each way to summarise."""
    header = (
        "| way | compactions | prompts | of them cached | summary calls | their prompts | of them cached | US dollars |"
    )
    lines = [header, "|---|---:|---:|---:|---:|---:|---:|---:|"]
    for name, settings in WAYS.items():
        tally, chats, calls = replayed(recordings, model, settings)
        if tally.violations:
            raise ValueError(f"{name}: {tally.violations[0].sentence}")
        cells: tuple[Any, ...] = (
            *(name, tally.compactions, f"{chats.prompt:,}", f"{chats.cached_share:.1%}"),
            *(calls.calls, f"{calls.prompt:,}", f"{calls.cached_share:.1%}", f"{chats.cost + calls.cost:.4f}"),
        )
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return lines


def main(arguments: Sequence[str]) -> None:
    print("\n".join(examples()))
    if not arguments:
        return
    file, model = Path(arguments[0]), arguments[1] if len(arguments) > 1 else MODEL
    recordings = read_recordings(file)[: int(arguments[2]) if len(arguments) > 2 else None]
    print(f"\n{file.name}, {len(recordings)} conversations, {model}, window {WINDOW:,}\n")
    print("\n".join(measured(recordings, model)))


if __name__ == "__main__":
    main(sys.argv[1:])
