"""Chat request as it is served: what is decided by, and everything that came with it. None of it changes afterwards."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from app.compaction.budget import Budget, Window, least_counted, output_cap
from app.compaction.fallback import TASK_BUDGET_LOWERED, THINKING_OFF, Decision, capped
from app.compaction.policy import Policy
from app.compaction.recall import quotation_for_last
from app.compaction.view import Conversation, Note, Recalled, View, covered_by, current_turn, lacks_current_thinking
from app.conversation.identity import Heads, Recognition
from app.conversation.lazy import lazy
from app.formats.format import WireFormat
from app.formats.requests import WireRequest
from app.formats.sse import EventShape
from app.http.headers import Headers
from app.providers.providers import Provider
from app.runtime.bounded import HistoryKey
from app.settings.policies import AppliedPolicy
from app.tokens.estimate import Cost, Count
from app.tokens.estimator import Prompt
from app.tokens.usage import DecisionRecord, Purpose

T = TypeVar("T")

ConversationKey = tuple[str, str]
"""(tenant, conversation id)."""
MANY_MESSAGES = 500
MANY_BYTES = 1 << 18
"""Bytes of a history above which working something out takes more than some 10 ms."""


class Measure(Struct, frozen=True, dict=True):
    """Provider of a request, and the limits of its prompt there."""

    provider: Provider
    counted_as: str
    """Model whose rules of counting hold for it."""
    formula: str
    tools: bool
    """True if the model is shown tools."""
    window: Window
    asked: int | None
    """Window that the request's headers ask for; None if they do not."""
    rules: AppliedPolicy
    budget: Budget
    quiet_tokens: int
    """Tokens of a history up to which it is over no threshold of the rules."""
    picture_scale: float
    """Factor for the tokens of pictures."""

    @lazy
    def least_counted(self) -> int:
        """Tokens of a history up to which its requests need not be counted: no summary is due for it soon."""
        return least_counted(self.budget)

    @lazy
    def decided(self) -> DecisionRecord:
        """Basis of a decision, for the ledger: all there is to say of a request that goes as it came."""
        budget, reported = self.budget, self.budget.line.to_provider_tokens
        trigger = reported(min(budget.trigger.quiet_tokens, budget.limit))
        return DecisionRecord(window=self.window.context, limit=reported(budget.limit), trigger=trigger)


