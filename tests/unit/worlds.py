"""Parts for the compactor: what a store, a summariser and a process would reply, written down shortly."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

from msgspec.structs import replace

from app.compaction.chunks import Compaction, Outcome
from app.compaction.compactor import RecentAttempts, RequestCompactor, Stored
from app.compaction.cost_gate import Prices
from app.compaction.decision import Decision
from app.compaction.planning_state import Policy
from app.compaction.request import ChatRequest
from app.compaction.view import Conversation
from app.store import StoreUnavailable
from tests.unit.conversations import SETTINGS, TENANT, budget, cost, count, notes, play

AWAY = StoreUnavailable("the database is away")

Ask = Callable[[RequestCompactor], Any]
"""What is asked of a compactor, such as `RequestCompactor.prepare`."""


NO_BREAKPOINTS = SimpleNamespace(breakpoints=SimpleNamespace(may_be_set=lambda _: False))


def asked(talk: Conversation, **changes: Any) -> ChatRequest:
    unused = ("measure", "prompt", "headers", "target", "recognised", "heads", "events", "wait_seconds")
    given: dict[str, Any] = {
        **dict.fromkeys(unused),
        "request_id": "req_1",
        "format": NO_BREAKPOINTS,
        "wire": SimpleNamespace(source=b""),
        "tenant": TENANT,
        "conversation_id": "conv",
        "named": True,
        "conversation": talk,
        "policy": Policy(mask=None, cost_gate=False),
        "recalls": False,
        "budget": budget(),
        "model": "m",
        "series": "additive",
        "count": count,
        "cost": cost,
    }
    return ChatRequest(**(given | changes))


class Then:
    """Replies of which each is used once, and the last one from then on."""

    def __init__(self, *replies: Any) -> None:
        self.replies = list(replies)

    def next(self) -> Any:
        return self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]


class World:
    """Replies by the name of the part: a value, an error to be raised, a function of the call, or `Then` more."""

    work = SimpleNamespace(do=None)

    def __init__(self, replies: Mapping[str, Any] | None = None, *, is_dry_run: bool = False) -> None:
        self.is_dry_run = is_dry_run
        self.stored = Stored()
        self.calls: list[SimpleNamespace] = []
        usual: dict[str, Any] = {
            "read_prefix": lambda _: self.stored,
            "keep_mask": self._keep_mask,
            "read_first_chunks": (),
            "read_heads": (),
            "remembered": (),
            "summary_options": SETTINGS,
            "prices": Prices(),
            "recent_attempts": RecentAttempts(),
            "freed": None,
            "make": self.succeed,
            "recall": lambda call: call.view,
        }
        self._replies = {**usual, **(replies or {})}

    def ask(self, request: ChatRequest, ask: Ask = RequestCompactor.prepare, **settings: Any) -> Any:
        """Ask a compactor for what it decides."""
        parts: Any = self
        return asyncio.run(ask(RequestCompactor(request, parts, **settings)))

    def decide(self, request: ChatRequest, ask: Ask = RequestCompactor.prepare, **settings: Any) -> Decision:
        decision: Decision = self.ask(request, ask, **settings)
        return decision

    @property
    def names(self) -> list[str]:
        """Names of the calls so far, in order."""
        return [call.name for call in self.calls]

    def succeed(self, call: SimpleNamespace) -> Compaction:
        """Make a compaction whose summaries all succeed, and store it."""
        _, compaction = play(call.job.builder, *[notes()] * 20)
        call.job.announce()
        self.stored = replace(self.stored, chunks=(*self.stored.chunks, *compaction.made))
        return compaction

    def _keep_mask(self, call: SimpleNamespace) -> None:
        self.stored = replace(self.stored, boundaries=(*self.stored.boundaries, call.boundary))

    def _reply(self, name: str, **given: Any) -> Any:
        call = SimpleNamespace(name=name, **given)
        self.calls.append(call)
        reply = self._replies[name]
        if isinstance(reply, Then):
            reply = reply.next()
        if isinstance(reply, Exception):
            raise reply
        return reply(call) if callable(reply) else reply

    async def read_prefix(self, _: Any) -> Any:
        return self._reply("read_prefix")

    async def keep_mask(self, _: Any, boundary: Any) -> None:
        self._reply("keep_mask", boundary=boundary)

    async def read_first_chunks(self, _: Any) -> Any:
        return self._reply("read_first_chunks")

    async def read_heads(self, _: Any, digests: Any) -> Any:
        return self._reply("read_heads", digests=digests)

    def remembered(self, _: Any) -> Any:
        return self._reply("remembered")

    def summary_options(self, _: Any) -> Any:
        return self._reply("summary_options")

    def prices(self, _: Any, summariser: str | None = None) -> Any:
        return self._reply("prices", summariser=summariser)

    def recent_attempts(self, _: Any, plan: Any) -> Any:
        return self._reply("recent_attempts", plan=plan)

    def learn_gain(self, _: Any, before: int, after: int) -> None:
        self._reply("freed", before=before, after=after)

    async def make(self, _: Any, job: Any) -> Any:
        return self._reply("make", job=job) or Compaction((), Outcome.AWAITED)

    @property
    def recall_index(self) -> Any:
        return SimpleNamespace(recalled=self._recall)

    async def _recall(self, _: Any, view: Any) -> Any:
        return self._reply("recall", view=view)
