"""Chat request: the conversation with its settings and limits, and the client's request. Immutable."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from app.compaction.budget import Budget, Window, least_counted, output_cap
from app.compaction.decision import TASK_BUDGET_LOWERED, THINKING_OFF, UNTOUCHED, Decision, capped, floor_exceeded
from app.compaction.policy import Policy
from app.compaction.recall import quotation_for_last
from app.compaction.view import Conversation, Note, Recalled, View, current_turn, lacks_current_thinking
from app.conversation.identity import Heads, Recognition
from app.conversation.lazy import lazy
from app.conversation.reasons import Code, because
from app.formats.format import WireFormat
from app.formats.requests import WireRequest
from app.formats.sse import EventShape
from app.http.headers import Headers
from app.providers.providers import Provider
from app.runtime.bounded import HistoryKey
from app.settings.compaction import AppliedPolicy
from app.tokens.estimate import Cost, Count
from app.tokens.estimator import Prompt
from app.tokens.usage import DecisionRecord, Purpose

T = TypeVar("T")

ConversationKey = tuple[str, str]
"""(tenant, conversation id)."""
MANY_MESSAGES = 500
MANY_BYTES = 1 << 18
"""Bytes of a history above which a computation may take more than about 10 ms."""


class Measure(Struct, frozen=True, dict=True):
    """Provider of a request, and the prompt limits there."""

    provider: Provider
    counted_as: str
    """Model whose token counting rules apply."""
    formula: str
    tools: bool
    window: Window
    asked: int | None
    """Window that the request's headers ask for; None without one."""
    rules: AppliedPolicy
    budget: Budget
    picture_scale: float
    """Factor for the tokens of images."""

    @lazy
    def least_counted(self) -> int:
        """Return the size of a history, in tokens, up to which its requests need no exact count, as no summary is due
        soon."""
        return least_counted(self.budget)

    @lazy
    def decided(self) -> DecisionRecord:
        """Return the limits for the ledger; nothing more is recorded for an unchanged request."""
        budget, reported = self.budget, self.budget.line.to_provider_tokens
        trigger = reported(min(budget.trigger.quiet_tokens, budget.limit))
        return DecisionRecord(window=self.window.context, limit=reported(budget.limit), trigger=trigger)


