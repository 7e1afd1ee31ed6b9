"""Chaos: `python -m tests.chaos --seconds 60 --seed 7`. Exit status 1 where anything was lost or wrong."""

from __future__ import annotations

import asyncio
import secrets
import signal
import sys
from collections.abc import Iterator, Sequence
from typing import Annotated

import typer

from tests.chaos.driver import Outcome, run_chaos

SHOWN = 12
"""Sentences of each kind."""


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
    typer.echo("\n".join(figures(outcome)))
    problems = _broken(outcome)
    for sentence in _evidence(outcome):
        typer.echo(f"  {sentence}")
    for problem in problems:
        typer.echo(f"FAILED: {problem}")
    sys.exit(1 if problems else 0)


def figures(outcome: Outcome) -> Iterator[str]:
    yield f"{outcome.seconds:.0f} s with {dict(outcome.disturbances)}"
    yield f"{outcome.requests} requests, {outcome.views} views, {outcome.summarised} of them with summaries"
    yield f"{outcome.chunks} chunks, {outcome.summary_calls} summary calls ({outcome.allowed_calls} allowed)"
    yield f"{outcome.excused} requests failed with a killed process, {outcome.overslept} with one that slept too long"


def _broken(outcome: Outcome) -> Sequence[str]:
    found = [f"{kind}: {number}" for kind, number in outcome.violations.items() if number]
    return [*found, *([outcome.proves_nothing] if outcome.proves_nothing else [])]


def _evidence(outcome: Outcome) -> Sequence[str]:
    lists = (outcome.sentences, outcome.lost, outcome.backwards, outcome.client_errors, outcome.logged_errors)
    return [sentence for sentences in lists for sentence in sentences[:SHOWN]]


if __name__ == "__main__":
    typer.run(main)
