"""A format that nobody has is one more in the list, and all that holds for formats holds for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "suite",
    ["conformance/test_conformance.py", "telegrams/poisoned.py", "telegrams/compacted.py"],
    ids=["conformance", "poisoning", "compaction"],
)
def test_a_format_more_needs_nothing_but_its_folder_and_a_place_in_the_list(suite: str) -> None:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "tests.telegrams.listed", "-q", "--all"]
    ran = subprocess.run(  # noqa: S603 - our own tests
        [*command, "-k", "telegrams", f"tests/{suite}"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout[-4_000:] + ran.stderr[-2_000:]
