"""What `make bench` makes of its measurements. The measurements are invented."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lab.benchmarks.relay.report import MEASURES, figures, markdown, table
from lab.benchmarks.relay.scenarios import NAMES, NUMBER, TURN, write_body

RATE = "requests a second, 4 KB, 32 connections"
ADDED = "added p50, 4 KB, 1 connection"


def run(subject: str, scenario: str, p50: float, number: int = 0, **more: Any) -> dict[str, Any]:
    times = {"n": 100, "p50": p50, "p90": 1.5 * p50, "p99": 2 * p50, "max": 3 * p50}
    return {
        "subject": subject,
        "scenario": scenario,
        "round": number,
        "seconds": 2.0,
        "asked": 100,
        "answered": 100,
        "errors": 0,
        "chunks": 500,
        "latency": times,
        "first": times,
        "processor_us": 10_000.0,
        "waiting_us": 20_000.0,
        "memory_before": 1_000,
        "memory_peak": 3_000,
        "memory_after": 4_000,
        **more,
    }


def results(*runs: dict[str, Any]) -> dict[str, Any]:
    subjects = dict.fromkeys([each["subject"] for each in runs])
    return {
        "machine": {"processor": "a processor", "cores": 2, "system": "Linux"},
        "python": "3.11",
        "rounds": 3,
        "seconds": 2.0,
        "subjects": {name: {"version": "1.0", "memory_at_start": 2_000} for name in subjects},
        "missing": {"litellm": "it did not start."},
        "runs": list(runs),
    }


def everything() -> dict[str, Any]:
    speed = {"direct": 10.0, "nginx": 100.0, "steno": 280.0, "before": 400.0}
    return results(*(run(name, scenario, p50) for name, p50 in speed.items() for scenario in NAMES))


def test_what_is_added_is_what_a_subject_has_beyond_the_direct_median() -> None:
    measured = results(run("direct", "c1", 10.0), run("nginx", "c1", 100.0), run("steno", "c1", 280.0))
    assert figures(measured)[ADDED] == {"nginx": 90.0, "steno": 270.0}


def test_a_table_gives_each_figure_as_a_multiple_of_one_subjects() -> None:
    found = figures(everything())
    assert f"| {ADDED} | 3.0 | 1.0 |" in table(found, "nginx", ["steno", "nginx"])


def test_the_documentation_gets_every_row_and_says_what_was_left_out() -> None:
    section = markdown(everything())
    assert section.count("\n| ") == 2 + len(MEASURES)  # one table, of the first base that was measured
    assert "Left out: LiteLLM, it did not start." in section


@pytest.mark.parametrize("size", [300, 4_096, 409_600])
def test_a_body_is_about_as_large_as_asked_for_and_ends_with_a_turn_of_its_own(tmp_path: Path, size: int) -> None:
    history, turn, end = write_body(tmp_path, size, "bench-text200", stream=False).read_text().split(TURN)
    request = json.loads(history + turn + turn + end)
    assert [NUMBER in str(message) for message in request["messages"][-4:]] == [False, True, False, True]
    assert 0.9 * size < len(history + turn + end) < 1.5 * size
