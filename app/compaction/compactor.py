"""The compactor decides what is sent for a request.

A request reads as one line: under the trigger nothing; over it one read of chunks and the least view that fits; where
none fits a compaction, in a task the application owns; where that fails one step down the ladder. How a compaction is
made is in `leased`, and in `unstored` while the database is away.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from msgspec import Struct
from msgspec.structs import replace

from app.compaction.breakers import HistoryBreaker, Setbacks
from app.compaction.economy import Economy
from app.compaction.job import Job, OnStart, nobody
from app.compaction.leased import LeasedCompaction
from app.compaction.memory import ChunkMemory
from app.compaction.paces import LIKELY_REQUESTS, Paces
from app.compaction.performer import Performer
from app.compaction.progress import Progress, begin
from app.compaction.quotas import BackgroundRoom, Quotas
from app.compaction.recaller import Recaller
from app.compaction.summariser import Summariser
from app.compaction.ties import Ties
from app.compaction.unstored import UnstoredCompaction
from app.core.history.recognition import possible_heads
from app.core.limits.ahead import most_without
from app.core.reasons import Code, Reason, Reasons, because
from app.core.stages.case import Case
from app.core.stages.ladder import Decision, Status, settle, step_down, untouched
from app.core.stages.masking import without_summary
from app.core.summary.changing import changes_every_turn, successions
from app.core.summary.flow import Compaction, Effect, Flow, Outcome, Reply, StoreChunk, Summarise, Together, drive
from app.core.summary.gate import SummaryAnswer
from app.core.summary.plan import Plan
from app.core.view.chunks import SummaryChunk
from app.core.view.mask import Boundary
from app.core.view.reading import Path
from app.providers.ledger import Ledger
from app.runtime.caches import Caches
from app.runtime.owned import OwnedTasks
from app.runtime.shared import SharedWork
from app.runtime.threads import Work
from app.store import StatementRefused, Store, StoreUnavailable
from app.store.chunks import chunks_in, recent_first_chunks
from app.store.pins import pins_in
from app.store.places import keep_mask, masks_in
from app.telemetry.metrics import Metrics

CHANGES_WITHIN_SECONDS = 3_600.0
ROUNDS = 3
"""Compactions that one request begins at most: after a lost lease, or one that did not suffice, it plans anew."""


class _Stored(Struct, frozen=True):
    """Rows that the store has of a conversation's history."""

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
        metrics: Metrics,
        paces: Paces,
        room: BackgroundRoom,
        holder: str,
        caches: Caches,
    ) -> None:
        self._store = store
        self._work = work
        self._room = room
        self._refused_shapes = Setbacks(tolerated=0)
        self._breaker = HistoryBreaker()
        self._economy = Economy(ledger)
        self._shared: SharedWork[_Stored] = SharedWork()
        performer = Performer(summariser, tasks, work, ledger, quotas, metrics, paces, ChunkMemory(caches))
        self._performer = performer
        self.under_way = performer.under_way
        self._leased = LeasedCompaction(store, performer, holder)
        self._unstored = UnstoredCompaction(performer)
        self._recaller = Recaller(work, caches)
        self._ties = Ties(store, work, caches)

    def at_once(self, job: Job) -> Decision | None:
        """Decide without the store: the client's bytes go as they are; None if more is to be decided."""
        return None if job.conversation.history.holds_ties else self._untouched(job)

    def _untouched(self, job: Job) -> Decision | None:
        if (early := untouched(job.conversation, job.policy, job.budget, job.model)) is not None or job.compaction:
            return early
        return Decision(None, why=because(Code.COMPACTION_OFF))

    async def prepare(self, job: Job, on_start: OnStart = nobody, *, may_go_on: bool = False) -> Decision:
        """Decide what is sent for this request. `on_start` is called when a summary is really being made for it.

        `may_go_on`: it need not wait for a summary without which it can be sent, if that is made after its answer.
        """
        if (early := self._untouched(job)) is not None:
            return await self._ties.tied(job, early)
        progress = await begin(job, self._work, on_start, may_go_on=may_go_on)
        if (lower := await self._refused_lately(progress)) is not None:
            return lower
        while not await self._use_store(progress):
            await self._unstored.recall(progress)
            if await progress.is_settled() or await progress.can_do_without_summary():
                break
            if not await self._leased.recovers(progress):
                await self._unstored.make(progress)
                break
        await self._judge(progress)
        decision = await self._settle(progress)
        self._performer.metrics.reused(_reused(progress, decision))
        if progress.without_store:
            decision = replace(decision, why=decision.why or because(Code.STORAGE))
        return await self._finished(job, decision)

    async def recover(self, job: Job, on_start: OnStart = nobody) -> Decision:
        """Decide what is sent after a refusal for its size, with the job's corrected budget.

        Without a summary where that reaches the budget: stored ones, then large texts shortened. Nothing is recalled.
        """
        job = replace(job, recalls=False)
        progress = await begin(job, self._work, on_start)
        try:
            await self._read(progress)
        except StoreUnavailable:
            progress.attempted(Compaction((), Outcome.STORE_AWAY))
        if not job.policy.summarises or await progress.can_do_without_summary():
            return await self._ties.tied(job, await self._settle(progress))
        return await self.prepare(job, on_start)

    async def without_ties(self, job: Job, decision: Decision) -> Decision:
        """Decide again after a refusal of thoughts that are tied to something else; remembered for later requests."""
        return await self._ties.refused(job, decision)

    async def step_down(self, job: Job, refused: Decision, said: str) -> Decision:
        """Decide what is sent after a refusal of a view's shape, and for a while of the history's later ones; the
        same decision if there is nothing better. `said`: the provider's words."""
        why = because(Code.PAYLOAD_REFUSED, said)
        lower = await self._below(await begin(job, self._work), refused.status, why)
        if lower is None:
            return refused
        self._refused_shapes.failed(job.history(refused.status), why)
        return lower

    async def _refused_lately(self, progress: Progress) -> Decision | None:
        """Decide what is sent if a view of this history was refused for its shape a moment ago; else None."""
        refusable: tuple[Status, ...] = ("trimmed", "summarized")
        for status in refusable:
            why = self._refused_shapes.pauses(progress.job.history(status))
            if why is not None and (lower := await self._below(progress, status, why)) is not None:
                return lower
        return None

    async def _below(self, progress: Progress, status: Status, why: Reasons) -> Decision | None:
        """Go one step down the ladder. Nothing is recalled: that may be what was refused."""
        with suppress(StoreUnavailable):
            await self._read(progress)  # For its pins.
        case = progress.case
        lower = await progress.beside(lambda: step_down(case, status, why))
        return None if lower is None else await self._ties.tied(progress.job, lower)

    async def compact_asked(
        self, job: Job, on_start: OnStart = nobody, position: int | None = None
    ) -> tuple[Path | None, Reasons]:
        """Make summaries because a client asked: of everything before the last unit, or before a position, whatever
        they free. Returned with those that are stored; None, and why, if they could not be made.

        Raises `StoreUnavailable`: what is not stored cannot be referred to.
        """
        progress = await begin(job, self._work, on_start)
        while True:
            await self._read(progress)
            if (plan := await progress.asked_plan(position)) is None:
                path = await progress.asked_path(position)
                return (path, ()) if path.chunks else (None, because(Code.NOTHING_TO_SUMMARISE))
            if why := _no_more_rounds(progress):
                return None, why
            if self._performer.tasks.draining:
                return None, because(Code.STOPPING)
            if position is None and (paused := self._performer.setbacks.pauses(job.undertaking(plan))) is not None:
                return None, (*paused, Reason(Code.SUMMARY_FAILED_LATELY))  # A client repeats what failed by itself.
            progress.latest = await self._leased.make(progress, plan)
            if not _goes_on(progress.latest):
                if progress.without_store:
                    raise StoreUnavailable("the database went away while the summary was made")
                return None, progress.why

    async def plan(self, job: Job, *, imagines: bool = True) -> tuple[Decision, tuple[SummaryChunk, ...]]:
        """Decide as a dry run, with imagined summaries as long as real ones may be. Those come second."""
        if (early := self._untouched(job)) is not None:
            return await self._ties.tied(job, early, keep=False), ()
        progress = await self._looked_at(job)
        imagined = await self._imagined(progress) if imagines else ()
        return await self._finished(job, await self._settle(progress), keep=False), imagined

    async def look(self, job: Job) -> Decision:
        """Decide by what is stored now: nothing is made, and no summary is imagined."""
        try:
            return (await self.plan(job, imagines=False))[0]
        except StoreUnavailable:
            return Decision(None, why=because(Code.STORAGE))

    async def _imagined(self, progress: Progress) -> tuple[SummaryChunk, ...]:
        """Imagine the summaries that are due, and take them for made, or for left to the background."""
        if await progress.is_settled():
            return ()
        plan = await progress.due_plan()
        if plan is None or await self._economy.puts_off(progress, plan):
            progress.attempted(_not_begun(progress, plan))
            return ()
        flow = progress.job.flow(progress.case, plan)
        imagined = await progress.beside(lambda: _imagine(flow))
        if (without := await self._without(progress, plan)) is not None:
            progress.case = without
            progress.attempted(Compaction((), Outcome.IN_BACKGROUND))
        else:
            progress.ended(imagined)
            progress.attempted(imagined)
        return imagined.made

    async def _looked_at(self, job: Job) -> Progress:
        """Begin with the stored rows, and with a mask that is due; nothing is kept of it."""
        progress = await begin(job, self._work, may_go_on=True)
        await self._read(progress, bind=False)
        if (boundary := await self._due_mask(progress)) is not None:
            progress.case = progress.case.with_boundaries([boundary])
        return progress

    async def make_ahead(self, job: Job, target: int) -> None:
        """Make the due compaction for requests to come. It waits for nobody else's, and what failed is not tried
        again before a request that needs it has. `target`: tokens that a mask has to reach then."""
        progress = await begin(job, self._work)
        try:
            await self._read(progress)
            if await progress.is_settled() or await self._waits_for_mask(progress, target):
                return
            plan = await progress.due_plan()
            if plan is None or self._performer.setbacks.failed_last(job.undertaking(plan)):
                return
            if await self._economy.puts_off(progress, plan):
                return
            if not await self._objections(progress, plan):
                progress.latest = await self._leased.make(progress, plan)
        except StoreUnavailable:
            return
        await self._judge(progress)

    async def _waits_for_mask(self, progress: Progress, target: int) -> bool:
        """True if a mask will do. It is put where it is needed, and when: that takes nobody's time."""
        planned = progress.case
        progress.case = replace(planned, budget=replace(planned.budget, target=target))
        boundary = await self._due_mask(progress)
        progress.case = planned
        return boundary is not None

    def comes_back(self, job: Job) -> bool:
        """True if another request is expected soon, so that its summary is worth making in the background."""
        settings, pace = job.writing.rules.compaction.background, self._performer.paces.of(job.place)
        return (
            settings.enabled and pace.requests >= LIKELY_REQUESTS and pace.tokens_per_hour >= settings.tokens_per_hour
        )

    async def _finished(self, job: Job, decision: Decision, *, keep: bool = True) -> Decision:
        """Add recalled messages, and fit thoughts to the provider; a dry run keeps nothing."""
        return await self._ties.tied(job, await self._recaller.recalled(job, decision), keep=keep)

    def forget(self, tenant: str, conversation_id: str | None = None) -> None:
        """Forget one conversation after a deletion, also at another process, or all of the tenant."""
        self._recaller.forget(tenant, conversation_id)
        self._performer.memory.forget(tenant, conversation_id)
        self._performer.paces.forget(tenant, conversation_id)

    def forget_summaries(self, tenant: str, ids: Sequence[str]) -> None:
        """Forget summaries that are not in use any more, which the database knows. Other processes remember them for
        `memory.SECONDS` at most, and go by that only while the database is away."""
        self._performer.memory.forget_chunks(tenant, ids)

    async def _use_store(self, progress: Progress) -> bool:
        """Go from the look at the store to the compaction. False if the database is away."""
        progress.begin_anew()
        try:
            looks_again = True
            while looks_again:
                await self._read(progress)
                await self._mask(progress)
                looks_again = not await progress.is_settled() and await self._compact(progress)
        except StoreUnavailable as error:
            if isinstance(error, StatementRefused):
                progress.give_up_asking()
            progress.attempted(Compaction((), Outcome.STORE_AWAY))
        return not progress.without_store

    async def _read(self, progress: Progress, *, bind: bool = True) -> None:
        job = progress.job
        mask, last = job.policy.mask, job.conversation.chain.digests[-1]
        what = job.place, job.series, job.policy.summarises, mask.key if mask else None, last, bind
        # Once for a crowd, such as one that was woken together: they would wait for each other at the database.
        stored = await self._shared.do(what, lambda: self._find(job, bind=bind))
        self._performer.memory.keep(job.tenant, stored.chunks)
        pinned = progress.case.with_pins(job.pinned(stored.pins))
        progress.read(pinned.with_chunks(stored.chunks).with_boundaries(stored.boundaries))

    async def _find(self, job: Job, *, bind: bool) -> _Stored:
        chain, cuts, mask = job.conversation.chain, job.conversation.cut_digests, job.policy.mask
        pins = await self._store.request_steps(pins_in, job.tenant, job.conversation_id, chain.digests, bind=bind)
        chunks = await self._store.request(chunks_in, job.tenant, job.series, cuts) if job.policy.summarises else ()
        # Only results are masked.
        masks = mask is not None and job.conversation.history.holds_answers
        found = await self._store.request(masks_in, job.tenant, mask.key, cuts) if mask is not None and masks else ()
        boundaries = (Boundary(chain.positions[digest], chain.positions[start]) for digest, start in found)
        return _Stored(pins, tuple(chunks), tuple(boundaries))

    async def _mask(self, progress: Progress) -> None:
        if (boundary := await self._due_mask(progress)) is not None:
            masked = progress.case.with_boundaries([boundary])
            await self._keep_masks(progress, masked)
            progress.case = masked

    async def _keep_masks(self, progress: Progress, case: Case) -> None:
        """Store the boundaries that this case has beyond those that were found."""
        job, known = progress.job, progress.case.boundaries
        for boundary in case.boundaries:
            if boundary not in known and job.policy.mask is not None:
                place = job.conversation.chain[boundary.position], job.conversation.chain[boundary.start]
                await self._store.request_change(
                    keep_mask, job.tenant, job.policy.mask.key, *place, job.conversation_id
                )

    async def _due_mask(self, progress: Progress) -> Boundary | None:
        """Return the boundary that is due and worth what it costs."""
        boundary = await progress.due_mask()
        progress.mask_is_put_off = boundary is not None and await self._economy.puts_off_mask(progress, boundary)
        return None if progress.mask_is_put_off else boundary

    async def _compact(self, progress: Progress) -> bool:
        """Make the due compaction, or wait for whoever makes it. True if it is worth looking again."""
        compaction = await self._attempt(progress)
        progress.attempted(compaction)
        return _goes_on(compaction)

    async def _attempt(self, progress: Progress) -> Compaction:
        plan = await progress.due_plan()
        if plan is None or (not progress.own and await self._economy.puts_off(progress, plan)):
            return _not_begun(progress, plan)
        if why := await self._objections(progress, plan):
            return Compaction((), Outcome.NOT_BEGUN, why)
        if (without := await self._without(progress, plan)) is not None:
            await self._keep_masks(progress, without)
            progress.case = without
            return Compaction((), Outcome.IN_BACKGROUND)
        return await self._leased.make(progress, plan)

    async def _without(self, progress: Progress, plan: Plan) -> Case | None:
        """Return the case that is sent without this compaction, which is then made in the background; None: it waits.

        It is not shortened for a compaction that would find no room there.
        """
        job, case = progress.job, progress.case
        if not progress.may_go_on or progress.is_announced or not self.comes_back(job):
            return None
        if self._performer.setbacks.failed_last(job.undertaking(plan)) or self._performer.quotas.are_tokens_spent(
            job.tenant
        ):
            return None
        at_most = most_without(job.budget)
        shortens = self._room.is_taken(job.place) or self._room.is_free(job.tenant, job.size)
        return await progress.beside(lambda: without_summary(case, at_most, shortens=shortens))

    async def _objections(self, progress: Progress, plan: Plan) -> Reasons:
        """Return the reasons why the compaction is not begun."""
        job = progress.job
        if self._performer.tasks.draining:
            return because(Code.STOPPING)
        tokens, budget = job.conversation.tokens, job.budget
        often = budget.trigger.counts_turns
        if (blocked := self._breaker.blocks(job.history(), tokens, budget.limit, often=often)) is not None:
            return because(blocked)
        can_do_without = await progress.can_do_without_summary()
        paused = self._performer.setbacks.pauses(job.undertaking(plan))
        if paused is not None and (can_do_without or job.policy.prune):
            return (*paused, Reason(Code.SUMMARY_FAILED_LATELY))
        if can_do_without and await self._is_in_vain(progress):
            return because(Code.HISTORY_CHANGES_EVERY_TURN)
        return _no_more_rounds(progress)

    async def _is_in_vain(self, progress: Progress) -> bool:
        job, conversation, store = progress.job, progress.job.conversation, self._store
        digests = [message.digest for message in conversation.transcript.messages]
        recent = await store.request(recent_first_chunks, job.tenant, job.series, digests, CHANGES_WITHIN_SECONDS)
        found = await progress.beside(lambda: successions(conversation, recent, job.conversation_id, named=job.named))
        if not found:
            return False
        possible = tuple(possible_heads(conversation.transcript, conversation.chain))
        heads = await store.heads(job.tenant, possible)
        return await progress.beside(lambda: changes_every_turn(conversation, found, [head.digest for head in heads]))

    async def _judge(self, progress: Progress) -> None:
        """Judge what the request's own compactions freed: after too little, the history is left alone for a while."""
        before = progress.before
        if before is None or progress.without_store or not progress.made or not progress.own[-1].is_whole:
            return
        job, after = progress.job, progress.case
        sizes = await progress.beside(lambda: (before.widest_view.tokens, after.widest_view.tokens))
        self._breaker.finished(job.history(), job.conversation.tokens, *sizes, job.budget.limit)

    async def _settle(self, progress: Progress) -> Decision:
        case, why, in_vain = progress.case, progress.why, progress.is_announced and not progress.made

        def decide() -> Decision:
            before, settled = progress.steps, settle(case, why, in_vain=in_vain)
            return replace(settled, steps=(*before, *settled.steps), budget=case.budget)

        return await progress.beside(decide)


