"""Output of commands: in colours on a terminal, unless NO_COLOR says otherwise; elsewhere one line an entry."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import Any, TextIO

import msgspec
import typer


def say(text: str, *, file: TextIO | None = None, nl: bool = True, **style: Any) -> None:
    """Print a line in this style, to standard output if no file is given."""
    at = file or sys.stdout
    typer.echo(typer.style(text, **style) if style and may_be_coloured(at) else text, file=at, nl=nl, color=True)


def say_row(cells: Iterable[object]) -> None:
    """Print an entry for other programs: a line, with tabs between the cells."""
    typer.echo("\t".join(" ".join(str(cell).split()) for cell in cells))


def print_json(value: Any) -> None:
    typer.echo(msgspec.json.format(msgspec.json.encode(value)))


def on_terminal() -> bool:
    """True if a person reads standard output, and not a program."""
    return sys.stdout.isatty()


def may_be_coloured(file: TextIO) -> bool:
    """True if https://no-color.org and the terminal allow colours."""
    return file.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
