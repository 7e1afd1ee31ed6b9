"""Milestones: how far a request is, for all who wait for a part of it at the same time."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from app.compaction.job import CompactionStart
from app.core.stages.ladder import Decision
from app.providers.upstream import UpstreamAnswer
from app.proxy.learning import Observation

A = TypeVar("A", bound=UpstreamAnswer)


class Milestones:
    """Whether a summary is being made for a request, what was decided to send, and who answers it."""

    def __init__(self, *, tells: bool) -> None:
        """`tells`: whether a stream begins with the news of a summary that is being made."""
        self._tells = tells
        self._answers: list[UpstreamAnswer] = []
        loop = asyncio.get_running_loop()
        self.started: asyncio.Future[CompactionStart] = loop.create_future()
        self.decided: asyncio.Future[Decision] = loop.create_future()
        self.observed: list[Observation] = []
        """Its calls to the provider."""

    @property
    def is_early(self) -> bool:
        """Whether the client's stream has begun before the provider's answer."""
        return self._tells and self.started.done()

    def on_start(self, compaction: CompactionStart) -> None:
        if not self.started.done():
            self.started.set_result(compaction)

    def observe(self, observation: Observation) -> Observation:
        """What is to be sent, to be compared with its answer."""
        self.observed.append(observation)
        return observation

    def decide(self, decision: Decision) -> None:
        if self.decided.done():
            self.decided = asyncio.get_running_loop().create_future()
        self.decided.set_result(decision)

    def reopen(self) -> None:
        """What was decided did not hold. A stream that has begun was told of it, and is told no more."""
        if not self.started.done():
            self.decided = asyncio.get_running_loop().create_future()

    def own(self, answering: A) -> A:
        """An answer that has begun. Whatever becomes of it, it is closed at the end."""
        self._answers.append(answering)
        return answering

    async def close(self) -> None:
        """Gives the provider's answers up, and settles what they cost."""
        self.started.cancel()
        for answering in reversed(self._answers):
            await answering.close()
        for observation in self.observed:
            observation.settle()

    @property
    def decision(self) -> Decision | None:
        """What was decided last; None where it did not come to that."""
        is_known = self.decided.done() and not self.decided.cancelled()
        return self.decided.result() if is_known else None
