"""Whether the tests notice small changes of the code: mutants of app/core, app/store, app/compaction and app/proxy.

    python -m lab.benchmarks.mutants [--number 200] [--seed 7] [--only app/core] [--groups unit] [--seconds 300]
                                     [--jobs 1] [--tests FILE] [--again]

Each mutant is one change in a copy of the checkout: a comparison, an operator, a constant, a condition or a bound of a
slice is another one, a statement is gone, another value is returned. It meets the tests that ran its lines, the most
special ones first: unit, then integration, then e2e; the first that fails kills it. What each test runs is recorded
once, in `.mutants`; what is removed there is recorded anew. The results are there, too, so a run goes on where another
one ended. The sample depends on the seed and the code alone: with a larger number it holds the smaller one. `--again`
tries those that were not killed once more, `--tests` names files that are tried first, such as those that were just
written, `--groups` leaves other groups of tests alone.

A kill by a test beyond tests/unit counts if the test fails a second time. Exit code 1 where a mutant lives that `named`
gives no reason for.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import queue
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from time import monotonic

from lab.benchmarks.mutants.changes import Change, changes, compiles
from lab.benchmarks.mutants.named import NAMED
from lab.benchmarks.mutants.suspects import CONFIGURATION, GROUPS, Suspects, recording
from lab.benchmarks.mutants.trees import OutOfTime, Tree

ROOT = Path(__file__).parents[3]
FOLDERS = ("app/core", "app/store", "app/compaction", "app/proxy")
FIRST = 40
"""Tests of a group that are asked before the others: where they suffice, most files are not even imported."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A module with one change."""

    module: str
    """Path from the root of the checkout."""
    change: Change
    key: str
    """Name among the results: the same after lines were added above it."""

    @property
    def place(self) -> str:
        return f"{self.module}:{self.change.line}"


@dataclass(frozen=True, slots=True)
class Result:
    """Fate of a mutant: a line of the results."""

    key: str
    outcome: str
    """`killed`, `survived`, `unreached` (no test runs it) or `unfinished` (its time was over)."""
    by: str
    """The test that failed; empty if none did."""
    seconds: float


def main() -> None:
    arguments = _arguments()
    folder = ROOT / ".mutants"
    folder.mkdir(exist_ok=True)
    for group in arguments.groups:
        if not recording(folder, group).exists():
            _record(folder, group)
    results = folder / "results.jsonl"
    known = _known(results)
    sample = list(islice(_sampled(arguments.only, arguments.seed), arguments.number))
    due = [
        each for each in sample if each.key not in known or (arguments.again and known[each.key].outcome != "killed")
    ]
    print(f"{len(sample)} mutants, {len(due)} of them to be tried", flush=True)
    suspects = Suspects([recording(folder, group) for group in arguments.groups], ROOT)
    with ExitStack() as stack, ThreadPoolExecutor(arguments.jobs) as threads, results.open("a") as written:
        trees = queue.SimpleQueue[Tree]()
        for _ in range(arguments.jobs):
            trees.put(Tree(ROOT, Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mutants")))))

        def tried(mutant: Mutant) -> Result:
            tree = trees.get()
            try:
                return _tried(mutant, tree, suspects, arguments.tests, arguments.seconds)
            finally:
                trees.put(tree)

        for mutant, result in zip(due, threads.map(tried, due), strict=True):
            print(
                f"{result.outcome:10} {result.seconds:4.0f} s  {mutant.place}  {mutant.change.what}  {result.by}",
                flush=True,
            )
            written.write(json.dumps(asdict(result) | {"place": mutant.place, "what": mutant.change.what}) + "\n")
            written.flush()
            known[result.key] = result
    sys.exit(_report(sample, known))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m lab.benchmarks.mutants", description="whether tests notice changes"
    )
    parser.add_argument("--number", type=int, default=200)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--only", nargs="+", default=FOLDERS, help="folders or modules of the product")
    parser.add_argument("--seconds", type=float, default=300.0, help="how long the tests of one mutant may take")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--tests", nargs="*", default=[], help="files of tests that are tried first")
    parser.add_argument("--again", action="store_true", help="try those that were not killed once more")
    parser.add_argument("--groups", nargs="+", choices=GROUPS, default=list(GROUPS), help="whose tests are asked")
    return parser.parse_args()


def _record(folder: Path, group: str) -> None:
    """Run a group's tests, and keep for each which lines of the product it ran."""
    configuration = folder / "coverage.ini"
    configuration.write_text(CONFIGURATION)
    made = folder / f"{group}.part"
    made.unlink(missing_ok=True)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-n",
        os.environ.get("MUTANTS_WORKERS", "auto"),
    ]
    measured = ["--cov=app", "--cov-context=test", f"--cov-config={configuration}", "--cov-report="]
    environment = os.environ | {"COVERAGE_FILE": str(made)}
    # S603: our own interpreter
    ended = subprocess.run([*command, *measured, *GROUPS[group]], cwd=ROOT, env=environment, check=False)  # noqa: S603
    if ended.returncode:
        print(f"Some tests of {group} failed: a mutant they would kill may live, or be killed by what fails anyway.")
    made.rename(recording(folder, group))


