"""Patience: repetitions and pauses of a request that is sent again for a client that cannot do it any more."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from time import monotonic, time

from app.wire.retries import named_pause

MOST_REPEATS = 2
"""Maximum number of repetitions, as in OpenAI's SDKs, whose pauses these are, too."""
FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 8.0
JITTER = 0.25


@dataclass(slots=True)
class Patience:
    """Patience with one request. It begins to run out with the first refusal."""

    seconds: float
    """Seconds that may pass until the last repetition."""
    repeats: int = 0
    _deadline: float | None = None

    def pause(self, headers: Iterable[tuple[bytes, bytes]] = ()) -> float | None:
        """Seconds after which to ask again, as the refusal's headers say; None if that is too late, or too often."""
        if self._deadline is None:
            self._deadline = monotonic() + self.seconds
        pause = named_pause(headers, time()) or self._usual
        if self.repeats >= MOST_REPEATS or monotonic() + pause > self._deadline:
            return None
        self.repeats += 1
        return pause

    @property
    def _usual(self) -> float:
        """Usual pause, spread so that callers who were refused together do not come back together."""
        pause = min(FIRST_PAUSE_SECONDS * 2.0**self.repeats, LONGEST_PAUSE_SECONDS)
        return pause * (1 - JITTER * random.random())
