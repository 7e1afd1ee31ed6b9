"""Recaller: keeps what was read of each conversation, so that a turn reads only what is new."""

from __future__ import annotations

from contextlib import nullcontext
from threading import Lock

from msgspec import Struct, field
from msgspec.structs import replace

from app.compaction.job import Job
from app.core.reasons import Code, Reason
from app.core.recall.policy import RecallPolicy
from app.core.recall.recall import Recollection, with_recalled
from app.core.stages.ladder import Decision
from app.core.view.verify import problems
from app.core.view.view import View
from app.runtime.caches import Cache, Caches
from app.runtime.threads import Work


class _Held(Struct, frozen=True):
    recollection: Recollection
    size: int = 0
    """Size when it was last looked through. Nobody else may count: it may just be read on."""
    lock: Lock = field(default_factory=Lock)
    """Lock for several requests of one conversation that are looked through at once."""


class Recaller:
    def __init__(self, work: Work, caches: Caches) -> None:
        self._work = work
        self._held: Cache[tuple[tuple[str, str], str], _Held] = caches.cache("recall", lambda _, held: held.size)
        """Indexes by conversation and model: notes have other sizes for each. One that is pushed out is read anew:
        some seconds of work for a million tokens."""

    async def recalled(self, job: Job, decision: Decision) -> Decision:
        """Add quotations of what the current message is about, from messages that the decision's view leaves out."""
        policy, view = job.policy.recall, decision.view
        if policy is None or view is None or not job.recalls:
            return decision
        if job.budget.line.reported(job.conversation.tokens) > policy.history_tokens:
            return replace(decision, why=(*decision.why, Reason(Code.RECALL_TOO_LONG)))
        place = job.place, job.model
        known = self._held.use(place)
        found, held = await self._work.do(job.tenant, lambda: _look(job, view, policy, known))
        self._held.keep(place, held)
        return decision if found == view else replace(decision, view=found, actions=found.actions)

    def forget(self, tenant: str, conversation_id: str | None = None) -> None:
        """Forget one conversation after a deletion, or all of the tenant."""
        self._held.drop(lambda key, _: key[0][0] == tenant and conversation_id in (None, key[0][1]))


def _look(job: Job, view: View, policy: RecallPolicy, known: _Held | None) -> tuple[View, _Held]:
    conversation = job.conversation
    with known.lock if known else nullcontext():
        held = known if known and known.recollection.is_of(conversation) else _Held(Recollection(conversation))
        found = with_recalled(conversation, view, held.recollection, policy, job.budget, job.cost)
        held = replace(held, size=held.recollection.size)
    wrong = problems(conversation, found, job.budget.limit, alternates=job.policy.alternates)
    return view if wrong else found, held