def _reused(progress: Progress, decision: Decision) -> int:
    """Count the summaries that were there before the request."""
    made = {chunk.id for chunk in progress.made}
    return sum(chunk.id not in made for chunk in decision.view.chunks) if decision.view else 0


def _no_more_rounds(progress: Progress) -> Reasons:
    """Return the reasons why the request begins no further compaction; none if it may."""
    last = progress.own[-1] if progress.own else None
    if last is None or (len(progress.own) < ROUNDS and last.outcome is not Outcome.DELETED):
        return ()
    return last.reasons or because(Code.SUMMARIES_NOT_ENOUGH)


def _goes_on(compaction: Compaction) -> bool:
    """True if it is worth looking again."""
    match compaction.outcome:
        case Outcome.MADE:
            # It may not be enough yet: where a history far too long was read in parts.
            return bool(compaction.made)
        case Outcome.LEASE_LOST | Outcome.DELETED | Outcome.AWAITED:
            return True
        case _:
            return False


def _not_begun(progress: Progress, plan: Plan | None) -> Compaction:
    """Compaction that did not begin: nothing can be summarised, or it is put off, as a mask may have been."""
    if plan is None and not progress.mask_is_put_off:
        return Compaction((), Outcome.NOTHING_TO_SUMMARISE)
    return Compaction((), Outcome.NOT_BEGUN, because(Code.PUT_OFF_FOR_COST))


def _imagine(flow: Flow) -> Compaction:
    """Drive a flow without acting: every summary is as long as it may be, and is kept nowhere."""

    def perform(effect: Effect) -> Reply:
        match effect:
            case Summarise(request):
                return SummaryAnswer(" a" * (request.max_tokens // 2))
            case Together(flows):
                return tuple(map(_imagine, flows))
            case StoreChunk(chunk):
                return chunk
            case _:
                return None

    return drive(flow, perform)
