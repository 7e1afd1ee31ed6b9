"""What `make test` leaves to `make test-all`: tests marked `release`, and all but a sample of those marked `slow` or
`sampled`, of the end-to-end tests and of their cases.

Each run draws its sample anew, by the seed that pytest-randomly prints (`make test SEED=7` draws that one again). A
test that is named with its file (`file.py::test`) always runs.
"""

from __future__ import annotations

from collections import defaultdict
from math import ceil
from random import Random

import pytest

SLOW = 0.1
"""Share of the tests marked `slow` that is played: they are a twentieth of all, and half of the time."""
TESTS = 0.33
"""Share of the end-to-end tests that is played, where no marker names another."""
CASES = 0.25
"""Share of the cases of such a test, one at least. The tables of presets are played whole."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="also the tests of a release, and all that are sampled")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if plays_all(config):
        return
    played: set[pytest.Item] = set()
    tables: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        marker = item.get_closest_marker("sampled")
        share = SLOW if item.get_closest_marker("slow") else marker.args[0] if marker else None
        if item.get_closest_marker("release"):
            continue
        if share is None and item.nodeid.startswith("tests/e2e/test_"):
            tables[item.nodeid.partition("[")[0]].append(item)
        elif share is None or drawn(config, item.nodeid) < share:
            played.add(item)
    for name, cases in tables.items():
        if drawn(config, name) < TESTS:
            cases.sort(key=lambda item: drawn(config, item.nodeid))
            played.update(cases[: ceil(CASES * len(cases))])
    config.hook.pytest_deselected(items=[item for item in items if item not in played])
    items[:] = [item for item in items if item in played]


def plays_all(config: pytest.Config) -> bool:
    return bool(config.getoption("all")) or any("::" in argument for argument in config.args)


def drawn(config: pytest.Config, name: str) -> float:
    """A number from 0 to 1 for this name, the same in every process of a run."""
    return Random(f"{config.getoption('randomly_seed', 0)} {name}").random()
