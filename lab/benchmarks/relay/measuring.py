"""One run: all subjects up at once, asked in turns, so that what the machine does meanwhile meets all of them."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lab.benchmarks.relay.environments import Missing, compiled
from lab.benchmarks.relay.processes import Cores, Running, Used, free_port, on_core, two_cores
from lab.benchmarks.relay.scenarios import FIRST_REQUESTS, MEMORY, ONCE, Scale, Scenario
from lab.benchmarks.relay.subjects import DIRECT, Place, Subject

START_SECONDS = 10.0
LOAD_SECONDS = 600.0
SAMPLE_SECONDS = 0.25

Run = dict[str, Any]
"""Output of the load client, with `subject`, `scenario`, `round` and the resources that the subject used."""


@dataclass(frozen=True, slots=True)
class Contestant:
    """A subject that is up."""

    name: str
    port: int
    version: str = ""
    process: Running | None = None
    memory_at_start: int = 0

    def used(self) -> Used:
        return self.process.used() if self.process else Used()

    def memory(self) -> int:
        return self.process.memory() if self.process else 0


@dataclass(slots=True)
class Bench:
    """The upstream, the load client and who is up."""

    folder: Path
    programs: Path
    cores: Cores
    scale: Scale
    contestants: list[Contestant] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)
    say: Callable[[str], None] = print

    def ask(self, contestant: Contestant, scenario: Scenario) -> Run:
        # Memory is asked for meanwhile only where that is what is measured: reading it costs the subject time.
        return self.load(contestant, scenario.arguments(self.scale, self.folder), watched=bool(scenario.ramp_ms))

    def load(self, contestant: Contestant, arguments: Sequence[str], watched: bool = False) -> Run:
        """Runs the load client; `watched`: the most memory that the subject takes meanwhile is noted."""
        command = [str(self.programs / "load"), "--port", str(contestant.port), *arguments]
        memory_before, before = contestant.memory(), contestant.used()
        with on_core(self.cores.load):
            load = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)  # noqa: S603
        peak = memory_before
        deadline = time.monotonic() + LOAD_SECONDS
        output = None
        while output is None:
            if time.monotonic() > deadline:
                load.kill()
            with suppress(subprocess.TimeoutExpired):
                output = load.communicate(timeout=SAMPLE_SECONDS)[0]
            if watched:
                peak = max(peak, contestant.memory())
        time.sleep(self.scale.afterwards_seconds)
        used = contestant.used().since(before)
        seen: Run = json.loads(output) if output.startswith("{") else {"asked": 0, "errors": 1, "error": output[-300:]}
        return seen | {
            "processor_us": used.processor / 1_000,
            "waiting_us": used.waiting / 1_000,
            "memory_before": memory_before,
            "memory_peak": peak,
        }


@contextmanager
def bench(folder: Path, subjects: Mapping[str, Subject], scale: Scale, say: Callable[[str], None]) -> Iterator[Bench]:
    """All subjects that can be had, started beside each other before one upstream."""
    programs, cores, upstream = compiled(folder), two_cores(), free_port()
    work = folder / "run"
    shutil.rmtree(work, ignore_errors=True)
    with ExitStack() as stack:
        provider = Running([str(programs / "upstream"), str(upstream)], work / "upstream", {}, cores.load)
        stack.callback(provider.stop)
        provider.wait_until_it_listens(upstream, START_SECONDS)
        made = Bench(work, programs, cores, scale, [Contestant(DIRECT, upstream)], say=say)
        for name, subject in subjects.items():
            place = Place(folder, work / name, free_port(), upstream)
            try:
                command = subject(place)
                process = Running(command.arguments, place.folder, command.environment, cores.subject)
                stack.callback(process.stop)
                process.wait_until_it_listens(place.port, command.start_seconds)
            except Missing as missing:
                made.missing[name] = str(missing)
                say(f"{name} is left out: {missing}")
                continue
            made.contestants.append(Contestant(name, place.port, command.version, process))
        time.sleep(scale.settle_seconds)
        made.contestants = [replace(each, memory_at_start=each.memory()) for each in made.contestants]
        yield made


def measure(bench: Bench, scenarios: Mapping[str, Scenario]) -> dict[str, Any]:
    """Run every scenario on every subject, round by round; the first subject changes from round to round."""
    runs: list[Run] = []
    for contestant in bench.contestants:
        bench.ask(contestant, FIRST_REQUESTS)
    time.sleep(bench.scale.settle_seconds)
    for number in range(bench.scale.rounds):
        for name, scenario in scenarios.items():
            if name in ONCE and number:
                continue
            bench.say(f"round {number + 1}, {name}: {scenario.what}")
            turn = number % len(bench.contestants)
            for contestant in (*bench.contestants[turn:], *bench.contestants[:turn]):
                if contestant.process is None and name in ONCE:
                    continue
                run = bench.ask(contestant, scenario)
                if name == MEMORY:
                    time.sleep(bench.scale.settle_seconds)
                run |= {"subject": contestant.name, "scenario": name, "round": number}
                runs.append(run | {"memory_after": contestant.memory()})
                bench.say(_line(run))
    return {
        "machine": {"processor": _processor(), "cores": os.cpu_count(), "system": platform.system()},
        "python": platform.python_version(),
        "rounds": bench.scale.rounds,
        "seconds": bench.scale.seconds,
        "subjects": {
            each.name: {"version": each.version, "memory_at_start": each.memory_at_start} for each in bench.contestants
        },
        "missing": bench.missing,
        "runs": runs,
    }


def _line(run: Run) -> str:
    noise = run["waiting_us"] / 1e6
    told = f"{run.get('answered', 0):>8,} answered {run['errors']:>4} errors  waited for the core {noise:.1f} s"
    return f"  {run['subject']:18} {told}  {run.get('error', '')[:120]}"


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
