"""The compactor: drives the compaction's effects against the store and the summariser, under a lease.

A request reads as one line: under the trigger nothing; over it one read of chunks and the least view that fits; where
none fits a compaction, in a task the application owns; where that fails one step down the ladder.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from time import monotonic
from typing import TypeVar

import structlog

from app.compaction.breakers import HistoryBreaker
from app.compaction.memory import ChunkMemory
from app.compaction.quotas import Quotas
from app.compaction.setbacks import Setbacks
from app.compaction.summariser import PAUSED, Prefix, Summariser
from app.compaction.turn import Job, OnStart, Started, Turn, begin, nobody
from app.core.history.recognition import possible_heads
from app.core.reasons import joined
from app.core.stages.ladder import Decision, untouched
from app.core.summary.changing import changes_every_turn, successions
from app.core.summary.compaction import (
    LEASE_LOST,
    Announce,
    Effect,
    Failure,
    Flow,
    Outcome,
    Reply,
    Summarise,
    Together,
    compact,
)
from app.core.summary.compaction import Store as StoreChunk
from app.core.summary.gate import Answer
from app.core.summary.plan import Plan
from app.core.summary.prompts import SummaryRequest
from app.core.view.chunks import ChunkRange, SummaryChunk
from app.core.view.mask import Boundary
from app.memory.lineages import Lineage
from app.providers.ledger import Call, Ledger
from app.store import Busy, Lease, StatementRefused, Store, StoreUnavailable
from app.tasks.owned import OwnedTasks
from app.tasks.shared import Shared
from app.tasks.threads import Work

log = structlog.get_logger("steno.compactor")

T = TypeVar("T")

HEARTBEAT_SECONDS = 5.0
RACE_SECONDS = 0.25
CHANGES_WITHIN_SECONDS = 3_600.0
SIDE_BY_SIDE = 8
"""Summary calls of one compaction that are under way at once."""
ATTEMPTS = 2
"""Times the timeout of one call: what all calls for one summary may take, with retries and other models."""
NO_STORE = "storage"
"""The reason where the database is away."""
ROUNDS = 3
"""How many compactions one request begins: after a lost lease, or one that did not suffice, it plans anew."""
RECOVERIES = 3
"""How often one request waits for a database that does not answer, and tries it anew: the breaker opens after as many
failures. It is cheaper than a summary that others, who know nothing of it, make as well."""
NOT_ENOUGH = "summaries_not_enough"
FAILED_LATELY = "summary_failed_lately"
DELETED = "conversation_deleted"


class _LeaseLost(Exception):
    """Another holder may have it now."""


@dataclass(frozen=True, slots=True)
class _Stored:
    """What the store knows of a conversation's history."""

    pins: tuple[int, ...]
    chunks: tuple[SummaryChunk, ...]
    boundaries: tuple[Boundary, ...]


