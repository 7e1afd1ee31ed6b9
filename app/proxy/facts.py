"""Facts of a chat request that are known before anything is done about it. None of them changes afterwards."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from app.compaction.job import Job
from app.core.history.recognition import Recognition
from app.core.limits.budget import Window
from app.core.stages.ladder import Decision
from app.core.view.view import Note, Recalled
from app.providers.providers import Provider
from app.proxy.conversations import Heads
from app.proxy.measuring import Measure
from app.wire.early import EventShape
from app.wire.format import WireFormat
from app.wire.types import WireRequest


class Facts(Struct, frozen=True):
    format: WireFormat
    request: WireRequest
    measure: Measure
    job: Job
    """Job to decide upon."""
    is_left_alone: bool
    """True if nothing is to be done about it, as far as that is known before anything is counted."""
    recognised: Recognition
    heads: Heads
    events: EventShape
    referred: tuple[str, ...] = ()
    """Ids of the summaries that its history begins with, in place of a reference."""

    @property
    def provider(self) -> Provider:
        return self.measure.provider

    @property
    def window(self) -> Window:
        return self.measure.window

    def forwarded(self, decision: Decision) -> int:
        """Estimate of what is sent, in our tokens."""
        return decision.view.tokens if decision.view else self.job.conversation.tokens

    def tokens(self, decision: Decision) -> tuple[int, int]:
        """Tokens of the prompt that came and of the one that is sent, as the provider counts them."""
        reported = self.job.budget.line.reported
        before = reported(self.job.conversation.tokens)
        return before, reported(decision.view.tokens) if decision.view else before

    def recalled(self, notes: Iterable[Note | Recalled]) -> int:
        """Tokens of everything that is brought back, as the provider counts them."""
        return round(self.job.budget.line.ratio * sum(note.tokens for note in notes))

    def payload(self, decision: Decision, *, ask_usage: bool = False) -> bytes:
        """Bytes for the provider: the client's own if nothing was changed."""
        if decision.view is None:
            return self.request.untouched
        alternate = self.provider.settings.alternating_roles
        messages = self.format.render(self.job.conversation, decision.view, alternate)
        return self.request.with_messages(messages, ask_usage)
