"""Several providers behind one Steno: which one gets a request, whose key it sees, and what is kept apart."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.http.loopback import RunningServer
from lab.simulator import Simulator
from tests.e2e import commands
from tests.e2e.conftest import TABLES
from tests.e2e.running import WINDOW

OWN_KEY = "sk-the-operators-for-other"
DEFAULT_KEY = "sk-the-operators-for-default"


@pytest.fixture
def other() -> Simulator:
    """The provider under `upstreams.other`."""
    return Simulator(window=WINDOW, models="any", tables=TABLES)


@pytest.fixture
def other_provider(other: Simulator) -> Iterator[RunningServer]:
    with other.serve() as server:
        yield server


# Commands


def test_the_doctor_asks_each_upstream_with_its_own_key_and_no_other(
    tmp_path: Path, provider: RunningServer, simulator: Simulator, other: Simulator, other_provider: RunningServer
) -> None:
    address = f"{other_provider.url}/v1"
    entries = {"keyed": {"base_url": address, "api_key_env": "OTHER_KEY"}, "bare": {"base_url": address}}
    other.when(lambda record: record.header("authorization") is None, status=401)
    report = commands.run(
        ["doctor", "--upstream", f"{provider.url}/v1", "--database-url", "memory"],
        tmp_path,
        STENO_UPSTREAMS=json.dumps(entries),
        OTHER_KEY=OWN_KEY,
        OPENAI_API_KEY=DEFAULT_KEY,
    )
    assert report.returncode == 0
    assert f"ok       upstream {provider.url}/v1: reachable, lists " in report.stdout
    assert f"ok       upstream keyed {address}: reachable, lists " in report.stdout
    assert f"ok       upstream bare {address}: reachable; without a key it does not list its models" in report.stdout
    assert [record.header("authorization") for record in simulator.log] == [f"Bearer {DEFAULT_KEY}"]
    assert [record.header("authorization") for record in other.log] == [f"Bearer {OWN_KEY}", None]
