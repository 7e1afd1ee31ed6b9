"""Time that passes when a test says so."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Clock:
    """A clock to be handed in where the code asks for the time in seconds."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now
