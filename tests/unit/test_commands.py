"""The commands of `steno`: a command's module is imported when it is called."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

from typer.main import get_group

from app.cli.main import COMMANDS

HELP = "import sys; from app.cli.main import cli; cli(['--help'], standalone_mode=False); print(*sys.modules)"


def test_help_names_every_command_and_imports_none() -> None:
    ended = subprocess.run([sys.executable, "-c", HELP], capture_output=True, text=True, check=True)  # noqa: S603
    for name, (module, _) in COMMANDS.items():
        assert name in ended.stdout
        assert f"app.cli.{module} " not in ended.stdout
        assert get_group(import_module(f"app.cli.{module}").cli).commands[name].help
