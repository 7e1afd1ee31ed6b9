"""Harm that one client can do to another: hostile bodies, answers, headers and connections, and a victim beside them.

Starts a Steno on SQLite and its provider. A client with small requests, one after another, is the victim; another
tenant attacks, once for each row. Told are the victim's latencies meanwhile and what the process's memory grew by.

    python -m lab.benchmarks.hostile --seed 7 --shapes 'body one_key*,answer *'

Exit status 1 if the victim ever waited for more than 200 ms longer than it does without an attack, if the memory grew
by more than ten times what was sent (64 MB are always allowed), or if the victim got another answer than 200.
Reads /proc, so it needs Linux.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatch
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from statistics import median
from typing import IO, cast
from urllib.parse import urlsplit

import msgspec

from tests.e2e.commands import SECRET, Serving, serve

MOST_MS = 200.0
MOST_TIMES, ALLOWED_MB = 10, 64.0
BASELINE_SECONDS = 5.0
AFTER_SECONDS = 0.3
"""Seconds after an attack that are part of it."""
PAUSE_SECONDS = 0.005
BODY = b'{"model":"gpt-4o","messages":[{"role":"user","content":"Which fox jumps?"}]}'
HEADERS = {"authorization": "Bearer sk-victim", "content-type": "application/json", "host": "localhost"}


@dataclass(slots=True)
class Victim:
    """Asks small questions, and notes how long each answer took, in milliseconds."""

    url: str
    waits: list[float] = field(default_factory=list)
    failed: int = 0
    _over: bool = False

    @contextmanager
    def asking(self) -> Iterator[None]:
        thread = threading.Thread(target=self._ask)
        thread.start()
        try:
            yield
        finally:
            self._over = True
            thread.join()

    def _ask(self) -> None:
        parts = urlsplit(self.url)
        connection = HTTPConnection(parts.hostname or "", parts.port, timeout=60)
        while not self._over:
            began = time.perf_counter()
            try:
                connection.request("POST", "/v1/chat/completions", BODY, HEADERS)
                answer = connection.getresponse()
                answer.read()
                self.failed += answer.status != 200
            except (OSError, HTTPException):
                self.failed += 1
                connection.close()
            self.waits.append((time.perf_counter() - began) * 1_000)
            time.sleep(PAUSE_SECONDS)
        connection.close()


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    sent: float
    """Megabytes."""
    answered: str
    waits: list[float]
    failed: int
    grown: float
    """Megabytes."""

    def problems(self, usual: float) -> list[str]:
        found = {
            f"the victim waited {max(self.waits):.0f} ms": max(self.waits) - usual > MOST_MS,
            f"the memory grew by {self.grown:.0f} MB": self.grown > max(ALLOWED_MB, MOST_TIMES * self.sent),
            f"{self.failed} of the victim's requests failed": self.failed > 0,
        }
        return [problem for problem, is_there in found.items() if is_there]

    def shown(self, usual: float) -> str:
        times = f"{self.grown / self.sent:.1f}" if self.sent >= 1 else ""
        cells = (
            self.name,
            f"{self.sent:.1f}",
            self.answered,
            f"{median(self.waits):.1f}",
            f"{max(self.waits):.0f}",
            f"{self.grown:.0f}",
            times,
            "; ".join(self.problems(usual)) or "ok",
        )
        return "| " + " | ".join(cells) + " |"


class Attacker:
    """The attacks, made by a process of their own."""

    def __init__(self, url: str, seed: int) -> None:
        self._process = _started("lab.benchmarks.attacks", "--url", url, "--seed", str(seed))
        self.names = self._told().split("\t")

    def prepare(self, name: str) -> float:
        """The megabytes that are going to be sent."""
        return int(self._ask(name).removeprefix("ready ")) / 1e6

    def attack(self) -> str:
        return self._ask("go")

    def stop(self) -> None:
        _stop(self._process)

    def _ask(self, line: str) -> str:
        stdin = cast("IO[str]", self._process.stdin)
        stdin.write(line + "\n")
        stdin.flush()
        return self._told()

    def _told(self) -> str:
        line = cast("IO[str]", self._process.stdout).readline()
        if not line:
            raise RuntimeError("the attacker ended")
        return line.rstrip("\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, help="of the bodies that are made up; without it another one each time")
    parser.add_argument("--shapes", default="*", help="which attacks: names or globs, with commas between them")
    chosen = parser.parse_args()
    seed = random.randrange(10**6) if chosen.seed is None else chosen.seed
    print(f"seed {seed}", flush=True)
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        providers = [stack.enter_context(_provider()) for _ in range(2)]
        steno = stack.enter_context(_steno(Path(folder), *providers))
        attacker = Attacker(steno.url, seed)
        stack.callback(attacker.stop)
        failed = _attack(steno, attacker, chosen.shapes.split(","))
    sys.exit(1 if failed else 0)


def _attack(steno: Serving, attacker: Attacker, globs: list[str]) -> bool:
    names = [name for name in attacker.names if any(fnmatch(name, f"*{glob}") for glob in globs)]
    print("| attack | MB | answered | victim's p50, ms | worst, ms | memory, MB | times the size | |")
    print("|---|--:|---|--:|--:|--:|--:|---|")
    victim = Victim(steno.url)
    with victim.asking():
        time.sleep(BASELINE_SECONDS)
    waits = victim.waits[5:]  # The first ones open what is opened once.
    usual = median(waits)
    print(Row("none", 0, "", waits, victim.failed, 0).shown(usual), flush=True)
    failed = []
    for name in names:
        row = _row(steno, attacker, name)
        print(row.shown(usual), flush=True)
        failed += [name] if row.problems(usual) else []
        if steno.process.poll() is not None:
            print("FAILED: Steno ended")
            return True
    print(f"{len(names) - len(failed)} of {len(names)} attacks did no harm.")
    if failed:
        print("FAILED: " + ", ".join(failed))
    return bool(failed)


def _row(steno: Serving, attacker: Attacker, name: str) -> Row:
    sent = attacker.prepare(name)
    before = _memory(steno, "VmRSS")
    (Path("/proc") / str(steno.process.pid) / "clear_refs").write_text("5")  # The peak begins anew.
    victim = Victim(steno.url)
    with victim.asking():
        answered = attacker.attack()
        time.sleep(AFTER_SECONDS)
    if steno.process.poll() is not None:
        return Row(name, sent, answered, victim.waits, victim.failed, float("nan"))
    return Row(name, sent, answered, victim.waits, victim.failed, _memory(steno, "VmHWM") - before)


def _memory(steno: Serving, name: str) -> float:
    """Megabytes."""
    lines = (Path("/proc") / str(steno.process.pid) / "status").read_text().splitlines()
    return next(int(line.split()[1]) / 1_000 for line in lines if line.startswith(name + ":"))


@contextmanager
def _provider() -> Iterator[str]:
    process = _started("lab.benchmarks.adversary")
    try:
        yield f"http://127.0.0.1:{int(cast('IO[str]', process.stdout).readline())}"
    finally:
        _stop(process)


@contextmanager
def _steno(folder: Path, provider: str, adversary: str) -> Iterator[Serving]:
    """Run Steno with a provider for the victim, and one for the attacker."""
    config = folder / "steno.json"
    settings = {
        "upstream": {"base_url": f"{provider}/v1", "discover_windows": False},
        "upstreams": {"adversary": {"base_url": f"{adversary}/v1", "discover_windows": False}},
        "models": [{"match": "*", "context_window": 8_000}],
        "storage": {"url": f"sqlite:///{folder}/steno.db"},
        "compaction": {"wait_seconds": 10},
    }
    config.write_bytes(msgspec.json.encode(settings))
    steno = serve(["--config", str(config)], folder, STENO_SECRET=SECRET)
    try:
        yield steno
    finally:
        steno.kill()


def _started(module: str, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)  # noqa: S603


def _stop(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


if __name__ == "__main__":
    main()
