"""Play every suite, as before a release, and print a table of what came of each: `make release-check`.

Arguments are the names of some suites; otherwise all are played. Exit status 1 where one failed. Each suite is a target
of the Makefile, and what it says is in `build/release-check/`.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
LOGS = ROOT / "build" / "release-check"
SUITES = (
    *("lint", "test", "properties", "schema", "lease", "replays", "histories", "isolation"),
    *("fuzz", "faults", "chaos", "fleet", "clients", "agents", "installs", "image"),
)


def play(suite: str) -> tuple[bool, str]:
    """Whether it passed, and its row of the table."""
    began = time.monotonic()
    with (LOGS / f"{suite}.log").open("w+") as log:
        status = subprocess.run(["make", suite], cwd=ROOT, stdout=log, stderr=log, check=False).returncode  # noqa: S607
        log.seek(0)
        lines = [line.strip(" =\n") for line in log if line.strip(" =\n")]
    minutes, seconds = divmod(round(time.monotonic() - began), 60)
    outcome = "passed" if status == 0 else "failed"
    return status == 0, f"{suite:<12} {outcome:<8} {minutes:>3}:{seconds:02}  {lines[-1][:100] if lines else ''}"


def main() -> None:
    LOGS.mkdir(parents=True, exist_ok=True)
    rows = []
    for suite in sys.argv[1:] or SUITES:
        rows.append(play(suite))
        print(rows[-1][1], flush=True)
    failed = sum(not passed for passed, _ in rows)
    print(f"{len(rows)} suites, {failed} failed; what they said is in {LOGS.relative_to(ROOT)}/")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
