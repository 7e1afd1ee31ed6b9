"""A planned compaction that is about to be made, and its announcement to the client."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from msgspec import Struct

from app.compaction.chunks import SummaryChunk
from app.compaction.plan import Plan
from app.compaction.summarizer import SummaryWork


class CompactionStart(Struct, frozen=True):
    """A compaction that is announced to the client."""

    id: str
    messages: int

    @classmethod
    def of(cls, plan: Plan) -> CompactionStart:
        return cls(f"cmp_{plan.range.through_digest.hex()[:24]}", plan.messages)


OnStart = Callable[[CompactionStart], None]


def ignore_start(_: CompactionStart) -> None:
    """Announce nothing."""


class CompactionJob(Struct, frozen=True):
    work: SummaryWork
    known: tuple[SummaryChunk, ...]
    """Chunks that it was planned with."""
    is_again: bool
    """True if another process's compaction brought nothing of use: all that waited for it plan again now, and one of
    them is to make it."""
    announce: Callable[[], None]
    """Called when the summary is about to be made."""
    deadline: float
    """Time by the monotonic clock, in seconds, until which the request waits for it."""

    @property
    def plan(self) -> Plan:
        return self.work.plan

    @property
    def seconds_left(self) -> float:
        return max(0.0, self.deadline - monotonic())
