"""Retries of an unchanged payload after a temporary refusal, such as status 429 or 503."""

from __future__ import annotations

import random
from collections.abc import Iterable
from time import monotonic, time

from msgspec import Struct

from app.formats.refusals import named_pause

MOST_REPEATS = 2
"""Maximum number of retries. OpenAI's SDKs have the same maximum, and the same pauses."""
FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 8.0
JITTER = 0.25


class RetryBudget(Struct):
    """Retries of one unchanged payload, within a time limit that starts at the first refusal."""

    seconds: float
    """Maximum seconds from the first refusal to the last retry."""
    repeats: int = 0
    _deadline: float | None = None

    def pause(self, headers: Iterable[tuple[bytes, bytes]] = ()) -> float | None:
        """Return the seconds until the next retry, from the refusal's headers or a backoff; None for no retry."""
        if self._deadline is None:
            self._deadline = monotonic() + self.seconds
        # Jitter, so that clients that were refused together do not retry together.
        usual = min(FIRST_PAUSE_SECONDS * 2.0**self.repeats, LONGEST_PAUSE_SECONDS) * (1 - JITTER * random.random())
        pause = named_pause(headers, time()) or usual
        if self.repeats >= MOST_REPEATS or monotonic() + pause > self._deadline:
            return None
        self.repeats += 1
        return pause
