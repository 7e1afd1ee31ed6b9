"""What commands print: in colours on a terminal, unless NO_COLOR says otherwise, and progress as lines elsewhere."""

from __future__ import annotations

import os
import sys
from typing import Any, TextIO

import msgspec
import typer


def say(text: str, *, file: TextIO | None = None, **style: Any) -> None:
    """A line in that style, to standard output if no file is given."""
    at = file or sys.stdout
    typer.echo(typer.style(text, **style) if style and may_be_coloured(at) else text, file=at, color=True)


def print_json(value: Any) -> None:
    typer.echo(msgspec.json.format(msgspec.json.encode(value)))


def may_be_coloured(file: TextIO) -> bool:
    """https://no-color.org"""
    return file.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
