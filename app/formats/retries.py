"""Retries: whether the provider may take the same request later, and when, as it says and as OpenAI's SDKs read it."""

from __future__ import annotations

from collections.abc import Iterable
from email.utils import parsedate_to_datetime

REPEATABLE = frozenset({408, 409, 429})
"""Below 500; from there on SDKs repeat every status."""
LONGEST_DATE = 100
LONGEST_PAUSE = 31_536_000.0
"""A year, in seconds: whoever says more says that there is no use in waiting."""


def is_repeatable(status: int, headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether an SDK would send the same request again. What the provider says of that counts first."""
    asked = dict(headers).get(b"x-should-retry")
    if asked in (b"true", b"false"):
        return asked == b"true"
    return status in REPEATABLE or status >= 500


def named_pause(headers: Iterable[tuple[bytes, bytes]], now: float) -> float | None:
    """The pause that the provider asks for, in seconds; None if it names nothing. `now` in Unix seconds."""
    named = dict(headers)
    for name, unit in ((b"retry-after-ms", 0.001), (b"retry-after", 1.0)):
        said = named.get(name, b"").strip()
        if said.replace(b".", b"", 1).isdigit():
            return min(float(said) * unit, LONGEST_PAUSE)
    try:
        date = parsedate_to_datetime(named.get(b"retry-after", b"")[:LONGEST_DATE].decode("latin-1")).timestamp()
    except (ValueError, OverflowError, TypeError, IndexError):  # The parser's own, where it was not written for it.
        return None
    return min(max(0.0, date - now), LONGEST_PAUSE)
