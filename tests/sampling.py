"""What `make test` leaves to `make test-all`: tests marked `release`, and all but a sample of those marked `sampled`.

Each run draws its sample anew, by the seed that pytest-randomly prints (`make test SEED=7` draws that one again). A
test that is named with its file (`file.py::test`) always runs.
"""

from __future__ import annotations

from random import Random

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="also the tests of a release, and all that are sampled")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if plays_all(config):
        return
    played: list[pytest.Item] = []
    left: list[pytest.Item] = []
    for item in items:
        (left if item.get_closest_marker("release") or not is_drawn(config, item) else played).append(item)
    config.hook.pytest_deselected(items=left)
    items[:] = played


def plays_all(config: pytest.Config) -> bool:
    return bool(config.getoption("all")) or any("::" in argument for argument in config.args)


def is_drawn(config: pytest.Config, item: pytest.Item) -> bool:
    """Whether the test is in the sample: of itself, whatever else is collected."""
    marker = item.get_closest_marker("sampled")
    return marker is None or drawn(config, item.nodeid) < marker.args[0]


def drawn(config: pytest.Config, name: str) -> float:
    """A number from 0 to 1 for this name, the same in every process of a run."""
    return Random(f"{config.getoption('randomly_seed', 0)} {name}").random()
