"""Random bytes, taken from the system a page at a time: each call to it costs as much as all else a name needs."""

from __future__ import annotations

import os

PAGE_BYTES = 4_096

_page = b""
_taken = 0


def random_hex(size: int) -> str:
    """So many random bytes in hex, as unpredictable as the system's own."""
    global _page, _taken
    if _taken + size > len(_page):
        _page, _taken = os.urandom(max(size, PAGE_BYTES)), 0
    _taken += size
    return _page[_taken - size : _taken].hex()


def _forget() -> None:
    """A process that was forked must not take the same bytes as the one it comes from."""
    global _page
    _page = b""


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
