"""Effects that `decide` yields, each with the reply that it waits for.

What reaches the store raises `StoreAway` where that does not answer: the driver throws it into the generator.
"""

from __future__ import annotations

from msgspec import Struct

from app.core.reasons import Code, Reasons
from app.core.recall.policy import RecallPolicy
from app.core.stages.ladder import Status
from app.core.summary.flow import Flow
from app.core.summary.plan import Plan
from app.core.tokens.economy import Rates
from app.core.tokens.usage import Price
from app.core.view.chunks import SummaryChunk
from app.core.view.mask import Boundary
from app.core.view.view import View


class StoreAway(Exception):
    """The store does not answer; the same question may be answered later."""


class Read(Struct, frozen=True):
    """Read what is stored of the history. Reply: `Stored`."""


class Stored(Struct, frozen=True):
    """Rows that the store has of a conversation's history."""

    pins: tuple[int, ...] = ()
    chunks: tuple[SummaryChunk, ...] = ()
    boundaries: tuple[Boundary, ...] = ()


class KeepMask(Struct, frozen=True):
    """Store a new boundary before which results are masked. No reply."""

    boundary: Boundary


class ReadRewritten(Struct, frozen=True):
    """Read the first chunks that were made lately of histories with messages of this one. Reply: `FirstChunk`s."""


class ReadHeads(Struct, frozen=True):
    """Read which of these digests a conversation was seen with. Reply: those digests."""

    digests: tuple[bytes, ...]


class Brief(Struct, frozen=True):
    """Ask how summaries are to be made for the request, as the windows are known now. Reply: `SummaryBrief`."""


class AskPrices(Struct, frozen=True):
    """Ask what tokens cost. Reply: `Prices`."""

    summariser: str | None = None
    """Model whose price is asked for beside the request's own."""


class Prices(Struct, frozen=True):
    rates: Rates | None = None
    """Rates of the request's own model; None if they are not known."""
    summariser: Price | None = None
    reads_warm: bool = False
    """True if the summariser is the conversation's own model, whose provider has just read it."""


class LookBack(Struct, frozen=True):
    """Ask what this process knows of earlier compactions. Reply: `Lately`."""

    plan: Plan


class Lately(Struct, frozen=True):
    """Reasons for and against a planned compaction that this process knows of."""

    stopping: bool = False
    """True if the server is shutting down."""
    blocked: Code | None = None
    """Reason why the history is left alone for now."""
    paused: Reasons | None = None
    """Reasons of the last failure, if the same compaction failed too often to be tried now."""
    failed_last: bool = False
    """True if the same compaction failed when it was tried last."""


class LookAhead(Struct, frozen=True):
    """Ask whether a compaction may be left to the background. Reply: `Background`."""


class Background(Struct, frozen=True):
    comes_back: bool = False
    """True if another request is expected soon, so that a summary is worth making in the background."""
    has_room: bool = False
    """True if a compaction would find room there, or is under way."""


class ShapeRefusals(Struct, frozen=True):
    """Ask why views of this status were refused for their shape a moment ago. Reply: `Reasons`, or None."""

    status: Status


class Make(Struct, frozen=True):
    """Take the lease of a planned compaction and make it, in a task of the application. Reply: `Compaction`, which may
    not have begun, or take too long; None if somebody else has the lease."""

    plan: Plan
    flow: Flow
    known: tuple[SummaryChunk, ...]
    """Chunks that it was planned with."""
    is_again: bool
    """True if another one's compaction brought nothing of use: all who waited know it now, and one of them is to
    try."""


class Wait(Struct, frozen=True):
    """Announce somebody else's compaction, and wait for its end. Reply: False if that takes too long."""

    plan: Plan


class Postpone(Struct, frozen=True):
    """Leave a compaction to the background. Reply: chunks that it would make, where that is imagined."""

    flow: Flow


class Remember(Struct, frozen=True):
    """Find the chunks that this process has seen lately, for want of the store. Reply: `SummaryChunk`s."""


class Freed(Struct, frozen=True):
    """Note what the request's own compactions made of it. No reply."""

    before: int
    """Tokens of the widest view before the first of them."""
    after: int


class Recall(Struct, frozen=True):
    """Add quotations of what the current message is about. Reply: `View`."""

    view: View
    policy: RecallPolicy


Effect = (
    Read
    | KeepMask
    | ReadRewritten
    | ReadHeads
    | Brief
    | AskPrices
    | LookAhead
    | LookBack
    | ShapeRefusals
    | Make
    | Wait
    | Postpone
    | Remember
    | Freed
    | Recall
)