class Compactor:
    def __init__(
        self,
        store: Store,
        summariser: Summariser,
        tasks: OwnedTasks,
        work: Work,
        ledger: Ledger,
        quotas: Quotas,
        holder: str,
    ) -> None:
        self._store = store
        self._summariser = summariser
        self._tasks = tasks
        self._work = work
        self._ledger = ledger
        self._quotas = quotas
        self._holder = holder
        self._setbacks = Setbacks()
        self._breaker = HistoryBreaker()
        self._shared: Shared[_Stored] = Shared()
        self._memory = ChunkMemory()
        self._unstored: dict[ChunkRange, asyncio.Task[Outcome]] = {}

    async def prepare(self, job: Job, on_start: OnStart = nobody) -> Decision:
        """What to send for this request. `on_start` is called when a summary is really being made for it."""
        if (early := _untouched(job)) is not None:
            return early
        turn = begin(job, on_start)
        while not await self._use_store(turn):
            await self._recall(turn)
            if await self._beside(turn.job, lambda: turn.is_settled or turn.can_do_without):
                break
            if not await self._recovers(turn):
                await self._compact_unstored(turn)
                break
        if turn.made and turn.outcome is None and not turn.without_store:
            after = await self._widest(turn)
            self._breaker.finished(job.history(), job.conversation.tokens, turn.before, after, job.budget.limit)
        decision = await self._beside(job, turn.settle)
        return replace(decision, reason=decision.reason or NO_STORE) if turn.without_store else decision

    async def _use_store(self, turn: Turn) -> bool:
        """The line from the look at the store to the compaction. False where the database is away."""
        turn.forget()
        try:
            while True:
                await self._read(turn)
                await self._mask(turn)
                if await self._is_settled(turn) or not await self._compact(turn):
                    break
        except StatementRefused:
            turn.recoveries = RECOVERIES  # It is there, and will say the same again.
            turn.reason = NO_STORE
        except StoreUnavailable:
            turn.reason = NO_STORE
        turn.without_store = turn.reason == NO_STORE
        return not turn.without_store

    async def recover(self, job: Job, on_start: OnStart = nobody) -> Decision:
        """What to send after a refusal for its size, with the job's corrected budget.

        Without a summary where that reaches the budget: stored ones, then large texts shortened.
        """
        turn = begin(job, on_start)
        try:
            await self._read(turn)
        except StoreUnavailable:
            turn.reason = NO_STORE
        if not job.policy.summarises or await self._can_do_without(turn):
            return await self._beside(job, turn.settle)
        return await self.prepare(job, on_start)

    async def plan(self, job: Job) -> tuple[Decision, tuple[SummaryChunk, ...]]:
        """The dry run: the same decisions, with imagined summaries as long as real ones may be. Those come second."""
        if (early := _untouched(job)) is not None:
            return early, ()
        turn = begin(job)
        await self._read(turn, bind=False)

        def imagine() -> Decision:
            if (boundary := turn.plan_mask()) is not None:
                turn.learn_masks([boundary])
            if not turn.is_settled and (plan := turn.plan()) is not None:
                turn.made = _imagine(_flow(job, plan)).made
                turn.learn(turn.made)
            return turn.settle()

        return await self._beside(job, imagine), turn.made

    async def _beside(self, job: Job, work: Callable[[], T]) -> T:
        """Works something out about a request; in a worker thread where its history is long."""
        return await self._work.do(job.tenant, work) if job.is_long else work()

    async def _is_settled(self, turn: Turn) -> bool:
        return await self._beside(turn.job, lambda: turn.is_settled)

    async def _can_do_without(self, turn: Turn) -> bool:
        return await self._beside(turn.job, lambda: turn.can_do_without)

    async def _widest(self, turn: Turn) -> int:
        """Tokens of the view with every chunk and mask in use."""
        return await self._beside(turn.job, lambda: turn.case.widest_view().tokens)

    async def _read(self, turn: Turn, *, bind: bool = True) -> None:
        job = turn.job
        mask, last = job.policy.mask, job.conversation.chain.digests[-1]
        what = job.place, job.series, job.policy.summarises, mask.key if mask else None, last, bind
        # Once for a crowd, such as one that was woken together: they would wait for each other at the database.
        stored = await self._shared.do(what, lambda: self._find(job, bind=bind))
        turn.pin(stored.pins)
        self._memory.keep(job.tenant, stored.chunks)
        turn.learn(stored.chunks)
        turn.learn_masks(stored.boundaries)

    async def _find(self, job: Job, *, bind: bool) -> _Stored:
        chain, cuts, mask = job.conversation.chain, job.conversation.cut_digests, job.policy.mask
        pins = await self._store.pins_of(job.tenant, job.conversation_id, chain.digests, bind=bind)
        chunks = await self._store.chunks_in(job.tenant, job.series, cuts) if job.policy.summarises else ()
        found = await self._store.masks_in(job.tenant, mask.key, cuts) if mask is not None else ()
        boundaries = (Boundary(chain.positions[digest], chain.positions[start]) for digest, start in found)
        return _Stored(pins, tuple(chunks), tuple(boundaries))

    async def _recall(self, turn: Turn) -> None:
        """What this process remembers, and masks where even that is too large."""
        job = turn.job
        turn.learn(self._memory.chunks_in(job.tenant, job.series, job.conversation.cut_digests))
        due = await self._beside(job, lambda: None if turn.can_do_without else turn.plan_mask())
        if due is not None:
            turn.learn_masks([due])

    async def _recovers(self, turn: Turn) -> bool:
        """Whether the database may be asked once more, instead of doing without."""
        turn.recoveries += 1
        patient = turn.recoveries <= RECOVERIES and turn.seconds_left > 0 and not self._tasks.draining
        return patient and await self._store.recovers()

    async def _compact_unstored(self, turn: Turn) -> None:
        """A summary that cannot be stored yet; other processes know nothing of it."""
        job, undertaking = turn.job, turn.job.history(NO_STORE)
        failure: str | None = None
        while not (self._tasks.draining or await self._is_settled(turn)):
            if (why := self._setbacks.pauses(undertaking)) is not None:
                failure = joined(why, FAILED_LATELY)
                break
            plan = await self._beside(job, turn.plan)
            if plan is None or not turn.seconds_left:
                break
            started = _started(plan)
            if (work := self._under_way(job, plan)) is not None:
                turn.tell(started)
                await asyncio.wait({work}, timeout=turn.seconds_left)
                await self._recall(turn)
                continue
            if (failure := self._quotas.begin(*job.place)) is not None:
                break
            running = self._run_unstored(job, plan, undertaking, lambda: turn.tell(started))  # noqa: B023 - the last one
            work = self._unstored[plan.range] = self._tasks.start(running, f"compaction {started.id}")
            work.add_done_callback(lambda _: self._unstored.pop(plan.range, None))  # noqa: B023 - the last one
            work.add_done_callback(lambda _: self._quotas.end(*job.place))
            await asyncio.wait({work}, timeout=turn.seconds_left)
            if work.done():
                turn.made += work.result().made
                turn.learn(turn.made)
                failure = work.result().failure
            break
        turn.reason = joined(NO_STORE, failure)

    def _under_way(self, job: Job, plan: Plan) -> asyncio.Task[Outcome] | None:
        """What is made at this moment and is of use: it begins where the plan does, and ends in the same history."""
        wanted, places = plan.range, job.conversation.chain.positions
        of_use = (
            work
            for made, work in self._unstored.items()
            if (made.series, made.from_digest) == (wanted.series, wanted.from_digest) and made.through_digest in places
        )
        return next(of_use, None)

    async def _run_unstored(self, job: Job, plan: Plan, undertaking: Lineage, announce: Callable[[], None]) -> Outcome:
        began = monotonic()
        outcome = await self._drive(_flow(job, plan), job, None, announce)
        self._learn(undertaking, outcome)
        _log(job, plan, outcome, began, stored=False)
        return outcome

    def forget(self, tenant: str, conversation_id: str | None = None) -> None:
        """After a deletion of one conversation, also at another process, or of all."""
        self._memory.forget(tenant, conversation_id)

    async def _mask(self, turn: Turn) -> None:
        """Masks tool results where that is due."""
        job, boundary = turn.job, await self._beside(turn.job, turn.plan_mask)
        if boundary is None or job.policy.mask is None:
            return
        place = job.conversation.chain[boundary.position], job.conversation.chain[boundary.start]
        await self._store.keep_mask(job.tenant, job.policy.mask.key, *place, job.conversation_id)
        turn.learn_masks([boundary])

    async def _compact(self, turn: Turn) -> bool:
        """Makes the due compaction, or waits for whoever makes it. Whether it is worth looking again."""
        job, plan = turn.job, await self._beside(turn.job, turn.plan)
        if plan is None:
            return False
        turn.reason = await self._objection(turn, plan)
        if turn.reason is not None:
            return False
        if turn.waited:
            # Whom we waited for made nothing of use. All who waited know it now, and one of them is to try.
            await asyncio.sleep(min(turn.seconds_left, RACE_SECONDS * random.random()))
        started = _started(plan)
        turn.reason = self._quotas.begin(*job.place)
        if turn.reason is not None:
            return False
        lease = None
        try:
            chain = job.conversation.chain.positions
            lease = await self._store.acquire(job.tenant, job.conversation_id, plan.range, chain, self._holder)
        finally:
            if not isinstance(lease, Lease):
                self._quotas.end(*job.place)
        if isinstance(lease, Busy):
            turn.tell(started)
            return await self._wait(turn, plan)
        turn.begun += 1
        running = self._run(job, plan, lease, frozenset(turn.chunks), lambda: turn.tell(started))
        work = self._tasks.start(running, f"compaction {started.id}")
        work.add_done_callback(lambda _: self._quotas.end(*job.place))
        # Waited for, not awaited: a client that leaves, or a deadline, ends the wait and not the work.
        await asyncio.wait({work}, timeout=turn.seconds_left)
        if not work.done():
            turn.reason = "summary_takes_too_long"
            return False
        outcome = work.result()
        turn.before = turn.before or await self._widest(turn)
        turn.made += outcome.made
        turn.learn(outcome.made)
        turn.reason = turn.outcome = outcome.failure
        # What was made may not be enough yet: where a history far too long was read in parts.
        return outcome.failure in {LEASE_LOST, DELETED} or (outcome.failure is None and bool(outcome.made))

    async def _objection(self, turn: Turn, plan: Plan) -> str | None:
        """Why the compaction is not begun."""
        job = turn.job
        if self._tasks.draining:
            return "stopping"
        tokens, budget = job.conversation.tokens, job.budget
        often = budget.trigger.counts_turns
        if (why := self._breaker.blocks(job.history(), tokens, budget.limit, often=often)) is not None:
            return why
        can_do_without = await self._can_do_without(turn)
        why = self._setbacks.pauses(_undertaking(job, plan))
        if why is not None and (can_do_without or job.policy.prune):
            return joined(why, FAILED_LATELY)
        if can_do_without and await self._is_in_vain(job):
            return "history_changes_every_turn"
        if turn.begun == ROUNDS or turn.outcome == DELETED:
            return turn.outcome or NOT_ENOUGH
        return None

    async def _is_in_vain(self, job: Job) -> bool:
        conversation, store = job.conversation, self._store
        digests = [message.digest for message in conversation.transcript.messages]
        recent = await store.recent_first_chunks(job.tenant, job.series, digests, CHANGES_WITHIN_SECONDS)
        found = successions(conversation, recent, job.conversation_id, named=job.named)
        if not found:
            return False
        heads = await store.heads(job.tenant, possible_heads(conversation.transcript, conversation.chain))
        return changes_every_turn(conversation, found, [head.digest for head in heads])

    async def _wait(self, turn: Turn, plan: Plan) -> bool:
        """Waits for the result of somebody else's compaction, not for the lease."""
        job, chain = turn.job, turn.job.conversation.chain.positions
        turn.waited = True
        while turn.seconds_left:
            try:
                if await self._store.lease_ended(job.tenant, job.conversation_id, plan.range, chain, turn.seconds_left):
                    return True
            except StoreUnavailable:
                if await self._can_do_without(turn) or not await self._recovers(turn):
                    raise
        turn.reason = "summary_takes_too_long"
        return False

    async def _run(
        self, job: Job, plan: Plan, lease: Lease, known: Collection[str], announce: Callable[[], None]
    ) -> Outcome:
        """The owned task: from the lease to its release, whoever is still waiting. `known` are the chunks it was
        planned with."""
        began = monotonic()
        outcome = Outcome((), LEASE_LOST)
        try:
            async with asyncio.TaskGroup() as group:
                beating = group.create_task(self._beat(lease))
                if not await self._is_overtaken(job, known):
                    late = await self._store_late(lease, job, plan)
                    outcome = late or await self._drive(_flow(job, plan), job, lease, announce)
                beating.cancel()
        except* _LeaseLost:
            pass
        except* StoreUnavailable:
            outcome = Outcome((), NO_STORE)
        finally:
            await self._release(lease)
        if outcome.failure == LEASE_LOST and await self._is_revoked(lease):
            outcome = Outcome((), DELETED)
            self.forget(*job.place)
        self._learn(_undertaking(job, plan), outcome)
        _log(job, plan, outcome, began)
        return outcome

    def _learn(self, undertaking: Lineage, outcome: Outcome) -> None:
        """A part that was made is no success where another one failed: without that it may be of no use."""
        if outcome.failure is None:
            self._setbacks.succeeded(undertaking)
        elif outcome.failure not in {LEASE_LOST, NO_STORE, DELETED}:
            self._setbacks.failed(undertaking, outcome.failure)

    async def _is_revoked(self, lease: Lease) -> bool:
        """Whether the conversation was deleted: then what the request needs is not to be made again for it."""
        try:
            return await self._store.revoked(lease)
        except StoreUnavailable:
            return False

    async def _is_overtaken(self, job: Job, known: Collection[str]) -> bool:
        """Whether a chunk was stored between our look and our lease: what is to be made may have been made."""
        found = await self._store.chunks_in(job.tenant, job.series, job.conversation.cut_digests)
        return any(chunk.id not in known for chunk in found)

    async def _store_late(self, lease: Lease, job: Job, plan: Plan) -> Outcome | None:
        """What this was to make and was made while the database was away: it is paid for, and was sent already."""
        chain = job.conversation.chain
        start = chain.positions[plan.range.from_digest]
        made = self._memory.take_unstored(job.tenant, job.series, job.conversation.cut_digests)
        # It is this conversation's from now on: whose it was may be deleted by now.
        due = [
            replace(chunk, conversation_id=job.conversation_id)
            for chunk in made
            if chain.positions[chunk.from_digest] >= start
        ]
        if not due:
            return None
        if stored := await self._keep(lease, job, due):
            return Outcome(tuple(stored))
        self._memory.keep(job.tenant, due, stored=False)
        return Outcome((), LEASE_LOST)

    async def _drive(self, flow: Flow, job: Job, lease: Lease | None, announce: Callable[[], None]) -> Outcome:
        """Performs what the flow asks for, until it returns. Without a lease nothing is stored."""
        reply: Reply = None
        while True:
            effect = await self._beside(job, partial(_step, flow, reply))
            reply = None
            match effect:
                case Outcome():
                    return effect
                case Announce():
                    announce()
                case Summarise(request):
                    reply = await self._ask(request, job)
                case Together(flows):
                    reply = await self._drive_all(flows, job, lease)
                case StoreChunk(chunk):
                    reply = next(iter(await self._keep(lease, job, [chunk])), None)

    async def _keep(self, lease: Lease | None, job: Job, made: Sequence[SummaryChunk]) -> Sequence[SummaryChunk]:
        """The chunks as stored, none once the lease is lost; without one as they are.

        What is paid for and cannot be stored is remembered.
        """
        if lease is None:
            self._memory.keep(job.tenant, made, stored=False)
            return made
        try:
            stored = await self._store.commit(lease, made) or ()
        except (StoreUnavailable, asyncio.CancelledError):
            self._memory.keep(job.tenant, made, stored=False)
            raise
        self._memory.keep(job.tenant, stored)
        return stored

    async def _drive_all(self, flows: Sequence[Flow], job: Job, lease: Lease | None) -> tuple[Outcome, ...]:
        """A few at a time: providers limit how much may be under way for one key."""
        free = asyncio.Semaphore(SIDE_BY_SIDE)

        async def drive(flow: Flow) -> Outcome:
            async with free:
                return await self._drive(flow, job, lease, lambda: None)

        async with asyncio.TaskGroup() as group:
            driven = [group.create_task(drive(flow)) for flow in flows]
        return tuple(task.result() for task in driven)

    async def _ask(self, request: SummaryRequest, job: Job) -> Answer | Failure:
        prefix = None
        if (view := request.shown) is not None:
            prefix = Prefix(await self._beside(job, lambda: job.shown(view)), job.declared)
        deadline = monotonic() + self._summariser.timeout_seconds * ATTEMPTS
        reply = await self._summariser.ask(request, job.routes, prefix, deadline, job.tenant, job.request_id)
        if isinstance(reply, Answer):
            self._ledger.record(_summary_call(job, reply))
            self._quotas.spend(job.tenant, await self._tokens(job, request, reply))
        return reply

    async def _tokens(self, job: Job, request: SummaryRequest, answer: Answer) -> int:
        """Of the whole call; estimated where the provider does not say."""
        told = answer.usage
        if told.prompt is None:
            shown = request.instructions + request.transcript + answer.text
            return await self._beside(job, lambda: job.count(shown))
        return told.prompt + (told.completion or 0)

    async def _beat(self, lease: Lease) -> None:
        """Keeps the lease alive. Raises `_LeaseLost` once it is, because the work is then in vain."""
        missed = 0
        while missed < 2:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            try:
                if not await self._store.renew(lease):
                    break
                missed = 0
            except StoreUnavailable:
                missed += 1
        raise _LeaseLost

    async def _release(self, lease: Lease) -> None:
        try:
            await self._store.release(lease)
        except StoreUnavailable:
            log.warning("lease not released, it expires by itself", conversation_id=lease.conversation_id)


