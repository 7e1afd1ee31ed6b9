"""The first inputs of each fuzz target; `make fuzz` tries many more."""

import pytest

from tests.fuzz.__main__ import found
from tests.fuzz.targets import TARGETS


@pytest.mark.parametrize("name", TARGETS)
def test_nothing_is_found_in_the_first_inputs(name: str) -> None:
    assert [finding for number in range(150) if (finding := found(name, number))] == []
