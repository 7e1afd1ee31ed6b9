"""Progress of a command on standard error: a bar on a terminal, elsewhere a line for each tenth."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

PARTS = 10
"""Lines for a whole, where there is no terminal: by share and not by time, so that a log is short and always alike."""

Advance = Callable[[object], None]
"""Called with each request that is done."""
Begin = Callable[[str, int], Advance]
"""Called with the name of a piece of work and its number of requests."""


@contextmanager
def progress() -> Iterator[Begin]:
    if sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
        with _bar() as bar:
            yield lambda name, requests: _advancing(bar, name, requests)
    else:
        yield _lines


def _bar() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("requests"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )


def _advancing(bar: Progress, name: str, requests: int) -> Advance:
    task = bar.add_task(name, total=requests)
    return lambda _: bar.advance(task)


def _lines(name: str, requests: int) -> Advance:
    done = 0

    def advance(_: object) -> None:
        nonlocal done
        done += 1
        if done * PARTS // requests > (done - 1) * PARTS // requests:
            typer.echo(f"{name}: {done:,} of {requests:,} requests ({done / requests:.0%})", err=True)

    return advance
