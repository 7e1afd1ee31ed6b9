"""The suite's Stenos and its option."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.running import forget_environment
from tests.exchanges.playing import Stages


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record", action="store_true", help="write the recordings of exchanges that differ anew")


@pytest.fixture(scope="session")
def stages() -> Iterator[Stages]:
    """Running Stenos, shared by cases with equal settings."""
    with pytest.MonkeyPatch.context() as patch:
        forget_environment(patch)
        stages = Stages()
        yield stages
        stages.close()
