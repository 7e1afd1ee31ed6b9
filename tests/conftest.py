"""Fixtures for all tests; each plugin owns one subject."""

import os

from hypothesis import settings

pytest_plugins = ["tests.databases", "tests.shortcuts", "tests.unit.providers"]

# No deadline: how busy the machine is is not what a property is about. `make properties` looks much longer.
settings.register_profile("quick", max_examples=50, deadline=None)
settings.register_profile("long", max_examples=2_000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))
