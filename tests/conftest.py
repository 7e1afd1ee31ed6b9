"""Fixtures for all tests; each plugin owns one subject."""

import gc
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = ["tests.databases", "tests.shortcuts", "tests.unit.providers"]

MEMORY = Path("/dev/shm")  # noqa: S108 - each test has a folder of its own in it
ENOUGH = 4 * 1024**3
"""Free bytes. Containers often have 64 MB."""
if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free >= ENOUGH and not os.statvfs(MEMORY).f_flag & os.ST_NOEXEC:
    # Databases are made and deleted by the thousand: on a disk a test with PostgreSQL takes three times as long.
    os.environ["TMPDIR"] = tempfile.tempdir = str(MEMORY)

# No deadline, and no check of speed: how busy the machine is is not what a property is about. `make properties` looks
# much longer.
settings.register_profile("quick", max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("long", settings.get_profile("quick"), max_examples=300)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


# The 12,000 tests that are found at the start, and their modules, stay to the end. Until they are found nothing can be
# freed, and looking for it took a third of the time; afterwards they are not looked at again.
gc.disable()


@pytest.fixture(scope="session", autouse=True)
def _own_data_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test finds the developer's own database, or makes one in their home."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("data")))
        yield


def pytest_xdist_auto_num_workers() -> int:
    """One more than processors: tests wait for a part of their time, and each worker has to find all of them first."""
    return (os.cpu_count() or 1) + 1


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that were given a time of their own begin first: nobody waits for them at the end."""
    items.sort(key=lambda item: item.get_closest_marker("timeout") is None)


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()
