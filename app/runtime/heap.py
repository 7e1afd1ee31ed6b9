"""The heap: what was freed goes back to the system, where the C library is glibc; elsewhere nothing is done.

glibc keeps what was freed for later, in an arena for each few threads, and takes ever larger pieces from there once one
was freed. After a few bodies of megabytes a process would be as large for good as it was at its worst moment.
"""

from __future__ import annotations

from collections.abc import Callable
from ctypes import CDLL, c_int, c_size_t
from functools import cache
from typing import Any

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
LARGE = 1 << 20
"""Bytes from which a piece of memory has pages of its own, which go back as soon as it is freed."""
KEPT = 8 << 20
"""Bytes at the end of an arena that are kept for the next request."""
ARENAS = 2
"""Arenas: one for the event loop, one for the threads beside it, which take turns at the interpreter anyway."""


def keep_small() -> None:
    """Limit the heap. Called before other threads begin."""
    if (tune := _function("mallopt", c_int, c_int)) is not None:
        tune(_MMAP_THRESHOLD, LARGE)
        tune(_TRIM_THRESHOLD, KEPT)
        tune(_ARENA_MAX, ARENAS)


def give_back() -> None:
    """Return freed memory to the system. Takes some milliseconds, in which other threads may wait for memory."""
    if (trim := _function("malloc_trim", c_size_t)) is not None:
        trim(0)


@cache
def _function(name: str, *arguments: Any) -> Callable[..., int] | None:
    found = getattr(CDLL(None), name, None)
    if found is not None:
        found.argtypes = arguments
    return found
