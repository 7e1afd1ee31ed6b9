"""Fixtures for all tests; each plugin owns one subject."""

pytest_plugins = ["tests.databases"]
