"""Copies of the checkout, each with one change at a time, and tests run in them."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from lab.benchmarks.mutants.changes import Change

LINKED = (".venv", ".tables")
PYTEST = ("-m", "pytest", "--all", "-q", "-rfE", "-n", "0", "-p", "no:cacheprovider", "-p", "no:randomly")
ONE_TEST_SECONDS = 60
"""How long one test may take: a change may make a loop endless."""
LAST_WORDS_SECONDS = 20.0
"""Seconds that pytest has to stop what it started, once it is interrupted."""


class OutOfTime(Exception):
    """The tests did not end in the time they were given."""


class Tree:
    """A copy of the checkout."""

    def __init__(self, root: Path, folder: Path) -> None:
        self._folder = folder / "tree"
        self._chosen = folder / "tests.txt"
        self._output = folder / "output.txt"
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],  # noqa: S607 - the one there is
            cwd=root,
            check=True,
            capture_output=True,
        )
        for name in filter(None, listed.stdout.decode().split("\0")):
            if (root / name).is_file():
                (self._folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(root / name, self._folder / name)
        for name in LINKED:
            (self._folder / name).symlink_to((root / name).resolve())

    @contextmanager
    def changed(self, module: str, change: Change) -> Iterator[None]:
        """The tree with this change."""
        file = self._folder / module
        source = file.read_bytes()
        self._write(file, change.applied(source))
        try:
            yield
        finally:
            self._write(file, source)

    def _write(self, file: Path, source: bytes) -> None:
        file.write_bytes(source)
        # Compiled code is told from new code by second and size, which may be the same.
        for compiled in (file.parent / "__pycache__").glob(f"{file.stem}.*.pyc"):
            compiled.unlink()

    def failing(self, tests: Sequence[str], seconds: float) -> str | None:
        """The first of these tests that fails, or None; what keeps any from running counts, too. Raises OutOfTime."""
        self._chosen.write_text("\n".join(tests))
        files = dict.fromkeys(test.partition("::")[0] for test in tests)
        there = [file for file in files if (self._folder / file).exists()]
        if not there:
            return None
        command = [
            sys.executable,
            *PYTEST,
            "-x",
            f"--timeout={ONE_TEST_SECONDS}",
            "-p",
            "lab.benchmarks.mutants.chosen",
        ]
        code = self._run([*command, *there], seconds)
        if code in {0, 5}:  # 5: none of them is there any more
            return None
        failed = re.search(
            r"^(?:FAILED|ERROR) (.*?)(?: - .*)?$", self._output.read_text(errors="replace"), re.MULTILINE
        )
        return failed[1] if failed else f"pytest ended with {code}"

    def _run(self, command: Sequence[str], seconds: float) -> int:
        environment = os.environ | {"MUTANT_TESTS": str(self._chosen)}
        with self._output.open("wb") as output:
            process = subprocess.Popen(  # noqa: S603 - our own interpreter
                command, cwd=self._folder, env=environment, stdout=output, stderr=output, start_new_session=True
            )
            try:
                return process.wait(seconds)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGINT)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(LAST_WORDS_SECONDS)
                raise OutOfTime from None
            finally:
                _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process with all that it left behind."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
