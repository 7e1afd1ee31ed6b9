"""What starts Steno besides the command line: the Makefile."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def said_by_make(*arguments: str) -> str:
    """What make would run."""
    command = ["make", "--dry-run", "--no-print-directory", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout  # noqa: S603


@pytest.mark.parametrize("target", ["run", "doctor"])
def test_make_leaves_the_choice_of_the_database_to_the_settings(target: str) -> None:
    """With a settings file as without: otherwise naming one would start an empty database."""
    plain = said_by_make(target)
    assert "DATABASE_URL" not in plain
    assert said_by_make(target, "CONFIG=mine.yaml").replace(" --config 'mine.yaml'", "").split() == plain.split()
