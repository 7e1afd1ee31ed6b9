"""Chat request: the parsed request of a client, with its conversation, settings and limits."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from app.compaction.budget import REMEMBERED_SHARE, Budget, Window, background_threshold, output_cap
from app.compaction.decision import THINKING_OFF, UNTOUCHED, Decision, capped, floor_exceeded
from app.compaction.planning_state import Policy
from app.compaction.recall import quotation_for_last
from app.compaction.view import Conversation, Note, View, current_turn, lacks_current_thinking
from app.conversation.identity import Heads, Recognition
from app.conversation.messages import lazy
from app.conversation.reasons import Code, because
from app.formats.compaction_events import EventShape
from app.formats.format import WireFormat
from app.formats.requests import WireRequest
from app.http.headers import Headers
from app.providers.providers import Provider
from app.runtime.caches import HistoryKey
from app.settings.compaction import AppliedPolicy
from app.tokens.costs import DecisionRecord, Purpose
from app.tokens.estimate import Cost, Count
from app.tokens.estimator import Prompt

T = TypeVar("T")

ConversationKey = tuple[str, str]
"""Tenant and id of a conversation."""
MANY_MESSAGES = 500
MANY_BYTES = 1 << 18
"""Bytes of a history above which a step over all messages may take more than about 10 ms."""


class Measure(Struct, frozen=True):
    """Provider of a request, and the limits of the prompt at that provider."""

    provider: Provider
    counted_as: str
    """Model whose rules for counting tokens apply."""
    formula: str
    tools: bool
    window: Window
    asked: int | None
    """Window in tokens for which a request header asks; None without such a header."""
    rules: AppliedPolicy
    budget: Budget
    picture_scale: float
    """Factor for the estimated tokens of images."""

    @property
    def least_counted(self) -> int:
        """Return the maximum tokens of a history that needs no exact count, because no summary is due soon."""
        return int(REMEMBERED_SHARE * background_threshold(self.budget))

    @property
    def decided(self) -> DecisionRecord:
        """Return the limits that the ledger stores for an unchanged request."""
        budget, reported = self.budget, self.budget.line.to_provider_tokens
        trigger = reported(min(budget.trigger.quiet_tokens, budget.limit))
        return DecisionRecord(window=self.window.context, limit=reported(budget.limit), trigger=trigger)


class ChatRequest(Struct, frozen=True, eq=False, dict=True, kw_only=True):
    tenant: str
    conversation_id: str
    named: bool
    """True if the client named the conversation. False if Steno recognised the history, or the history is new."""
    conversation: Conversation
    policy: Policy
    budget: Budget
    model: str
    series: str
    """Strategy, and a digest of the focus if there is one. The request uses only summaries of this series."""
    count: Count
    cost: Cost
    """Function that counts the tokens of a single message."""
    may_compact: bool = True
    """True if the client and the operator allow a compaction."""
    recalls: bool = True
    """True if the client allows quotations from omitted messages."""
    pins: tuple[int, ...] = ()
    """Positions of pinned messages, counted after the leading instructions."""
    thinking_from: int = 0
    """Position before which the current turn's thinking is omitted, because the provider refused it."""

    request_id: str
    format: WireFormat
    wire: WireRequest
    """Parsed body."""
    measure: Measure
    prompt: Prompt
    """Input for counting tokens."""
    headers: Headers
    target: bytes
    """Path and query of the client's request, which may hold API keys."""
    recognised: Recognition
    heads: Heads
    events: EventShape
    wait_seconds: float
    purpose: Purpose = "summary"
    epoch: int = 0
    """Value of the store's erasure counter when the request was read."""

    @property
    def conversation_key(self) -> ConversationKey:
        return self.tenant, self.conversation_id

    @lazy
    def is_long(self) -> bool:
        """Return whether steps over the whole history must run outside the event loop."""
        messages = self.conversation.transcript.messages
        return len(messages) > MANY_MESSAGES or sum(len(message.raw) for message in messages) > MANY_BYTES

    @lazy
    def size(self) -> int:
        return sum(len(message.raw) for message in self.conversation.history)

    async def beside(self, thread: Callable[[str, Callable[[], T]], Awaitable[T]], step: Callable[[], T]) -> T:
        """Run `step`. If the history is long, `thread` runs it in a worker thread."""
        return await thread(self.tenant, step) if self.is_long else step()

    @property
    def provider(self) -> Provider:
        return self.measure.provider

    @property
    def window(self) -> Window:
        return self.measure.window

    @property
    def turn(self) -> int:
        """Return the number of the current turn, from 1; 0 without a turn."""
        return len(self.conversation.transcript.messages.turn_starts)

    def history_key(self, *scope: Hashable) -> HistoryKey:
        """Return the key of the history. The key has digests, because a conversation may have several histories.

        With the start of a compaction's range as `scope`, the key identifies the failures of this compaction. The
        range's end is not in the key, because the end changes with every turn.
        """
        return HistoryKey((self.series, *scope), self.conversation.cut_digests[1:])

    def decide_early(self) -> Decision | None:
        """Return the decision if it needs neither the store nor a summary; otherwise None."""
        conversation, budget = self.conversation, self.budget
        if self.policy.leaves_alone(conversation, budget):
            return UNTOUCHED
        if conversation.floor >= budget.limit:
            return Decision(None, why=floor_exceeded(conversation, budget, self.model))
        return None if self.may_compact else Decision(None, why=because(Code.COMPACTION_OFF))

    def forwarded(self, decision: Decision) -> int:
        """Return the estimated tokens of the payload."""
        return decision.view.tokens if decision.view else self.conversation.tokens

    @lazy
    def received_tokens(self) -> int:
        """Return the tokens of the client's prompt, as the provider counts them."""
        return self.budget.line.to_provider_tokens(self.conversation.tokens)

    def tokens(self, decision: Decision) -> tuple[int, int]:
        """Return the tokens of the client's prompt and of the payload, as the provider counts them."""
        before, view = self.received_tokens, decision.view
        return before, self.budget.line.to_provider_tokens(view.tokens) if view else before

    def with_output_limits(self, decision: Decision) -> Decision:
        """Return the decision with the output cap and the actions that suit its payload. Lower the output cap if
        `adds_output` is true, and prompt and output cap together exceed the window."""
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
        """Return whether thinking must be off, because the payload lacks thinking of the current turn."""
        if self.wire.thinking != "enabled":
            return False
        conversation, view = self.conversation, decision.view
        return self.thinking_from > current_turn(conversation) + 1 or lacks_current_thinking(conversation, view)

    @property
    def adds_output(self) -> bool:
        """Return whether the provider has refused a prompt because prompt and output cap together were too large."""
        return bool(self.provider.adds_output.find(self.tenant, (self.format.name, self.model)))

    def recalled(self, notes: Iterable[Note]) -> int:
        """Return the tokens of recalled text, as the provider counts them."""
        return round(self.budget.line.ratio * sum(note.tokens for note in notes))

    def rendered(self, view: View) -> list[bytes]:
        payload = self.format.render(self.conversation, view, self.policy.alternates)
        return self._with_breakpoint(payload, view) or payload if view.marks_cache else payload

    def can_mark_cache(self, view: View) -> bool:
        """Return whether Steno may add a cache breakpoint before the quotations for the last user message."""
        may_be_set = self.format.breakpoints.may_be_set(self.wire.source)
        return may_be_set and self._with_breakpoint(self.rendered(view), view) is not None

    def _with_breakpoint(self, payload: Sequence[bytes], view: View) -> list[bytes] | None:
        quotation = quotation_for_last(self.conversation, view)
        if quotation is None:
            return None
        return self.format.breakpoints.added(self.wire.source, payload, quotation.text)

    def payload(self, decision: Decision, *, ask_usage: bool = False) -> bytes:
        """Return the body for the provider: the client's own bytes if nothing is changed."""
        if decision.view is None:
            body = self.wire.untouched
        else:
            body = self.wire.with_messages(self.rendered(decision.view), ask_usage)
        if self._turns_thinking_off(decision):
            body = self.wire.with_thinking_off(body)
        return body if decision.output_cap is None else self.wire.with_output_cap(body, decision.output_cap)
