"""A world for `decide`: what a store, a summariser and a process would reply, written down shortly."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from msgspec.structs import replace

from app.core.deciding.attempt import Answer, Attempt, CompactionStart, Mode
from app.core.deciding.decide import decide
from app.core.deciding.effects import (
    AskPrices,
    Background,
    Brief,
    Effect,
    KeepMask,
    Lately,
    LookAhead,
    LookBack,
    Make,
    Postpone,
    Prices,
    Read,
    ReadHeads,
    ReadRewritten,
    Recall,
    Remember,
    StoreAway,
    Stored,
    Wait,
)
from app.core.deciding.request import Request
from app.core.stages.ladder import Decision
from app.core.stages.policy import Policy
from app.core.summary.flow import Compaction
from app.core.view.view import Conversation
from tests.unit.conversations import SETTINGS, TENANT, budget, cost, count, notes, play

AWAY = StoreAway("the database is away")


def asked(talk: Conversation, **changes: Any) -> Request:
    given: dict[str, Any] = {
        "tenant": TENANT,
        "conversation_id": "conv",
        "named": True,
        "conversation": talk,
        "policy": Policy(mask=None, cost_gate=None, recall=None),
        "budget": budget(),
        "model": "m",
        "series": "additive",
        "count": count,
        "cost": cost,
    }
    return Request(**(given | changes))


class Then:
    """Replies of which each is used once, and the last one from then on."""

    def __init__(self, *replies: Any) -> None:
        self.replies = list(replies)

    def next(self) -> Any:
        return self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]


class World:
    """Replies by the type of the effect: a value, an error to be thrown, a function of the effect, or `Then` more."""

    def __init__(self, replies: Mapping[type, Any] | None = None) -> None:
        self.stored = Stored()
        self.effects: list[Effect] = []
        self.attempt: Attempt | None = None
        usual: dict[type, Any] = {
            Read: lambda _: self.stored,
            KeepMask: self._keep_mask,
            ReadRewritten: (),
            ReadHeads: (),
            Brief: SETTINGS,
            AskPrices: Prices(),
            LookBack: Lately(),
            LookAhead: Background(),
            Make: self.make,
            Wait: True,
            Postpone: (),
            Remember: (),
            Recall: lambda effect: effect.view,
        }
        self._replies = {**usual, **(replies or {})}

    def decide(self, request: Request, mode: Mode | None = None) -> Decision:
        """Drive a request to its decision."""
        self.attempt = Attempt(request, mode or Answer())
        deciding = decide(self.attempt)
        step: Callable[[], Effect] = partial(next, deciding)
        while True:
            try:
                effect = step()
            except StopIteration as end:
                decision: Decision = end.value
                return decision
            self.effects.append(effect)
            reply = self._reply(effect)
            step = partial(deciding.throw if isinstance(reply, Exception) else deciding.send, reply)

    @property
    def names(self) -> list[str]:
        """Names of the effects so far, in order."""
        return [type(effect).__name__ for effect in self.effects]

    def make(self, effect: Make) -> Compaction:
        """Make a compaction whose summaries all succeed, and store it."""
        _, compaction = play(effect.flow, *[notes()] * 20)
        if self.attempt is not None:
            self.attempt.announced = CompactionStart.by(effect.plan)
        self.stored = replace(self.stored, chunks=(*self.stored.chunks, *compaction.made))
        return compaction

    def _keep_mask(self, effect: KeepMask) -> None:
        self.stored = replace(self.stored, boundaries=(*self.stored.boundaries, effect.boundary))

    def _reply(self, effect: Effect) -> Any:
        reply = self._replies.get(type(effect))
        if isinstance(reply, Then):
            reply = reply.next()
        return reply(effect) if callable(reply) else reply