def _known(results: Path) -> dict[str, Result]:
    """The last result for each mutant."""
    lines = results.read_text().splitlines() if results.exists() else []
    read = (json.loads(line) for line in lines)
    return {each["key"]: Result(each["key"], each["outcome"], each["by"], each["seconds"]) for each in read}


def _sampled(only: Sequence[str], seed: int) -> Iterator[Mutant]:
    """All mutants in an order of chance."""
    files = sorted(
        {file for path in only for file in ((ROOT / path).rglob("*.py") if (ROOT / path).is_dir() else [ROOT / path])}
    )
    mutants = [mutant for file in files for mutant in _mutants(file)]
    mutants.sort(key=lambda mutant: hashlib.sha256(f"{seed} {mutant.key}".encode()).digest())
    return (each for each in mutants if compiles(each.change.applied((ROOT / each.module).read_bytes())))


def _mutants(file: Path) -> Iterator[Mutant]:
    source = file.read_bytes()
    lines = source.decode().splitlines()
    module = file.relative_to(ROOT).as_posix()
    times = Counter[str]()
    for change in changes(source):
        name = f"{module} {change.function} {lines[change.line - 1].strip()} {change.what}"
        times[name] += 1
        yield Mutant(module, change, hashlib.sha256(f"{name} {times[name]}".encode()).hexdigest()[:16])


def _tried(mutant: Mutant, tree: Tree, suspects: Suspects, first: Sequence[str], seconds: float) -> Result:
    began = monotonic()
    change = mutant.change
    # What is outside of functions runs before any test: what ran the rest of the module could notice.
    lines = range(change.line, change.last_line + 1) if change.function else ()
    groups = [list(first), *suspects.of(mutant.module, lines)]
    if not any(groups):
        return Result(mutant.key, "unreached", "", 0.0)
    with tree.changed(mutant.module, change):
        try:
            for tests in (some for group in groups for some in (group[:FIRST], group[FIRST:]) if some):
                by = tree.failing(tests, began + seconds - monotonic())
                if by and (by.startswith("tests/unit") or tree.failing([by], began + seconds - monotonic())):
                    return Result(mutant.key, "killed", by, monotonic() - began)
        except OutOfTime:
            return Result(mutant.key, "unfinished", "", monotonic() - began)
    return Result(mutant.key, "survived", "", monotonic() - began)


def _report(sample: Sequence[Mutant], known: dict[str, Result]) -> int:
    """Print how many were killed, and which were not. Returns the exit code."""
    killed, all_of_them = Counter[str](), Counter[str]()
    alive, unnamed = [], 0
    for mutant in sorted(sample, key=lambda each: (each.module, each.change.line)):
        room = "/".join(mutant.module.split("/")[:2])
        outcome = known[mutant.key].outcome
        all_of_them[room] += 1
        killed[room] += outcome == "killed"
        if outcome != "killed":
            alive.append(f"{mutant.place}  {mutant.change.what}  ({NAMED.get(mutant.key, f'{mutant.key} {outcome}')})")
            unnamed += mutant.key not in NAMED
    print("\n| folder | mutants | killed | |\n|---|---|---|---|")
    for room, number in sorted(all_of_them.items()):
        print(f"| {room} | {number} | {killed[room]} | {killed[room] / number:.0%} |")
    print(f"| all | {len(sample)} | {killed.total()} | {killed.total() / len(sample):.0%} |\n")
    print("\n".join(alive))
    return 1 if unnamed else 0


if __name__ == "__main__":
    main()