def _untouched(job: Job) -> Decision | None:
    """What needs no store: the client's bytes go as they are, or None where more is to be decided."""
    if (early := untouched(job.conversation, job.policy, job.budget, job.model)) is not None or job.compaction:
        return early
    return Decision(None, reason="compaction_off")


def _flow(job: Job, plan: Plan) -> Flow:
    return compact(job.conversation, job.conversation_id, plan, job.budget, job.summary, job.count)


def _messages(plan: Plan) -> int:
    return sum(span.stop - span.start for span in plan.spans)


def _started(plan: Plan) -> Started:
    return Started(f"cmp_{plan.range.through_digest.hex()[:24]}", _messages(plan))


def _undertaking(job: Job, plan: Plan) -> Lineage:
    """What fails or succeeds. Not the end of the range: that moves with every turn, and the failure with it."""
    return job.history(plan.range.from_digest)


def _log(job: Job, plan: Plan, outcome: Outcome, began: float, *, stored: bool = True) -> None:
    if outcome.failure == PAUSED:
        return  # The summariser tells of it, once, with a count.
    tell = log.warning if outcome.failure else log.info
    tell(
        "compaction failed" if outcome.failure else "compacted",
        request_id=job.request_id,
        conversation_id=job.conversation_id,
        model=job.summary.model,
        messages=_messages(plan),
        chunks=len(outcome.made),
        seconds=round(monotonic() - began, 2),
        reason=outcome.failure or (None if stored else NO_STORE),
    )


def _summary_call(job: Job, answer: Answer) -> Call:
    """Its own tokens only: what it saves is seen in the request that it was made for, and in all later ones."""
    return Call(
        tenant=job.tenant,
        conversation_id=job.conversation_id,
        request_id=job.request_id,
        turn=len(job.conversation.transcript.turn_starts),
        purpose="summary",
        upstream=answer.upstream,
        model=answer.model,
        status=200,
        tokens=answer.usage,
    )


def _step(flow: Flow, reply: Reply) -> Effect | Outcome:
    """What a flow asks for next, or what came of it."""
    try:
        return flow.send(reply)
    except StopIteration as end:
        outcome: Outcome = end.value
        return outcome


def _imagine(flow: Flow) -> Outcome:
    """Drives a flow without acting: every summary is as long as it may be, and is kept nowhere."""
    reply: Reply = None
    while True:
        match _step(flow, reply):
            case Outcome() as outcome:
                return outcome
            case Summarise(request):
                reply = Answer(" a" * (request.max_tokens // 2))
            case Together(flows):
                reply = tuple(map(_imagine, flows))
            case StoreChunk(chunk):
                reply = chunk
            case _:
                reply = None
