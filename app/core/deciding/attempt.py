"""Attempt: everything that changes while it is decided what is sent for a request."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from msgspec import Struct

from app.core.deciding.request import Request
from app.core.reasons import Reasons
from app.core.stages.case import Case, case_of
from app.core.stages.ladder import Decision
from app.core.stages.steps import Step
from app.core.summary.brief import SummaryBrief
from app.core.summary.flow import Compaction, Outcome
from app.core.summary.plan import Plan
from app.core.view.chunks import SummaryChunk
from app.core.view.mask import Boundary


class Answer(Struct, frozen=True):
    """Decide what is sent to be answered: what is due is made."""

    may_go_on: bool = False
    """True if it need not wait for a summary without which it can be sent, if that is made after its answer."""


class Imagine(Struct, frozen=True):
    """Decide as a dry run, which makes and keeps nothing."""

    summaries: bool
    """True if due summaries are imagined; otherwise only what is stored is used."""


class Recover(Struct, frozen=True):
    """Decide again after a refusal for the size, with a corrected budget: without a summary where that reaches it, and
    with nothing recalled."""


class StepDown(Struct, frozen=True):
    """Decide again after a refusal of a view's shape: one step lower; the refused decision if nothing is better."""

    refused: Decision
    said: str
    """Words of the provider."""


class MergeRoles(Struct, frozen=True):
    """Decide again after a refusal of two messages of one role in a row: the same view, as such a provider takes it;
    one step lower where that cannot be."""

    refused: Decision
    said: str
    """Words of the provider."""


class Compact(Struct, frozen=True):
    """Summarise because a client asked, whatever that frees."""

    position: int
    """Message before which the summaries end."""


class Ahead(Struct, frozen=True):
    """Make what will be due for requests to come. It waits for nobody else's, and what failed is not tried again before
    a request that needs it has."""

    target: int
    """Tokens that a mask has to reach then."""


Mode = Answer | Imagine | Recover | StepDown | MergeRoles | Compact | Ahead


class CompactionStart(Struct, frozen=True):
    """A compaction that is announced to the client."""

    id: str
    messages: int

    @classmethod
    def by(cls, plan: Plan) -> CompactionStart:
        return cls(f"cmp_{plan.range.through_digest.hex()[:24]}", plan.messages)


@dataclass(slots=True, eq=False)
class Attempt:
    request: Request
    mode: Mode
    brief: SummaryBrief | None = None
    """How summaries are to be made; None before that was needed."""
    before: Case | None = None
    """Case before the first compaction of its own."""
    own: list[Compaction] = field(default_factory=list)
    """Compactions of its own that came to an end in time."""
    latest: Compaction | None = None
    """Result of the latest compaction that was due; None before any was."""
    announced: CompactionStart | None = None
    """Compaction that was announced to the client: the first one alone is."""
    has_waited: bool = False
    """True once this request has waited for another request's compaction."""
    start: Case | None = None
    """Case as the store said first; None if it did not answer."""
    tried: list[Compaction] = field(default_factory=list)
    """Results of everything that was due, in order."""
    postponed: tuple[SummaryChunk, ...] = ()
    """Chunks that the background would make, in a dry run."""
    mask_is_put_off: bool = False
    """True if a mask was due that would have cost more than it saves."""

    _case: Case | None = None

    @property
    def case(self) -> Case:
        """Case by what is known so far; it begins before anything is looked up."""
        if self._case is None:
            request = self.request
            conversation = request.conversation
            _ = conversation.cut_digests  # From here on the event loop asks for them.
            pins, rules = request.all_pins(), request.rules_left_out
            self._case = case_of(conversation, request.policy, request.budget, request.cost, pins, rules)
        return self._case

    @case.setter
    def case(self, case: Case) -> None:
        self._case = case

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
        return tuple(self._steps())

    def read(self, pins: Iterable[int], chunks: Iterable[SummaryChunk], boundaries: Iterable[Boundary]) -> None:
        """Take over what the store says."""
        pinned = self.case.with_pins(self.request.all_pins(pins))
        self.case = pinned.with_chunks(chunks).with_boundaries(boundaries)
        if self.start is None:
            self.start = self.case

    def came_to(self, compaction: Compaction) -> None:
        """Record the result of what was due."""
        self.tried.append(compaction)
        self.latest = compaction

    def ended(self, compaction: Compaction) -> None:
        """Record a compaction of its own, if it came to an end."""
        if compaction.outcome in (Outcome.NOT_BEGUN, Outcome.TAKES_TOO_LONG, Outcome.AWAITED):
            return
        self.before = self.before or self.case
        self.own.append(compaction)
        self.case = self.case.with_chunks(compaction.made)

    def _steps(self) -> Iterator[Step]:
        if (start := self.start) is not None:
            least = start.least_view
            view = least or start.widest_view
            yield Step("stored", "fits" if least else "too_large", view.tokens, len(view.chunks))
            if set(self.case.boundaries) - set(start.boundaries):
                yield Step("mask", "set")
        if self.mask_is_put_off:
            yield Step("mask", "put_off")
        for compaction in self.tried:
            tokens = sum(chunk.tokens for chunk in compaction.made) if compaction.made else None
            name = compaction.outcome.name.lower()
            yield Step("summarise", name, tokens, len(compaction.made), compaction.reasons)
