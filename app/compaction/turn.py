"""A turn: one request on its way through the compactor, and what it has learnt so far."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from time import monotonic

from app.compaction.summariser import Route
from app.core.history.messages import own_message
from app.core.limits.budget import Budget
from app.core.stages.ladder import Case, Decision, can_do_without_summary, fits_shortened, settle
from app.core.stages.policy import Policy
from app.core.summary.plan import Plan, SummarySettings, plan_compaction, plan_mask
from app.core.tokens.estimate import Cost, Count
from app.core.view.chunks import SummaryChunk
from app.core.view.mask import Boundary, Masks
from app.core.view.view import Conversation, Masking, Note, Pins, View
from app.memory.lineages import Lineage

MANY_MESSAGES = 500
MANY_BYTES = 1 << 18
"""What is worked out about a longer history takes more than some 10 ms."""


@dataclass(frozen=True, slots=True)
class Job:
    """One request, ready to be decided upon."""

    tenant: str
    conversation_id: str
    named: bool
    """Whether the client gave that id; otherwise the history was recognised, or is a new one."""
    conversation: Conversation
    budget: Budget
    count: Count
    cost: Cost
    model: str
    series: str
    """Whose summaries it reads: those made alike, with the same focus."""
    summary: SummarySettings
    routes: tuple[Route, ...]
    """Who may write its summaries, the first choice first."""
    compaction: bool
    """Whether the caller and the operator allow it."""
    policy: Policy
    """Which stages it goes through."""
    shown: Callable[[View], tuple[bytes, ...]]
    """The messages of a view as they go upstream, for a summariser that reads the conversation itself."""
    declared: Mapping[str, bytes]
    """The request's members beside the messages that such a call has to repeat."""
    pins: tuple[int, ...]
    """The messages that this request pins, counted after the leading instructions."""
    pinned_text: str
    """What the operator puts after them; empty for nothing."""
    wait_seconds: float
    request_id: str
    """For the ledger and the log."""

    @property
    def is_long(self) -> bool:
        """Whether what is worked out about it is worked out beside the event loop."""
        messages = self.conversation.transcript.messages
        return len(messages) > MANY_MESSAGES or sum(len(message.raw) for message in messages) > MANY_BYTES

    @property
    def place(self) -> tuple[str, str]:
        """Whose conversation it is, and which."""
        return self.tenant, self.conversation_id

    def history(self, *scope: Hashable) -> Lineage:
        """By what it holds: a name may stand for many. Its digests tell whose it is."""
        return Lineage((self.series, *scope), self.conversation.cut_digests[1:])


@dataclass(frozen=True, slots=True)
class Started:
    """A compaction the client is told of."""

    id: str
    messages: int


OnStart = Callable[[Started], None]


def nobody(_: Started) -> None:
    """For callers who need not be told."""


@dataclass(slots=True)
class Turn:
    """One request on its way down the line, and what it has learnt so far."""

    job: Job
    on_start: OnStart
    deadline: float
    """By the monotonic clock, in seconds."""
    chunks: dict[str, SummaryChunk] = field(default_factory=dict)
    boundaries: tuple[Boundary, ...] = ()
    masks: Masks | None = None
    made: tuple[SummaryChunk, ...] = ()
    before: int = 0
    """Tokens of the view before the first compaction."""
    told: bool = False
    waited: bool = False
    """For somebody else's compaction."""
    begun: int = 0
    """Compactions of its own."""
    outcome: str | None = None
    """Why the last of them failed."""
    reason: str | None = None
    without_store: bool = False
    recoveries: int = 0

    @property
    def case(self) -> Case:
        job = self.job
        masking = Masking(self.masks, self.boundaries) if self.masks else None
        return Case(job.conversation, job.policy, job.budget, job.cost, self.chunks.values(), masking)

    @property
    def is_settled(self) -> bool:
        """Whether no new summary is needed, or none could help."""
        case = self.case
        return not case.policy.summarises or case.least_view() is not None or fits_shortened(case)

    @property
    def can_do_without(self) -> bool:
        """Whether something can be sent without a summary and without a loss; otherwise there is nothing to lose."""
        return can_do_without_summary(self.case)

    @property
    def seconds_left(self) -> float:
        return max(0.0, self.deadline - monotonic())

    def forget(self) -> None:
        """What was remembered while the database was away: it knows better."""
        self.chunks.clear()
        self.boundaries, self.reason = (), None

    def learn(self, chunks: Iterable[SummaryChunk]) -> None:
        self.chunks |= {chunk.id: chunk for chunk in chunks}

    def learn_masks(self, boundaries: Iterable[Boundary]) -> None:
        self.boundaries = tuple(sorted({*self.boundaries, *boundaries}))

    def pin(self, positions: Iterable[int]) -> None:
        """Before anything is masked or viewed: what is pinned is not to be masked."""
        job, conversation = self.job, self.job.conversation
        note = None
        if job.pinned_text:
            note = Note("pinned_text", job.pinned_text, job.cost(own_message(job.pinned_text)))
        conversation.pin(Pins(tuple(sorted({*job.pins, *positions})), note))
        if (mask := job.policy.mask) is not None:
            self.masks = Masks(conversation.transcript, mask, job.cost, conversation.untouchable)

    def plan_mask(self) -> Boundary | None:
        """The boundary that is due, or None."""
        case = self.case
        if case.masking is None or case.policy.mask is None:
            return None
        if case.policy.mask.pressure is None and (not case.policy.summarises or case.least_view() is not None):
            return None
        return plan_mask(case.conversation, case.chunks, case.budget, case.masking, case.policy.mask)

    def plan(self) -> Plan | None:
        job = self.job
        plan = plan_compaction(job.conversation, self.chunks.values(), job.budget, job.summary, job.series)
        self.reason = None if plan else "nothing_to_summarise"
        return plan

    def tell(self, started: Started) -> None:
        """The client is told once, of the first compaction."""
        if not self.told:
            self.told = True
            self.on_start(started)

    def settle(self) -> Decision:
        return settle(self.case, self.reason, in_vain=self.told and not self.made)


def begin(job: Job, on_start: OnStart = nobody) -> Turn:
    turn = Turn(job, on_start, monotonic() + job.wait_seconds)
    turn.pin(())
    return turn
