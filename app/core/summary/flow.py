"""Flows: a compaction as a generator of effects, which streaming, plain and dry runs drive alike.

Theory: the generator alone decides what is to be done, in which order, and what next when something fails; and it does
nothing itself. It yields an effect (`Summarise` this, `StoreChunk` that) and stands still until it is sent the reply,
so it needs neither a clock nor a network nor a lock, and a test plays all of them with a list. A failure is a reply
like any other. Whoever has a flow drives it with `drive` or `drive_async` and brings a function that performs one
effect: the loop stands here, once for each kind of caller. What may be done side by side is one effect as well,
`Together`, with flows of its own: whether they are, and how many at once, is the performer's choice. A flow returns
what came of it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Mapping
from enum import Enum, auto
from functools import partial
from typing import Any, Generic, TypeVar

from msgspec import Struct

from app.core.reasons import Code, Reasons, because
from app.core.summary.gate import SummaryAnswer
from app.core.summary.prompts import SummaryRequest
from app.core.view.chunks import SummaryChunk

E = TypeVar("E")
R = TypeVar("R")


class Announce(Struct, frozen=True):
    """Tell the client that a summary is about to be made. No reply."""

    messages: int
    """How many messages it will stand for; 0 if chunks are only folded."""


class Summarise(Struct, frozen=True):
    """Ask the summariser. Reply: `SummaryAnswer` or `Failure`."""

    request: SummaryRequest
    values: tuple[str, ...] = ()
    """Exact values that will stand beside the answer: how many of them it holds itself is measured."""
    replaces: int = 0
    """Tokens of what the answer is to stand for."""


class StoreChunk(Struct, frozen=True):
    """Keep this chunk. Reply: the chunk as stored, or None if the right to store it was lost."""

    chunk: SummaryChunk


class Together(Struct, frozen=True):
    """Work that may be done side by side. Reply: what came of each, in order."""

    flows: tuple[Flow, ...]


class Outcome(Enum):
    """Result of an attempt at a compaction."""

    MADE = auto()
    """All that was planned."""
    FAILED = auto()
    LEASE_LOST = auto()
    """Another holder took the lease while the compaction was made: that one's result is worth looking for."""
    DELETED = auto()
    """The conversation is gone."""
    STORE_AWAY = auto()
    TAKES_TOO_LONG = auto()
    """The summary is still being made; the request goes on without."""
    AWAITED = auto()
    """Another request's compaction ended before this one began: its result is worth looking for."""
    IN_BACKGROUND = auto()
    """The summary is made after the request's answer, or being made already; the request goes on without."""
    NOTHING_TO_SUMMARISE = auto()
    NOT_BEGUN = auto()


_CODES: Mapping[Outcome, Code] = {
    Outcome.LEASE_LOST: Code.LEASE_LOST,
    Outcome.DELETED: Code.CONVERSATION_DELETED,
    Outcome.STORE_AWAY: Code.STORAGE,
    Outcome.TAKES_TOO_LONG: Code.SUMMARY_TAKES_TOO_LONG,
    Outcome.IN_BACKGROUND: Code.SUMMARY_IN_BACKGROUND,
    Outcome.NOTHING_TO_SUMMARISE: Code.NOTHING_TO_SUMMARISE,
}
"""Reason for each outcome that needs no more words."""


class Failure(Struct, frozen=True):
    """No answer could be had, or none that may be kept."""

    why: Reasons
    overflow: bool = False
    """The range was too large for one summary: a part of it may do."""
    outcome: Outcome = Outcome.FAILED


class Compaction(Struct, frozen=True):
    """Compaction that was tried: the chunks that were made, oldest first, and whether that is all of them."""

    made: tuple[SummaryChunk, ...]
    outcome: Outcome = Outcome.MADE
    why: Reasons = ()
    """Reasons for what failed, or was not begun."""

    @property
    def is_whole(self) -> bool:
        return self.outcome is Outcome.MADE

    @property
    def reasons(self) -> Reasons:
        """Reasons that are told of the compaction."""
        if self.why or self.outcome not in _CODES:
            return self.why
        return because(_CODES[self.outcome])


Effect = Announce | Summarise | StoreChunk | Together


Reply = SummaryAnswer | Failure | SummaryChunk | tuple[Compaction, ...] | None


Flow = Generator[Effect, Reply, Compaction]


class _Returned(Struct, Generic[R], frozen=True):
    """End of a generator."""

    value: R


def drive(flow: Generator[E, Any, R], perform: Callable[[E], object]) -> R:
    """Drive a generator of effects: `perform` does what it asks for, and returns the reply."""
    reply: object = None
    while not isinstance(asked := _next_of(partial(flow.send, reply)), _Returned):
        reply = perform(asked)
    value: R = asked.value
    return value


async def drive_async(
    flow: Generator[E, Any, R],
    perform: Callable[[E], Awaitable[object]],
    beside: Callable[[Callable[[], E | _Returned[R]]], Awaitable[E | _Returned[R]]],
    thrown: tuple[type[Exception], ...] = (),
) -> R:
    """Drive a generator whose effects take time. `beside` takes the generator's own steps: for a long history they take
    some. Errors of the types `thrown` are for the generator."""
    step: Callable[[], E] = partial(flow.send, None)
    while not isinstance(asked := await beside(partial(_next_of, step)), _Returned):
        try:
            step = partial(flow.send, await perform(asked))
        except thrown as error:
            step = partial(flow.throw, error)
    return asked.value


def _next_of(step: Callable[[], E]) -> E | _Returned[Any]:
    """Effect that a generator asks for next, or its end."""
    try:
        return step()
    except StopIteration as end:
        return _Returned(end.value)