class ChatRequest(Struct, frozen=True, eq=False, dict=True, kw_only=True):
    tenant: str
    conversation_id: str
    named: bool
    """True if the client gave the id; otherwise the history was recognised or is new."""
    conversation: Conversation
    policy: Policy
    budget: Budget
    model: str
    series: str
    """Series of usable summaries: those made with the same settings and focus."""
    count: Count
    cost: Cost
    """Function that counts the tokens of a single message."""
    may_compact: bool = True
    """True if the client and the operator allow a compaction."""
    recalls: bool = True
    """True if the client allows quotations."""
    pins: tuple[int, ...] = ()
    """Positions of pinned messages, counted after the leading instructions."""
    thinking_from: int = 0
    """Position from which the current turn's thinking is sent; the provider refused earlier thinking."""
    binds_thinking: bool = False
    """True if the model has refused thinking after a changed prefix."""

    request_id: str
    format: WireFormat
    wire: WireRequest
    """Body, parsed by the format."""
    measure: Measure
    prompt: Prompt
    """Prompt whose tokens are counted."""
    headers: Headers
    target: bytes
    """Path and query of the client, which may hold its keys."""
    recognised: Recognition
    heads: Heads
    events: EventShape
    wait_seconds: float
    purpose: Purpose = "summary"
    epoch: int = 0
    """Epoch of erasures when the request was read."""

    @property
    def conversation_key(self) -> ConversationKey:
        return self.tenant, self.conversation_id

    @lazy
    def is_long(self) -> bool:
        """Return whether work on the history has to run outside the event loop."""
        messages = self.conversation.transcript.messages
        return len(messages) > MANY_MESSAGES or sum(len(message.raw) for message in messages) > MANY_BYTES

    @lazy
    def size(self) -> int:
        return sum(len(message.raw) for message in self.conversation.history)

    async def beside(self, thread: Callable[[str, Callable[[], T]], Awaitable[T]], step: Callable[[], T]) -> T:
        """Run `step`; through `thread` if the history is long."""
        return await thread(self.tenant, step) if self.is_long else step()

    @property
    def provider(self) -> Provider:
        return self.measure.provider

    @property
    def window(self) -> Window:
        return self.measure.window

    @property
    def turn(self) -> int:
        """Return the number of turns begun."""
        return len(self.conversation.transcript.turn_starts)

    def history_key(self, *scope: Hashable) -> HistoryKey:
        """Return the key of the history: its digests, as one conversation id may have several histories.

        With the start of a plan's range as `scope`, it is the key for failures of that compaction; the range's end
        changes with every turn.
        """
        return HistoryKey((self.series, *scope), self.conversation.cut_digests[1:])

    def decide_early(self) -> Decision | None:
        """Return the decision if it needs neither the store nor a summary; else None."""
        conversation, budget = self.conversation, self.budget
        if self.policy.leaves_alone(conversation, budget):
            return UNTOUCHED
        if conversation.floor >= budget.limit:
            return Decision(None, why=floor_exceeded(conversation, budget, self.model))
        return None if self.may_compact else Decision(None, why=because(Code.COMPACTION_OFF))

    def forwarded(self, decision: Decision) -> int:
        """Return the estimated tokens of the payload."""
        return decision.view.tokens if decision.view else self.conversation.tokens

    def tokens(self, decision: Decision) -> tuple[int, int]:
        """Return the tokens of the client's prompt and of the sent one, as the provider counts them."""
        reported = self.budget.line.to_provider_tokens
        before = reported(self.conversation.tokens)
        return before, reported(self.forwarded(decision)) if decision.view else before

    def with_output_limits(self, decision: Decision) -> Decision:
        """Adapt the output cap and the task budget to the payload. The cap changes if the provider adds it to the
        prompt and both exceed the window; the task budget, because the provider does not see the omitted tokens."""
        if self._lowered_task_budget(decision) is not None and TASK_BUDGET_LOWERED not in decision.actions:
            decision = replace(decision, actions=(*decision.actions, TASK_BUDGET_LOWERED))
        if self._turns_thinking_off(decision) and THINKING_OFF not in decision.actions:
            decision = replace(decision, actions=(*decision.actions, THINKING_OFF))
        asked, budget, conversation = self.wire.answer, decision.budget or self.budget, self.conversation
        if asked.output is None or decision.output_cap is not None or not (self.may_compact and self.adds_output):
            return decision
        if decision.view is None and conversation.is_within(budget.line.to_estimate(budget.window - asked.output)):
            return decision
        cap = output_cap(budget, self.forwarded(decision), asked.output, asked.thinking)
        return decision if cap is None else capped(decision, cap)

    def _turns_thinking_off(self, decision: Decision) -> bool:
        """Return whether the current turn lacks thinking that its provider demands."""
        conversation, view = self.conversation, decision.view
        goes_without = self.thinking_from > current_turn(conversation) + 1 or lacks_current_thinking(conversation, view)
        return goes_without and self.wire.thinking == "enabled"

    def _lowered_task_budget(self, decision: Decision) -> int | None:
        """Return the client's task budget less the omitted tokens; None if it does not change."""
        if decision.view is None or (said := self.wire.task_budget) is None:
            return None
        before, after = self.tokens(decision)
        return max(0, said - (before - after)) if after < before else None

    @property
    def adds_output(self) -> bool:
        """Return whether the provider is known to refuse a prompt that exceeds the window together with its output
        cap."""
        return bool(self.provider.adds_output.find(self.tenant, (self.format.name, self.model)))

    def recalled(self, notes: Iterable[Note | Recalled]) -> int:
        """Return the tokens of recalled text, as the provider counts them."""
        return round(self.budget.line.ratio * sum(note.tokens for note in notes))

    def rendered(self, view: View) -> list[bytes]:
        payload = self.format.render(self.conversation, view, self.policy.alternates)
        return self._with_breakpoint(payload, view) or payload if view.marks_cache else payload

    def can_mark_cache(self, view: View) -> bool:
        """Return whether a view's payload may get another cache breakpoint before the quotations for the last
        message."""
        may_be_set = self.format.breakpoints.may_be_set(self.wire.source)
        return may_be_set and self._with_breakpoint(self.rendered(view), view) is not None

    def _with_breakpoint(self, payload: Sequence[bytes], view: View) -> list[bytes] | None:
        quotation = quotation_for_last(self.conversation, view)
        if quotation is None:
            return None
        return self.format.breakpoints.added(self.wire.source, payload, quotation.text)

    def payload(self, decision: Decision, *, ask_usage: bool = False) -> bytes:
        """Return the bytes for the provider: the client's own if nothing was changed."""
        if decision.view is None:
            body = self.wire.untouched
        else:
            body = self.wire.with_messages(self.rendered(decision.view), ask_usage)
        if self._turns_thinking_off(decision):
            body = self.wire.with_thinking_off(body)
        if (task_budget := self._lowered_task_budget(decision)) is not None:
            body = self.wire.with_task_budget(body, task_budget)
        return body if decision.output_cap is None else self.wire.with_output_cap(body, decision.output_cap)
