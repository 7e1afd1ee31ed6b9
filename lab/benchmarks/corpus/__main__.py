"""`record` writes a corpus, `compare` says where two differ."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path
from time import monotonic

from lab.benchmarks.corpus.cases import GROUPS
from lab.benchmarks.corpus.comparing import differences
from lab.benchmarks.corpus.recording import START, RecordingFailed, record

TREE = Path(__file__).parents[3]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m lab.benchmarks.corpus", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record", help="send all cases to a Steno and keep what was exchanged")
    recording.add_argument("--out", type=Path, required=True, help="folder to write, which must not exist or be empty")
    recording.add_argument("--tree", type=Path, default=TREE, help="checkout whose Steno is started (this one)")
    recording.add_argument("--start", default=START, help=f"command that starts it ({START})")
    recording.add_argument("--only", default="", help="record the groups whose names begin with this")
    comparing = commands.add_parser("compare", help="exit 1 where two recordings differ")
    comparing.add_argument("one", type=Path)
    comparing.add_argument("other", type=Path)
    arguments = parser.parse_args()
    if arguments.command == "compare":
        _compare(arguments.one, arguments.other)
    else:
        _record(arguments.out, arguments.tree.resolve(), arguments.start, arguments.only)


def _record(out: Path, tree: Path, start: str, only: str) -> None:
    if out.exists() and any(out.iterdir()):
        sys.exit(f"{out} is not empty.")
    began = monotonic()
    groups = [group for group in GROUPS if group.name.startswith(only)]
    try:
        number = asyncio.run(record(groups, out, tree, start))
    except* RecordingFailed as failed:
        sys.exit("\n".join(map(str, failed.exceptions)))
    print(f"{number} cases in {len(groups)} groups recorded in {out} in {monotonic() - began:.0f} s")


def _compare(one: Path, other: Path) -> None:
    found = list(differences(one, other))
    print("\n".join(found) if found else "Both are the same.")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
