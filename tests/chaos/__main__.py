"""Chaos: `python -m tests.chaos --seconds 60 --seed 7`. Exit status 1 where anything was lost or wrong."""

from __future__ import annotations

import asyncio
import secrets
import signal
import sys
from typing import Annotated

import typer

from tests.chaos.driver import run_chaos


def main(
    seconds: Annotated[float, typer.Option(min=5, help="How long the processes are disturbed.")] = 60.0,
    seed: Annotated[str, typer.Option(help="A number; any one if left out.")] = "",
) -> None:
    """Disturb four processes and their database, and check what came of it."""
    # What was started is stopped, however this ends.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    number = int(seed) if seed else secrets.randbelow(1_000_000)
    typer.echo(f"seed {number}")
    problems = asyncio.run(run_chaos(seconds, number))
    for problem in problems:
        typer.echo(f"FAILED: {problem}")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    typer.run(main)
