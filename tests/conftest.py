"""Fixtures for all tests; each plugin owns one subject."""

import os

import pytest
from hypothesis import settings

pytest_plugins = ["tests.databases", "tests.shortcuts", "tests.unit.providers"]

# No deadline: how busy the machine is is not what a property is about. `make properties` looks much longer.
settings.register_profile("quick", max_examples=50, deadline=None)
settings.register_profile("long", max_examples=2_000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that were given a time of their own begin first: nobody waits for them at the end."""
    items.sort(key=lambda item: item.get_closest_marker("timeout") is None)