class ChatRequest(Struct, frozen=True, eq=False, dict=True, kw_only=True):
    tenant: str
    conversation_id: str
    named: bool
    """True if the client gave that id; otherwise the history was recognised, or is a new one."""
    conversation: Conversation
    policy: Policy
    """Stages that its history goes through."""
    budget: Budget
    model: str
    series: str
    """Series of the summaries that it reads: those made alike, with the same focus."""
    count: Count
    """Function that counts the tokens of a text."""
    cost: Cost
    """Function that counts the tokens of a message by itself."""
    compaction: bool = True
    """True if the caller and the operator allow a compaction."""
    recalls: bool = True
    """True if the caller allows that quotations are added."""
    pins: tuple[int, ...] = ()
    """Messages that this request pins, counted after the leading instructions."""
    thinking_from: int = 0
    """Position from which on the thinking of the turn under way is sent: what stands before was refused."""
    binds_thinking: bool = False
    """True if the model was seen to refuse thinking behind another prefix."""

    request_id: str
    """Id for the ledger and the log."""
    format: WireFormat
    wire: WireRequest
    """Body, as the format reads it."""
    measure: Measure
    prompt: Prompt
    """Prompt that the conversation is counted by."""
    headers: Headers
    """Headers of the caller."""
    target: bytes
    """Path and query of the caller, with its keys."""
    is_left_alone: bool
    """True if nothing is to be done about it, as far as that is known before anything is counted."""
    recognised: Recognition
    heads: Heads
    events: EventShape
    wait_seconds: float
    """Seconds that a compaction may hold the request."""
    purpose: Purpose = "summary"
    """Purpose of its summaries."""
    epoch: int = 0
    """Epoch of the erasures when it was read."""

    @property
    def conversation_key(self) -> ConversationKey:
        return self.tenant, self.conversation_id

    @lazy
    def is_long(self) -> bool:
        """True if work on its history is done beside the event loop."""
        messages = self.conversation.transcript.messages
        return len(messages) > MANY_MESSAGES or sum(len(message.raw) for message in messages) > MANY_BYTES

    @lazy
    def size(self) -> int:
        """Bytes of its history."""
        return sum(len(message.raw) for message in self.conversation.history)

    async def beside(self, thread: Callable[[str, Callable[[], T]], Awaitable[T]], step: Callable[[], T]) -> T:
        """Work something out about the request: by `thread`, for its tenant, if its history is long."""
        return await thread(self.tenant, step) if self.is_long else step()

    @property
    def provider(self) -> Provider:
        return self.measure.provider

    @property
    def window(self) -> Window:
        return self.measure.window

    @property
    def turn(self) -> int:
        """Number of turns that have begun."""
        return len(self.conversation.transcript.turn_starts)

    def history_key(self, *scope: Hashable) -> HistoryKey:
        """Key of the history: a name may stand for many. Its digests tell whose it is. With the begin of a plan's
        range as its scope, the key by which failures of that compaction are remembered; the end moves with every turn.
        """
        return HistoryKey((self.series, *scope), self.conversation.cut_digests[1:])

    def forwarded(self, decision: Decision) -> int:
        """Estimate of what is sent, in our tokens."""
        return decision.view.tokens if decision.view else self.conversation.tokens

    def tokens(self, decision: Decision) -> tuple[int, int]:
        """Tokens of the prompt that came and of the one that is sent, as the provider counts them."""
        reported = self.budget.line.to_provider_tokens
        before = reported(self.conversation.tokens)
        return before, reported(self.forwarded(decision)) if decision.view else before

    def with_output_limits(self, decision: Decision) -> Decision:
        """Fit the limits of the answer to what is sent: the output cap where the provider adds it to the prompt and the
        window does not hold both, and the task budget, of which the provider no longer sees the omitted tokens."""
        if self._lowered_task_budget(decision) is not None and TASK_BUDGET_LOWERED not in decision.actions:
            decision = replace(decision, actions=(*decision.actions, TASK_BUDGET_LOWERED))
        if self._turns_thinking_off(decision) and THINKING_OFF not in decision.actions:
            decision = replace(decision, actions=(*decision.actions, THINKING_OFF))
        asked, budget, conversation = self.wire.answer, decision.budget or self.budget, self.conversation
        if asked.output is None or decision.output_cap is not None or not (self.compaction and self.adds_output):
            return decision
        if decision.view is None and conversation.is_within(budget.line.to_estimate(budget.window - asked.output)):
            return decision
        cap = output_cap(budget, self.forwarded(decision), asked.output, asked.thinking)
        return decision if cap is None else capped(decision, cap)

    def _turns_thinking_off(self, decision: Decision) -> bool:
        """True if the turn under way goes without thinking that its provider would demand."""
        conversation, view = self.conversation, decision.view
        goes_without = self.thinking_from > current_turn(conversation) + 1 or lacks_current_thinking(conversation, view)
        return goes_without and self.wire.thinking == "enabled"

    def _lowered_task_budget(self, decision: Decision) -> int | None:
        """Task budget in place of the client's, less the omitted tokens; None where it stays."""
        if decision.view is None or (said := self.wire.task_budget) is None:
            return None
        before, after = self.tokens(decision)
        return max(0, said - (before - after)) if after < before else None

    @property
    def adds_output(self) -> bool:
        """True if the provider is known to refuse a prompt that exceeds the window together with its output cap."""
        return bool(self.provider.adds_output.find(self.tenant, (self.format.name, self.model)))

    def recalled(self, notes: Iterable[Note | Recalled]) -> int:
        """Tokens of everything that is brought back, as the provider counts them."""
        return round(self.budget.line.ratio * sum(note.tokens for note in notes))

    def covered(self, decision: Decision) -> int:
        return covered_by(self.conversation, decision.view) if decision.view else 0

    def rendered(self, view: View) -> list[bytes]:
        payload = self.format.render(self.conversation, view, self.policy.alternates)
        return self._with_breakpoint(payload, view) or payload if view.marks_cache else payload

    def can_mark_cache(self, view: View) -> bool:
        """Whether a view's payload may get one more cache breakpoint, before what is quoted for the last message."""
        may_be_set = self.format.breakpoints.may_be_set(self.wire.source)
        return may_be_set and self._with_breakpoint(self.rendered(view), view) is not None

    def _with_breakpoint(self, payload: Sequence[bytes], view: View) -> list[bytes] | None:
        quotation = quotation_for_last(self.conversation, view)
        if quotation is None:
            return None
        return self.format.breakpoints.added(self.wire.source, payload, quotation.text)

    def payload(self, decision: Decision, *, ask_usage: bool = False) -> bytes:
        """Bytes for the provider: the client's own if nothing was changed."""
        if decision.view is None:
            body = self.wire.untouched
        else:
            body = self.wire.with_messages(self.rendered(decision.view), ask_usage)
        if self._turns_thinking_off(decision):
            body = self.wire.with_thinking_off(body)
        if (task_budget := self._lowered_task_budget(decision)) is not None:
            body = self.wire.with_task_budget(body, task_budget)
        return body if decision.output_cap is None else self.wire.with_output_cap(body, decision.output_cap)
