"""Milestones: progress of a request, for all who wait for a part of it at the same time."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from app.compaction.compactor import CompactionStart
from app.compaction.fallback import Decision
from app.http.upstream import UpstreamAnswer
from app.proxy.learning import Observation

A = TypeVar("A", bound=UpstreamAnswer)


class Milestones:
    """Events of a request: a summary is being made for it, a payload was decided, somebody answers it."""

    def __init__(self, *, reports: bool) -> None:
        """Begin. `reports`: a stream begins with the news of a summary that is being made."""
        self._reports = reports
        self._answers: list[UpstreamAnswer] = []
        self._begun: CompactionStart | None = None
        self._start = asyncio.Event()
        self._final = asyncio.Event()
        """Set once the decision is the final one."""
        self.decision: Decision | None = None
        """Latest decision; None if there was none."""
        self.observed: list[Observation] = []
        """Calls of the request to the provider."""
        self.is_resent = False
        """True once a changed payload was sent in place of a refused one: that happens once."""

    @property
    def has_begun(self) -> bool:
        """True if a summary is being made for it, or was."""
        return self._begun is not None

    @property
    def is_early(self) -> bool:
        """True if the client's stream tells of a summary before the provider's answer."""
        return self._reports and self.has_begun

    async def started(self) -> CompactionStart:
        """Wait until a summary is being made."""
        while self._begun is None:
            await self._start.wait()
        return self._begun

    async def decided(self) -> Decision:
        """Wait until it is known what is sent."""
        while self.decision is None or not self._final.is_set():
            await self._final.wait()
        return self.decision

    def on_start(self, compaction: CompactionStart) -> None:
        if self._begun is None:
            self._begun = compaction
            self._start.set()

    def observe(self, observation: Observation) -> Observation:
        """Observe a payload to be sent, to be compared with its answer."""
        self.observed.append(observation)
        return observation

    def decide(self, decision: Decision) -> None:
        self.decision = decision
        self._final.set()

    def reopen(self) -> None:
        """Take back a decision that did not hold. A stream that has begun has announced it, and says no more."""
        if self._begun is None:
            self._final.clear()

    def own(self, answering: A) -> A:
        """Own an answer that has begun. Whatever becomes of it, it is closed at the end."""
        self._answers.append(answering)
        return answering

    async def close(self) -> None:
        for answering in reversed(self._answers):
            await answering.close()
