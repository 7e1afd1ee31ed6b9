"""Errors of estimates for models that are not OpenAI's: as counted, with priors, and after learning.

    python -m lab.benchmarks.priors ROWS

ROWS are requests with the prompt size that their provider reported, a JSON object a line (docs/estimates.md); those
whose `class` begins with `other-` are taken, in the order of the file. What is learnt of a model is learnt from its
earlier rows.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

from app.core.tokens.calibration import Calibration, Prior, Sample, observe, prior_of
from lab.benchmarks.accuracy import steno

MEMBERS = ("model", "messages", "tools", "tool_choice", "response_format")
SIZES = ((0, None), (100, 300), (300, None), (1_000, None))
"""Reported tokens: from, and up to."""


class Row(NamedTuple):
    model: str
    tools: bool
    learnable: bool
    """True for a request without a schema, which costs something else at every provider."""
    estimate: int
    reported: int


def read_rows(path: Path) -> Iterator[Row]:
    for line in path.read_text().splitlines():
        row: dict[str, Any] = json.loads(line)
        if row["class"].startswith("other-"):
            request = {name: row[name] for name in MEMBERS if row.get(name) is not None}
            schema = "json_schema" in json.dumps(row.get("response_format"))
            tools = bool(request.get("tools"))
            yield Row(row["model"], tools, not schema, steno(request), row["expected_prompt_tokens"])


def unknown(_: str, tools: bool) -> Prior:
    return prior_of("house-model", tools)


def as_counted(rows: Iterable[Row]) -> list[int]:
    return [row.estimate for row in rows]


def expected(rows: Iterable[Row], prior: Callable[[str, bool], Prior], *, learning: bool) -> list[int]:
    """Expected tokens of each row, before its usage was known."""
    known: dict[tuple[str, bool], Calibration] = {}
    told: list[int] = []
    for row in rows:
        key = row.model, row.tools
        calibration = known.setdefault(key, Calibration(prior(*key)))
        told.append(calibration.apply(row.estimate))
        if learning and row.learnable:
            known[key] = observe(calibration, Sample(row.estimate, row.reported))
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description="Score priors and calibration on recorded requests.")
    parser.add_argument("rows", type=Path)
    rows = list(read_rows(parser.parse_args().rows))
    ways = {
        "as counted": as_counted(rows),
        "priors": expected(rows, prior_of, learning=False),
        "priors, learning": expected(rows, prior_of, learning=True),
        "unknown family": expected(rows, unknown, learning=False),
        "unknown family, learning": expected(rows, unknown, learning=True),
    }
    print("mean error in percent, by reported tokens\n")
    print("| | " + " | ".join(f"{least}{f' to {most}' if most else '+'}" for least, most in SIZES) + " |")
    print("|---|" + "---|" * len(SIZES))
    for way, told in ways.items():
        cells: list[str] = []
        for least, most in SIZES:
            pairs = [
                (number, row.reported)
                for number, row in zip(told, rows, strict=True)
                if row.reported >= least and (most is None or row.reported < most)
            ]
            cells.append(f"{100 * mean(abs(number - reported) / reported for number, reported in pairs):.1f}")
        print(f"| {way} | {' | '.join(cells)} |")
    print(f"\n{len(rows)} rows")


if __name__ == "__main__":
    main()
