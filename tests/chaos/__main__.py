"""Chaos: `python -m tests.chaos --seconds 60 --seed 7`. Exit status 1 where anything was lost or wrong."""

from __future__ import annotations

import asyncio
import secrets
import signal
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from tests.chaos.driver import Outcome, run_chaos

SHOWN = 12
"""Sentences of each kind."""

COLUMNS = (
    *("seed", "seconds", "kills", "pauses", "crashes", "black holes", "requests", "views (summarised)"),
    *("chunks", "summary calls (allowed)", "lost", "gaps + overlaps", "other messages' summaries", "epochs back"),
    *("client errors", "disagreements"),
)


def main(
    seconds: Annotated[float, typer.Option(min=5, help="How long the processes are disturbed.")] = 60.0,
    seed: Annotated[str, typer.Option(help="A number; any one if left out.")] = "",
) -> None:
    """Disturb four processes and their database, and check what came of it."""
    # What was started is stopped, however this ends.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    number = int(seed) if seed else secrets.randbelow(1_000_000)
    typer.echo(f"seed {number}")
    outcome = asyncio.run(run_chaos(seconds, number))
    typer.echo(table(outcome))
    problems = _broken(outcome)
    for sentence in _evidence(outcome):
        typer.echo(f"  {sentence}")
    for problem in problems:
        typer.echo(f"FAILED: {problem}")
    sys.exit(1 if problems else 0)


def table(outcome: Outcome) -> str:
    lines = [COLUMNS, tuple("---" for _ in COLUMNS), _row(outcome)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _row(outcome: Outcome) -> tuple[str, ...]:
    done = outcome.disturbances
    return (
        str(outcome.seed),
        f"{outcome.seconds:.0f}",
        str(done["kill"]),
        f"{done['pause']} + {done['long pause']} long",
        str(done["crash"]),
        f"{done['black hole']} + {done['long black hole']} long",
        str(outcome.requests),
        f"{outcome.views} ({outcome.summarised})",
        str(outcome.chunks),
        f"{outcome.summary_calls} ({outcome.allowed_calls}; {outcome.unused} unused)",
        str(len(outcome.lost)),
        f"{outcome.gaps + outcome.overlaps}",
        str(outcome.foreign),
        str(len(outcome.backwards)),
        f"{len(outcome.client_errors)} (killed {outcome.excused}, overslept {outcome.overslept})",
        str(outcome.disagreements),
    )


def _broken(outcome: Outcome) -> Sequence[str]:
    found = [f"{kind}: {number}" for kind, number in outcome.violations.items() if number]
    return [*found, *([outcome.proves_nothing] if outcome.proves_nothing else [])]


def _evidence(outcome: Outcome) -> Sequence[str]:
    lists = (outcome.sentences, outcome.lost, outcome.backwards, outcome.client_errors, outcome.logged_errors)
    return [sentence for sentences in lists for sentence in sentences[:SHOWN]]


if __name__ == "__main__":
    typer.run(main)
