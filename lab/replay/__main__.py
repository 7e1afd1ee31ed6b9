"""Replay recorded conversations: `python -m lab.replay FILE...`"""

from __future__ import annotations

from lab.commands.cli import cli

cli(prog_name="python -m lab.replay")
