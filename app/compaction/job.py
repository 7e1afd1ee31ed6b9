"""Job: one request that is to be decided upon, as it came. Facts that are learnt on the way are in its progress."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

from msgspec import Struct

from app.compaction.summariser import Route
from app.compaction.writing import Writing
from app.core.history.messages import own_message
from app.core.lazy import lazy
from app.core.limits.budget import Budget
from app.core.stages.case import Case, case_of
from app.core.stages.policy import Policy
from app.core.summary.brief import SummaryBrief
from app.core.summary.compaction import compact
from app.core.summary.flow import Flow
from app.core.summary.plan import Plan
from app.core.tokens.estimate import Cost, Count
from app.core.tokens.usage import Purpose
from app.core.view.view import Conversation, Note, Pins
from app.runtime.lineages import Lineage
from app.runtime.threads import Work
from app.tokens.estimator import Prompt

T = TypeVar("T")

Place = tuple[str, str]
"""(tenant, conversation id)."""
MANY_MESSAGES = 500
MANY_BYTES = 1 << 18
"""Bytes of a history above which working something out takes more than some 10 ms."""


class Job(Struct, frozen=True, eq=False, dict=True, weakref=True):
    tenant: str
    conversation_id: str
    named: bool
    """True if the client gave that id; otherwise the history was recognised, or is a new one."""
    conversation: Conversation
    budget: Budget
    prompt: Prompt
    """Prompt that the conversation is counted by."""
    model: str
    series: str
    """Series of the summaries that it reads: those made alike, with the same focus."""
    begin_writing: Callable[[], Writing]
    compaction: bool
    """True if the caller and the operator allow a compaction."""
    recalls: bool
    """True if the caller allows that quotations are added."""
    policy: Policy
    """Stages that it goes through."""
    pins: tuple[int, ...]
    """Messages that this request pins, counted after the leading instructions."""
    wait_seconds: float
    request_id: str
    """Id for the ledger and the log."""
    ties: bool = False
    """True if its answer may hold thoughts that are tied to what is sent."""
    purpose: Purpose = "summary"
    """Purpose of its summaries."""

    @property
    def count(self) -> Count:
        """Tokens of a text."""
        return self.prompt.count

    @property
    def cost(self) -> Cost:
        """Tokens of a message by itself."""
        return self.prompt.cost

    @lazy
    def writing(self) -> Writing:
        """Route and prompts of its summaries."""
        return self.begin_writing()

    @lazy
    def summary(self) -> SummaryBrief:
        """Brief of its summaries, as the windows are known when one is due first. Not in a thread: they are the
        event loop's."""
        return self.writing.settings(self.budget)

    @lazy
    def routes(self) -> tuple[Route, ...]:
        """Summarisers to ask, the first choice first. Not in a thread, either: see `summary`."""
        return self.writing.routes()

    @lazy
    def is_long(self) -> bool:
        """True if work on it is done beside the event loop."""
        messages = self.conversation.transcript.messages
        return len(messages) > MANY_MESSAGES or sum(len(message.raw) for message in messages) > MANY_BYTES

    @lazy
    def size(self) -> int:
        """Bytes of its history."""
        return sum(len(message.raw) for message in self.conversation.history)

    async def beside(self, work: Work, step: Callable[[], T]) -> T:
        """Work something out about the request; in a worker thread if its history is long."""
        return await work.do(self.tenant, step) if self.is_long else step()

    @property
    def place(self) -> Place:
        return self.tenant, self.conversation_id

    def history(self, *scope: Hashable) -> Lineage:
        """Lineage of the history: a name may stand for many. Its digests tell whose it is."""
        return Lineage((self.series, *scope), self.conversation.cut_digests[1:])

    def undertaking(self, plan: Plan) -> Lineage:
        """Lineage of a compaction, which fails or succeeds. The end of the range is no part of it: that moves with
        every turn, and the failure with it."""
        return self.history(plan.range.from_digest)

    def case(self) -> Case:
        """Case before anything is looked up."""
        return case_of(self.conversation, self.policy, self.budget, self.cost, self.pinned())

    def pinned(self, stored: Iterable[int] = ()) -> Pins:
        """Pins of the request itself, and those stored of its conversation."""
        note = None
        if text := self.writing.pinned_text:
            note = Note("pinned_text", text, self.cost(own_message(text)))
        return Pins(tuple(sorted({*self.pins, *stored})), note)

    def flow(self, case: Case, plan: Plan) -> Flow:
        return compact(case.conversation, self.conversation_id, plan, self.budget, self.summary, self.count)


class CompactionStart(Struct, frozen=True):
    """A compaction that is announced to the client."""

    id: str
    messages: int

    @classmethod
    def by(cls, plan: Plan) -> CompactionStart:
        return cls(f"cmp_{plan.range.through_digest.hex()[:24]}", plan.messages)


OnStart = Callable[[CompactionStart], None]


def nobody(_: CompactionStart) -> None:
    """Ignore the start, for callers who need not know."""
