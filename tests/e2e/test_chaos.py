"""A short `make chaos`: killed, paused and cut off, four processes keep every summary and pay for each once."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.e2e.commands import ROOT, environment

SECONDS, SEED = 15, 7
PATIENCE = 400.0
"""A busy machine takes its time to start processes: the disturbances alone are timed."""


@pytest.mark.timeout(PATIENCE)
def test_nothing_is_lost_or_paid_twice_in_chaos_and_without_protections_it_is() -> None:
    """The run ends with status 1 if the protected arm shows a violation, or the control arm none."""
    command = [sys.executable, "-m", "tests.chaos", "--seconds", str(SECONDS), "--seed", str(SEED)]
    ended = subprocess.run(  # noqa: S603 - our own command
        command, cwd=ROOT, env=environment({}), capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
