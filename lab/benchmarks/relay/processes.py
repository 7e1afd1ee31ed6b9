"""Processes on a core of their own, and what they have used of it and of memory. Linux only: it reads /proc."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from lab.benchmarks.relay.environments import Missing

PROC = Path("/proc")
END_SECONDS = 10.0
POLL_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Cores:
    """The upstream and the load client share one; the subject has the other."""

    load: int
    subject: int


def two_cores() -> Cores:
    """The last two of those this process may use; one for both where there is only one."""
    allowed = sorted(os.sched_getaffinity(0))
    return Cores(allowed[-2 if len(allowed) > 1 else -1], allowed[-1])


@contextmanager
def on_core(core: int) -> Iterator[None]:
    """Keep processes that are started meanwhile on this core."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@dataclass(frozen=True, slots=True)
class Used:
    """Time used by all living threads of a process and of those it started, in nanoseconds."""

    processor: int = 0
    waiting: int = 0
    """Ready to run while others had the core: the noise of a machine that is busy otherwise."""

    def since(self, before: Used) -> Used:
        return Used(self.processor - before.processor, self.waiting - before.waiting)


class Running:
    """A started process, with those it starts."""

    def __init__(self, command: Sequence[str], folder: Path, environment: Mapping[str, str], core: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.output = folder / "output"
        with self.output.open("wb") as output, on_core(core):
            self._process = subprocess.Popen(  # noqa: S603 - a subject of the benchmark
                list(command),
                cwd=folder,
                env={"PATH": os.environ["PATH"], "HOME": str(folder), **environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait_until_it_listens(self, port: int, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and self._process.poll() is None:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                return
            time.sleep(POLL_SECONDS)
        raise Missing(f"it did not start: {self.output.read_text(errors='replace').strip()[-300:]}")

    def used(self) -> Used:
        processor = waiting = 0
        for pid in self._tree():
            for path in PROC.glob(f"{pid}/task/*/schedstat"):
                with suppress(OSError):  # it has ended
                    values = path.read_text().split()
                    processor += int(values[0])
                    waiting += int(values[1])
        return Used(processor, waiting)

    def memory(self) -> int:
        """Bytes, what is shared with other processes counted in parts (PSS)."""
        kilobytes = 0
        for pid in self._tree():
            with suppress(OSError):
                lines = (PROC / str(pid) / "smaps_rollup").read_text().splitlines()
                kilobytes += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
        return 1024 * kilobytes

    def stop(self) -> None:
        """Ends it, and after some seconds whatever else runs in its session."""
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(END_SECONDS)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, 9)
        self._process.wait()

    def _tree(self) -> list[int]:
        found = [self._process.pid]
        for pid in found:
            for path in PROC.glob(f"{pid}/task/*/children"):
                with suppress(OSError):
                    found += map(int, path.read_text().split())
        return found


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port
