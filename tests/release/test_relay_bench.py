"""`make bench` works: each scenario, for a moment. What it measures is nobody's business here."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from lab.benchmarks.relay.environments import Missing
from lab.benchmarks.relay.measuring import bench, measure
from lab.benchmarks.relay.report import MEASURES, figures
from lab.benchmarks.relay.scenarios import NAMES, ONCE, Scale, scenarios, write_body
from lab.benchmarks.relay.subjects import DIRECT, Command, Place, steno

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="it measures by epoll and /proc"),
    pytest.mark.skipif(shutil.which("cc") is None, reason="no test installs a compiler"),
]

MOMENT = Scale(
    rounds=1, seconds=0.1, large_bodies=2, open_streams=8, open_seconds=1, settle_seconds=0.1, afterwards_seconds=0.0
)
TOO_SMALL = "memory per open stream"
"""Eight streams may take less memory than the process gives back meanwhile. Likewise, in a moment no time need be
`added`: the requests without a relay may be the slower ones."""


def nobody(_: Place) -> Command:
    raise Missing("it cannot be installed")


def crasher(_: Place) -> Command:
    return Command((sys.executable, "-c", "raise SystemExit('no such option')"), "1.0", start_seconds=10)


def test_every_scenario_is_answered_and_what_cannot_be_had_is_reported(tmp_path: Path) -> None:
    subjects = {"steno": steno, "nobody": nobody, "crasher": crasher}
    with bench(tmp_path, subjects, MOMENT, lambda _: None) as made:
        results = measure(made, scenarios(MOMENT))
    assert [(run["subject"], run["scenario"], run["error"]) for run in results["runs"] if run["errors"]] == []
    measured = {(run["subject"], run["scenario"]) for run in results["runs"] if run["answered"]}
    assert measured >= {("steno", name) for name in NAMES}
    assert measured >= {(DIRECT, name) for name in NAMES if name not in ONCE}
    found = figures(results)
    lacking = [m.title for m in MEASURES if "steno" not in found[m.title] and not m.added]
    assert set(lacking) <= {TOO_SMALL}
    assert results["missing"]["nobody"] == "it cannot be installed"
    assert "no such option" in results["missing"]["crasher"]


def test_a_refusal_and_a_stream_that_is_not_whole_are_errors(tmp_path: Path) -> None:
    unknown = ["--body", str(write_body(tmp_path, 300, "other-text200", stream=False))]
    short = ["--body", str(write_body(tmp_path, 300, "bench-chunks3", stream=True)), "--stream", "--stamps", "4"]
    with bench(tmp_path, {}, MOMENT, lambda _: None) as made:
        for arguments, wrong in ((unknown, "status 400"), (short, "not whole")):
            run = made.load(made.contestants[0], [*arguments, "--requests", "1"])
            assert (run["answered"], run["errors"]) == (0, 1)
            assert wrong in run["error"]
