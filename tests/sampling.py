"""What `make test` leaves to `make test-all`: tests marked `release`, and all but a sample of those marked `slow` or
`sampled`, of the end-to-end and integration tests and of the cases of the former.

Each run draws its sample anew, by the seed that pytest-randomly prints (`make test SEED=7` draws that one again). A
test that is named with its file (`file.py::test`) always runs.
"""

from __future__ import annotations

from collections import defaultdict
from math import ceil
from random import Random

import pytest

SLOW = 0.05
"""Share of the tests marked `slow` that is played: they are a twentieth of all, and half of the time."""
TESTS = {"tests/e2e/test_": (0.15, 0.2), "tests/integration/test_": (0.5, 1.0)}
"""Shares of the tests in these files that are played, and of the cases of each, one at least, where no marker names
another. The tables of presets are played whole, and an integration test on both databases.
"""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="also the tests of a release, and all that are sampled")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if plays_all(config):
        return
    played: set[pytest.Item] = set()
    tables: defaultdict[tuple[str, float], list[pytest.Item]] = defaultdict(list)
    for item in items:
        marker = item.get_closest_marker("sampled")
        share = SLOW if item.get_closest_marker("slow") else marker.args[0] if marker else None
        if item.get_closest_marker("release"):
            continue
        tests, cases = next((shares for start, shares in TESTS.items() if item.nodeid.startswith(start)), (1, 1))
        if share is not None:
            if drawn(config, item.nodeid) < share:
                played.add(item)
        elif drawn(config, name := item.nodeid.partition("[")[0]) < tests:
            tables[name, cases].append(item)
    for (_, cases), table in tables.items():
        table.sort(key=lambda item: drawn(config, item.nodeid))
        played.update(table[: ceil(cases * len(table))])
    config.hook.pytest_deselected(items=[item for item in items if item not in played])
    items[:] = [item for item in items if item in played]


def plays_all(config: pytest.Config) -> bool:
    return bool(config.getoption("all")) or any("::" in argument for argument in config.args)


def drawn(config: pytest.Config, name: str) -> float:
    """A number from 0 to 1 for this name, the same in every process of a run."""
    return Random(f"{config.getoption('randomly_seed', 0)} {name}").random()
