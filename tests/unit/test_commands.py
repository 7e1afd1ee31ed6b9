"""The commands of `steno`: each is in the module of its name, and is imported when it is called."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

from typer.main import get_command

from app.cli.main import COMMANDS

HELP = "import sys; from app.cli.main import cli; cli(['--help'], standalone_mode=False); print(*sys.modules)"


def test_help_names_every_command_and_imports_none() -> None:
    ended = subprocess.run([sys.executable, "-c", HELP], capture_output=True, text=True, check=True)  # noqa: S603
    for name in COMMANDS:
        assert name in ended.stdout
        assert f"app.cli.{name} " not in ended.stdout
        assert get_command(import_module(f"app.cli.{name}").cli).help
