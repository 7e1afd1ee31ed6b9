"""Progress of one request: all its state that changes on the way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic
from typing import TypeVar

from app.compaction.job import CompactionStart, Job, OnStart, nobody
from app.core.reasons import Reasons
from app.core.stages.case import Case
from app.core.stages.masking import due_mask
from app.core.stages.steps import Step
from app.core.summary.attempts import steps_to
from app.core.summary.flow import Compaction, Outcome
from app.core.summary.plan import Plan, cut_at, last_cut, plan_asked, plan_compaction
from app.core.view.chunks import SummaryChunk
from app.core.view.mask import Boundary
from app.core.view.reading import Path
from app.runtime.threads import Work

T = TypeVar("T")

RECOVERIES = 3
"""Maximum number of times that one request waits for a database that does not answer, and tries it anew: the breaker
opens after as many failures. It is cheaper than a summary that others, who know nothing of it, make as well."""


@dataclass(slots=True)
class Progress:
    job: Job
    work: Work
    on_start: OnStart
    deadline: float
    """Time by the monotonic clock, in seconds."""
    case: Case
    may_go_on: bool = False
    """True if it may be sent without a summary that is due, where it fits well."""
    before: Case | None = None
    """Case before the first compaction of its own."""
    own: list[Compaction] = field(default_factory=list)
    """Compactions of its own that came to an end in time."""
    latest: Compaction | None = None
    """Result of the latest attempt; None before any was due."""
    is_announced: bool = False
    """True once a compaction was announced to the client: the first one alone is."""
    has_waited: bool = False
    """True once this request has waited for another request's compaction."""
    start: Case | None = None
    """Case as the store said first; None if it did not answer."""
    attempts: list[Compaction] = field(default_factory=list)
    mask_is_put_off: bool = False
    """True if a mask was due that would have cost more than it saves."""
    recoveries: int = 0

    @property
    def seconds_left(self) -> float:
        return max(0.0, self.deadline - monotonic())

    @property
    def made(self) -> tuple[SummaryChunk, ...]:
        return tuple(chunk for compaction in self.own for chunk in compaction.made)

    @property
    def why(self) -> Reasons:
        """Reasons why no compaction brought the view under the trigger."""
        return self.latest.reasons if self.latest else ()

    @property
    def without_store(self) -> bool:
        return self.latest is not None and self.latest.outcome is Outcome.STORE_AWAY

    @property
    def steps(self) -> tuple[Step, ...]:
        """Steps that were looked at and made."""
        return tuple(steps_to(self.start, self.case, self.attempts, mask_put_off=self.mask_is_put_off))

    def read(self, case: Case) -> None:
        """Take over a case that the store gave."""
        self.case = case
        if self.start is None:
            self.start = case

    def attempted(self, compaction: Compaction) -> None:
        """Record the result of an attempt; one without the store says more than that the store is away."""
        if self.without_store and self.attempts:
            self.attempts.pop()
        self.attempts.append(compaction)
        self.latest = compaction

    def begin_anew(self) -> None:
        """Forget what was found while the database was away: it knows better."""
        self.case, self.latest = self.case.without_memories(), None

    def tell(self, compaction: CompactionStart) -> None:
        if not self.is_announced:
            self.is_announced = True
            self.on_start(compaction)

    def ended(self, compaction: Compaction) -> None:
        """Record a compaction of its own that came to an end."""
        self.before = self.before or self.case
        self.own.append(compaction)
        self.case = self.case.with_chunks(compaction.made)

    def asks_again(self) -> bool:
        """True if a database that did not answer may be waited for once more."""
        self.recoveries += 1
        return self.recoveries <= RECOVERIES and self.seconds_left > 0

    def give_up_asking(self) -> None:
        """Ask no more: the database is there, and would say the same again."""
        self.recoveries = RECOVERIES

    async def is_settled(self) -> bool:
        return await self.beside(lambda: self.case.is_settled)

    async def can_do_without_summary(self) -> bool:
        return await self.beside(lambda: self.case.can_do_without_summary)

    async def due_mask(self) -> Boundary | None:
        return await self.beside(lambda: due_mask(self.case))

    async def due_plan(self) -> Plan | None:
        case, summary, series = self.case, self.job.summary, self.job.series
        return await self.beside(
            lambda: plan_compaction(case.conversation, case.widest_path, case.budget, summary, series)
        )

    async def asked_plan(self, position: int | None) -> Plan | None:
        """Plan summaries of everything before the last unit, or before a position, whatever is due."""
        case, summary, series = self.case, self.job.summary, self.job.series

        def plan() -> Plan | None:
            cut = _asked_cut(case, position)
            return plan_asked(case.conversation, case.widest_path_to(cut), summary, series, cut)

        return await self.beside(plan)

    async def asked_path(self, position: int | None) -> Path:
        """Return the stored chunks up to that position."""
        case = self.case
        return await self.beside(lambda: case.widest_path_to(_asked_cut(case, position)))

    async def beside(self, step: Callable[[], T]) -> T:
        """Work something out; in a worker thread if the history is long."""
        return await self.job.beside(self.work, step)


def _asked_cut(case: Case, position: int | None) -> int:
    return last_cut(case.conversation) if position is None else cut_at(case.conversation, case.chunks, position)


async def begin(job: Job, work: Work, on_start: OnStart = nobody, *, may_go_on: bool = False) -> Progress:
    await job.beside(work, lambda: job.conversation.cut_digests)  # From here on the event loop asks for them.
    return Progress(job, work, on_start, monotonic() + job.wait_seconds, job.case(), may_go_on)
