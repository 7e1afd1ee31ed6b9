"""A plugin for pytest: of the tests that are found, it keeps those that `MUTANT_TESTS` names, in that order.

It names a file with the id of a test in each line. Files that stand there without an id are kept whole.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {test: place for place, test in enumerate(Path(os.environ["MUTANT_TESTS"]).read_text().split("\n"))}
    kept = {item: place for item in items if (place := _place(item, places)) is not None}
    items[:] = sorted(kept, key=kept.__getitem__)


def _place(item: pytest.Item, places: dict[str, int]) -> int | None:
    return places.get(item.nodeid, places.get(item.nodeid.partition("::")[0]))
