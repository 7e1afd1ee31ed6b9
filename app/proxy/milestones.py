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

    def __init__(self, *, reports: bool, begun: bool = False) -> None:
        """`reports`: whether a stream begins with the news of a summary that is being made. `begun`: it has begun."""
        self._reports = reports
        self._stream_begun = begun
        self._answers: list[UpstreamAnswer] = []
        self._begun: CompactionStart | None = None
        self._settled = True
        """Whether the decision is the final one."""
        self._waiting: list[asyncio.Future[None]] = []
        self.decision: Decision | None = None
        """What was decided last; None where it did not come to that."""
        self.observed: list[Observation] = []
        """Its calls to the provider."""
        self.resent = 0
        """How often what its provider refused was sent otherwise."""

    @property
    def has_begun(self) -> bool:
        """Whether a summary is being made for it, or was."""
        return self._begun is not None

    @property
    def is_early(self) -> bool:
        """Whether the client's stream tells of a summary before the provider's answer."""
        return self._reports and self.has_begun

    @property
    def is_committed(self) -> bool:
        """Whether the client's stream has begun before the provider's answer."""
        return self._stream_begun or self.is_early

    async def started(self) -> CompactionStart:
        """Waits until a summary is being made."""
        while self._begun is None:
            await self._news()
        return self._begun

    async def decided(self) -> Decision:
        """Waits until it is known what is sent."""
        while self.decision is None or not self._settled:
            await self._news()
        return self.decision

    def on_start(self, compaction: CompactionStart) -> None:
        if self._begun is None:
            self._begun = compaction
            self._tell()

    def observe(self, observation: Observation) -> Observation:
        """What is to be sent, to be compared with its answer."""
        self.observed.append(observation)
        return observation

    def decide(self, decision: Decision) -> None:
        self.decision, self._settled = decision, True
        if self._waiting:
            self._tell()

    def reopen(self) -> None:
        """What was decided did not hold. A stream that has begun has announced it, and says no more."""
        if self._begun is None:
            self._settled = False

    async def _news(self) -> None:
        news = asyncio.get_running_loop().create_future()
        self._waiting.append(news)
        await news

    def _tell(self) -> None:
        waiting, self._waiting = self._waiting, []
        for news in waiting:
            if not news.done():
                news.set_result(None)

    def own(self, answering: A) -> A:
        """An answer that has begun. Whatever becomes of it, it is closed at the end."""
        self._answers.append(answering)
        return answering

    async def close(self) -> None:
        """Gives the provider's answers up."""
        for answering in reversed(self._answers):
            await answering.close()
