"""What `make test` leaves to `make test-all`: tests marked `release`, and all but a sample of those marked `sampled`
and of the cases in long end-to-end tables.

Each run draws its sample anew, by the seed that pytest-randomly prints (`make test SEED=7` draws that one again). A
test that is named with its file (`file.py::test`) always runs.
"""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

CASES, SHARE = 3, 0.4
"""Of an end-to-end test with more cases than this, such a share is played where no marker names another."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="also the tests of a release, and all that are sampled")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if plays_all(config):
        return
    played: list[pytest.Item] = []
    left: list[pytest.Item] = []
    cases = Counter(map(function_of, items))
    for item in items:
        is_long = item.nodeid.startswith("tests/e2e/") and cases[function_of(item)] > CASES
        is_played = is_drawn(config, item, SHARE if is_long else 1)
        (left if item.get_closest_marker("release") or not is_played else played).append(item)
    config.hook.pytest_deselected(items=left)
    items[:] = played


def plays_all(config: pytest.Config) -> bool:
    return bool(config.getoption("all")) or any("::" in argument for argument in config.args)


def function_of(item: pytest.Item) -> str:
    """The test that this is a case of, with its file."""
    return item.nodeid.partition("[")[0]


def is_drawn(config: pytest.Config, item: pytest.Item, share: float) -> bool:
    """Whether the case is in the sample; `share` is used where it has no marker of its own."""
    marker = item.get_closest_marker("sampled")
    return drawn(config, item.nodeid) < (marker.args[0] if marker else share)


def drawn(config: pytest.Config, name: str) -> float:
    """A number from 0 to 1 for this name, the same in every process of a run."""
    return Random(f"{config.getoption('randomly_seed', 0)} {name}").random()
