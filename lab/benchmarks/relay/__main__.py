"""Measures relays side by side, and prints the table of docs/benchmarks.md.

    python -m lab.benchmarks.relay [--subjects steno,nginx] [--scenarios sat,ttft] [--rounds 3] [--seconds 2]

All results are in .bench/results.json.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from functools import partial

from lab.benchmarks.relay.measuring import bench, measure
from lab.benchmarks.relay.report import markdown
from lab.benchmarks.relay.scenarios import DOCUMENTED, NAMES, Scale, scenarios
from lab.benchmarks.relay.subjects import ROOT, SUBJECTS

FOLDER = ROOT / ".bench"


def main() -> None:
    # What was started is stopped, however this ends.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    parser = argparse.ArgumentParser(prog="python -m lab.benchmarks.relay", description=__doc__.partition("\n")[0])
    parser.add_argument("--subjects", default=",".join(SUBJECTS), help="default: %(default)s")
    parser.add_argument("--scenarios", default=",".join(NAMES), help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=DOCUMENTED.rounds)
    parser.add_argument("--seconds", type=float, default=DOCUMENTED.seconds, help="of each scenario")
    options = parser.parse_args()
    scale = Scale(rounds=options.rounds, seconds=options.seconds)
    known = scenarios(scale)
    wanted = {name: known[name] for name in options.scenarios.split(",")}
    subjects = {name: SUBJECTS[name] for name in options.subjects.split(",")}
    with bench(FOLDER, subjects, scale, partial(print, flush=True)) as made:
        results = measure(made, wanted)
    (FOLDER / "results.json").write_text(json.dumps(results, indent=1))
    print(f"\n{markdown(results)}")


if __name__ == "__main__":
    main()
