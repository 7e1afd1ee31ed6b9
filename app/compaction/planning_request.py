"""Request: what came and what is known of it before anything is decided. None of it changes afterwards."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from msgspec import Struct

from app.compaction.budget import Budget
from app.compaction.omitted_words import OmittedWords
from app.compaction.policy import Policy
from app.compaction.user_words import SHARE
from app.compaction.view import Conversation, Note, Pins, View
from app.conversation.lazy import lazy
from app.conversation.messages import own_message
from app.tokens.estimate import Cost, Count

T = TypeVar("T")

Place = tuple[str, str]
"""(tenant, conversation id)."""
MANY_MESSAGES = 500
MANY_BYTES = 1 << 18
"""Bytes of a history above which working something out takes more than some 10 ms."""


class Request(Struct, frozen=True, eq=False, dict=True, weakref=True, kw_only=True):
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
    pinned_text: str = ""
    """Text that the operator puts after pinned messages; empty for nothing."""
    thinking_from: int = 0
    """Position from which on the thinking of the turn under way is sent: what stands before was refused."""
    binds_thinking: bool = False
    """True if the model was seen to refuse thinking behind another prefix."""

    @property
    def place(self) -> Place:
        return self.tenant, self.conversation_id

    def can_mark_cache(self, view: View) -> bool:  # noqa: ARG002 - whoever knows the body says so
        """Whether a view's payload may get one more cache breakpoint, before what is quoted for the last message."""
        return False

    @lazy
    def is_long(self) -> bool:
        """True if work on its history is done beside the event loop."""
        messages = self.conversation.transcript.messages
        return len(messages) > MANY_MESSAGES or sum(len(message.raw) for message in messages) > MANY_BYTES

    @lazy
    def size(self) -> int:
        """Bytes of its history."""
        return sum(len(message.raw) for message in self.conversation.history)

    def all_pins(self, stored: Iterable[int] = ()) -> Pins:
        """Pins of the request itself, and those stored of its conversation."""
        note = None
        if self.pinned_text:
            note = Note("pinned_text", self.pinned_text, self.cost(own_message(self.pinned_text)))
        return Pins(tuple(sorted({*self.pins, *stored})), note)

    @property
    def omitted_words(self) -> OmittedWords:
        """The user's words for stubs."""
        room = self.budget.steady_estimate(SHARE * self.budget.line.to_provider_tokens(self.budget.room))
        return OmittedWords(self.conversation, room, self.count)

    async def beside(self, thread: Callable[[str, Callable[[], T]], Awaitable[T]], step: Callable[[], T]) -> T:
        """Work something out about the request: by `thread`, for its tenant, if its history is long."""
        return await thread(self.tenant, step) if self.is_long else step()
