"""Long lists of keys, cut to what one statement takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")

# A few sizes only: each length of an IN list is another statement to parse and prepare.
_SIZES = (8, 64, 512, 2048)


def batches(keys: Sequence[T]) -> Iterator[list[T]]:
    """The keys in lists of few different lengths, filled up by repeating a key."""
    for start in range(0, len(keys), _SIZES[-1]):
        batch = list(keys[start : start + _SIZES[-1]])
        size = next(size for size in _SIZES if size >= len(batch))
        yield batch + batch[-1:] * (size - len(batch))
