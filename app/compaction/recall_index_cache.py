"""RecallIndexCache: keeps what was read of each conversation, so that a turn reads only what is new."""

from __future__ import annotations

from contextlib import nullcontext
from threading import Lock

from msgspec import Struct, field
from msgspec.structs import replace

from app.compaction.planning_request import Place, Request
from app.compaction.recall import RecallPolicy, Recollection, with_recalled
from app.compaction.verify import problems
from app.compaction.view import View
from app.runtime.caches import Cache, Caches
from app.runtime.erased import Erased
from app.runtime.threads import Work


class _Held(Struct, frozen=True):
    recollection: Recollection
    size: int = 0
    """Size when it was last looked through. Nobody else may count: it may just be read on."""
    lock: Lock = field(default_factory=Lock)
    """Lock for several requests of one conversation that are looked through at once."""


class RecallIndexCache:
    def __init__(self, work: Work, caches: Caches) -> None:
        self._work = work
        self._held: Cache[tuple[Place, str], _Held] = caches.cache("recall", lambda _, held: held.size)
        """Indexes by conversation and model: notes have other sizes for each. One that is pushed out is read anew:
        some seconds of work for a million tokens."""

    async def recalled(self, request: Request, view: View, policy: RecallPolicy) -> View:
        """Add quotations of what the current message is about, from messages that the view leaves out."""
        place = request.place, request.model
        known = self._held.use(place)
        found, held = await self._work.do(request.tenant, lambda: _look(request, view, policy, known))
        self._held.keep(place, held)
        return found

    def forget(self, erased: Erased) -> None:
        self._held.drop(lambda key, _: erased.covers(*key[0]))


def _look(request: Request, view: View, policy: RecallPolicy, known: _Held | None) -> tuple[View, _Held]:
    conversation, budget = request.conversation, request.budget
    with known.lock if known else nullcontext():
        held = known if known and known.recollection.is_of(conversation) else _Held(Recollection(conversation))
        found = with_recalled(conversation, view, held.recollection, policy, budget, request.cost)
        held = replace(held, size=held.recollection.size)
    wrong = problems(conversation, found, budget.limit, alternates=request.policy.alternates)
    return view if wrong else found, held
