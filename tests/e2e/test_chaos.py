"""A short `make chaos`: killed, paused and cut off, four processes keep every summary and pay for each once."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.e2e.commands import ROOT, environment, until

SECONDS, SEED = 15, 7
pytestmark = pytest.mark.release

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


@pytest.mark.parametrize("moment", ["its database has started", "its processes have started"])
def test_a_run_that_is_ended_leaves_nothing_behind(moment: str) -> None:
    """By SIGTERM, as a job that takes too long is."""
    # Not below pytest's folder: a PostgreSQL that root starts opens every folder above its data.
    folder = Path(tempfile.mkdtemp(prefix="steno-ended-"))
    command = [sys.executable, "-m", "tests.chaos", "--seconds", "60"]
    with subprocess.Popen(command, cwd=ROOT, env=environment({"TMPDIR": str(folder)}), text=True) as run:  # noqa: S603 - our own command
        until(lambda: any(file.read_text() for file in folder.glob("*-pg/postmaster.pid")))
        [server] = (int(file.read_text().splitlines()[0]) for file in folder.glob("*-pg/postmaster.pid"))
        if "processes" in moment:
            until(lambda: len(list(folder.glob("steno-chaos-*/replica-*.out"))) > 1)
        run.terminate()
        assert run.wait(60) == 1
    with pytest.raises(ProcessLookupError):
        os.kill(server, 0)
    assert not any(folder.glob("steno-chaos-*"))
    shutil.rmtree(folder)
