"""The mark that ties a test to its line in checklist.md."""

from __future__ import annotations

import pytest


def checklist(line: str) -> pytest.MarkDecorator:
    """For a test of that line, such as `A1`."""
    return pytest.mark.checklist(line)
