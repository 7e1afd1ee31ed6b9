"""Leased compaction: made under a lease, in a task the application owns.

Theory: any request of a conversation may find that a compaction is due, at any replica, and usually several do at once.
The one that acquires the lease of its range makes it; the others wait for its *result*, not for the lease, and look
again. The lease is a row with an expiry and not a lock of the database: the work takes minutes of a model's time, in
which no connection and no transaction may be held, and a holder that dies is waited for until the row expires and no
longer. A holder keeps its row alive by a beat. One that could not, because it was cut off or stopped, may come back
after somebody else took over, so each taking raises the row's epoch, and what is stored names the epoch it was granted:
an older one is refused. So a lost lease means that the work was in vain, never that anything is wrong: another one's
result is there or on its way, and the request looks again, three times at most. One loss is of another kind: a deletion
of the conversation revokes the lease, and then nothing is to be made for it again. The lease saves money; what keeps a
history right is that chunks are content-addressed. If the client leaves, or its time is over, only its waiting ends:
the summary is paid for, and the next request has use for it.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, TypeVar

import structlog
from msgspec import Struct

from app.compaction.background import RequestRates
from app.compaction.chunk_builder import SummaryCall
from app.compaction.chunks import Compaction, Failure, Outcome, SummaryAnswer, SummaryChunk, visible_text
from app.compaction.exact_values import kept_share
from app.compaction.memory import ChunkMemory, CompactionBackoff
from app.compaction.plan import Plan
from app.compaction.request import ChatRequest, Place
from app.compaction.summariser_client import PAUSED, Summariser, SummaryRouting
from app.compaction.summarizer import SummaryWork, make_chunks
from app.conversation.reasons import Code, because, hint_for, joined
from app.providers.ledger import Ledger
from app.runtime.bounded import Lineage
from app.runtime.caches import Erased
from app.runtime.tasks import OwnedTasks, Work
from app.store import Lease, Store, StoreUnavailable
from app.store.chunks import chunks_in
from app.store.conversations import read_pulse
from app.store.leases import TooMany, is_revoked
from app.telemetry.metrics import Metrics
from app.tokens.usage import SummaryStats

SIDE_BY_SIDE = 8
"""Summary calls of one compaction that are under way at once: providers limit how much may be for one key."""
ATTEMPTS = 2
"""Time for all calls for one summary, with retries and other models, as a multiple of one call's timeout."""


class CompactionStart(Struct, frozen=True):
    """A compaction that is announced to the client."""

    id: str
    messages: int

    @classmethod
    def of(cls, plan: Plan) -> CompactionStart:
        return cls(f"cmp_{plan.range.through_digest.hex()[:24]}", plan.messages)


OnStart = Callable[[CompactionStart], None]


def ignore_start(_: CompactionStart) -> None:
    """Announce nothing."""


class CompactionJob(Struct, frozen=True):
    work: SummaryWork
    known: tuple[SummaryChunk, ...]
    """Chunks that it was planned with."""
    is_again: bool
    """True if another process's compaction brought nothing of use: all that waited for it plan again now, and one of
    them is to make it."""
    announce: Callable[[], None]
    """Called when the summary is about to be made."""
    deadline: float
    """Time by the monotonic clock, in seconds, until which the request waits for it."""

    @property
    def plan(self) -> Plan:
        return self.work.plan

    @property
    def seconds_left(self) -> float:
        return max(0.0, self.deadline - monotonic())


class Quotas:
    """Compactions that each tenant has under way in this process; those of all processes are counted by leases."""

    def __init__(self, compactions: int | None = None) -> None:
        """`compactions`: the most conversations of one tenant; None for any number."""
        self.compactions = compactions
        self._under_way: dict[str, Counter[str]] = {}
        """Number of compactions under way, by tenant and conversation."""

    def begin(self, tenant: str, conversation_id: str) -> bool:
        """Begin a compaction, to be followed by `end`; False if it may not begin. A crowd of requests of one
        conversation counts once: most of them only wait for the one that makes the summary."""
        own = self._under_way.get(tenant, Counter())
        if self.compactions is not None and conversation_id not in own and len(own) >= self.compactions:
            return False
        own[conversation_id] += 1
        self._under_way[tenant] = own
        return True

    def end(self, tenant: str, conversation_id: str) -> None:
        own = self._under_way[tenant]
        own[conversation_id] -= 1
        if not own[conversation_id]:
            del own[conversation_id]
        if not own:
            del self._under_way[tenant]


class Running(Struct, frozen=True, eq=False):
    messages: int
    """Number of messages that it summarises."""
    ahead: bool
    """True if it is made for requests to come: nobody waits for it."""
    began: float
    """Start by the clock of `RunningCompactions`, in seconds."""


class RunningCompactions:
    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._running: dict[Place, list[Running]] = {}
        self._watching: dict[Place, list[asyncio.Event]] = {}

    @contextmanager
    def during(self, place: Place, messages: int, *, ahead: bool) -> Iterator[None]:
        """Show a compaction from its start to its end, whatever comes of it."""
        running = Running(messages, ahead, self._clock())
        self._running.setdefault(place, []).append(running)
        self._wake(place)
        try:
            yield
        finally:
            left = [each for each in self._running[place] if each is not running]
            if left:
                self._running[place] = left
            else:
                del self._running[place]
            self._wake(place)

    def at(self, place: Place) -> tuple[Running, ...]:
        """Return the compactions of a conversation, the oldest first."""
        return tuple(self._running.get(place, ()))

    def told(self, place: Place) -> tuple[int, float, bool] | None:
        """Return what whoever watches is told: how many messages are being summarised, and of the oldest compaction for
        how many seconds, and whether it is made ahead. None if there is none."""
        if not (running := self.at(place)):
            return None
        first, messages = running[0], sum(each.messages for each in running)
        return messages, round(self._clock() - first.began, 1), first.ahead

    @contextmanager
    def watched(self, place: Place) -> Iterator[asyncio.Event]:
        """Yield an event that is set whenever a compaction begins or ends there; the watcher clears it."""
        event = asyncio.Event()
        self._watching.setdefault(place, []).append(event)
        try:
            yield event
        finally:
            left = [each for each in self._watching[place] if each is not event]
            if left:
                self._watching[place] = left
            else:
                del self._watching[place]

    def _wake(self, place: Place) -> None:
        for event in self._watching.get(place, ()):
            event.set()


log = structlog.get_logger("steno.compactor")
T = TypeVar("T")
Keep = Callable[[SummaryChunk], Awaitable[SummaryChunk | None]]
"""Function that keeps a chunk and returns it as kept; None if the right to that was lost."""


@dataclass(slots=True)
class CompactionRunner:
    summariser: Summariser
    routing: SummaryRouting
    tasks: OwnedTasks
    work: Work
    ledger: Ledger
    quotas: Quotas
    metrics: Metrics
    rates: RequestRates
    memory: ChunkMemory
    backoff: CompactionBackoff = field(default_factory=CompactionBackoff)
    running: RunningCompactions = field(default_factory=RunningCompactions)

    def start(
        self, request: ChatRequest, plan: Plan, running: Coroutine[Any, Any, Compaction]
    ) -> asyncio.Task[Compaction]:
        """Start a compaction that the quotas have begun, in a task the application owns."""
        task = self.tasks.start(self._tracked(request, plan, running), f"compaction {CompactionStart.of(plan).id}")
        task.add_done_callback(lambda _: self.quotas.end(*request.place))
        return task

    async def _tracked(self, request: ChatRequest, plan: Plan, running: Coroutine[Any, Any, Compaction]) -> Compaction:
        """Run a compaction that the inspector shows meanwhile."""
        with self.running.during(request.place, plan.messages, ahead=request.purpose == "background"):
            return await running

    @staticmethod
    async def result(job: CompactionJob, task: asyncio.Task[Compaction]) -> Compaction | None:
        """Return the result of the request's own compaction; None if it takes too long."""
        # Waited for, not awaited: a client that leaves, or a deadline, ends the wait and not the work.
        await asyncio.wait({task}, timeout=job.seconds_left)
        return task.result() if task.done() else None

    async def make_chunks(self, job: CompactionJob, request: ChatRequest, keep: Keep) -> Compaction:
        calls = _Calls(self, request, keep, job.announce)
        try:
            return await make_chunks(job.work, calls)
        finally:
            calls.record_unkept()

    def ended(
        self,
        request: ChatRequest,
        plan: Plan,
        key: Lineage,
        compaction: Compaction,
        began: float,
    ) -> None:
        """Count and log a compaction that came to an end, and learn from it. `began` is the monotonic clock's."""
        self.backoff.learn(key, compaction)
        seconds = monotonic() - began
        self.metrics.compacted(request.purpose, compaction.outcome, compaction.reasons, len(compaction.made), seconds)
        self._log(request, plan, compaction, seconds)

    def _log(self, request: ChatRequest, plan: Plan, compaction: Compaction, seconds: float) -> None:
        reasons = compaction.reasons
        if reasons == (PAUSED,):
            return  # The summariser reports it, once, with a count.
        tell = log.info if compaction.is_whole else log.warning
        tell(
            "compacted" if compaction.is_whole else "compaction failed",
            request_id=request.request_id,
            conversation_id=request.conversation_id,
            model=request.measure.rules.summary.model or request.model,
            messages=plan.messages,
            chunks=len(compaction.made),
            seconds=round(seconds, 2),
            purpose=request.purpose,
            reason=joined(reasons),
            remedy=None if compaction.is_whole else hint_for(reasons),
        )


class _Calls:
    """Calls for the summaries of one compaction, each of which is recorded in the ledger once."""

    def __init__(
        self, runner: CompactionRunner, request: ChatRequest, keep: Keep, announce: Callable[[], None]
    ) -> None:
        self._runner = runner
        self._request = request
        self._keep = keep
        self.announce = announce
        self._free = asyncio.Semaphore(SIDE_BY_SIDE)
        self._answered: dict[int, _Answered] = {}
        """Calls that are not in the ledger yet, by the identity of the answer, until it is known whether it is kept."""

    async def ask(self, call: SummaryCall) -> SummaryAnswer | Failure:
        runner, request, prefix = self._runner, self._request, None
        if (view := call.request.shown) is not None:
            prefix = await self.compute(lambda: runner.routing.prefix(request, view))
        began = monotonic()
        deadline, routes = began + runner.summariser.timeout_seconds * ATTEMPTS, runner.routing.routes(request)
        reply = await runner.summariser.ask(call.request, routes, prefix, deadline, request.tenant, request.request_id)
        runner.metrics.summary_called(() if isinstance(reply, SummaryAnswer) else reply.why)
        if isinstance(reply, SummaryAnswer):
            seconds = monotonic() - began
            runner.rates.summarised((reply.upstream, reply.model), seconds)
            self._answered[id(reply)] = _Answered(request, reply, call, seconds)
        return reply

    async def keep(self, chunk: SummaryChunk, answer: SummaryAnswer) -> SummaryChunk | None:
        kept = await self._keep(chunk)
        if kept is not None:
            self._answered.pop(id(answer)).record(self._runner.ledger, kept)
        return kept

    def reject(self, answer: SummaryAnswer) -> None:
        self._answered.pop(id(answer)).record(self._runner.ledger, None)

    async def side_by_side(self, parts: Sequence[Callable[[], Awaitable[Compaction]]]) -> list[Compaction]:
        async def one(part: Callable[[], Awaitable[Compaction]]) -> Compaction:
            async with self._free:
                return await part()

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(part)) for part in parts]
        return [task.result() for task in tasks]

    async def compute(self, step: Callable[[], T]) -> T:
        return await self._request.beside(self._runner.work.do, step)

    def record_unkept(self) -> None:
        for answered in self._answered.values():
            answered.record(self._runner.ledger, None)
        self._answered.clear()


@dataclass(slots=True)
class _Answered:
    request: ChatRequest
    answer: SummaryAnswer
    call: SummaryCall
    seconds: float

    def record(self, ledger: Ledger, kept: SummaryChunk | None) -> None:
        """Record the call's own tokens: savings are seen in the request that it was made for, and in later ones.
        `kept`: what came of it; if two replicas made the same summary at once, the stored one."""
        request, answer, ratio = self.request, self.answer, self.request.budget.line.ratio
        ledger.record(
            tenant=request.tenant,
            conversation_id=request.conversation_id,
            request_id=request.request_id,
            turn=request.turn,
            purpose=request.purpose,
            upstream=answer.upstream,
            format_=answer.format,
            model=answer.model,
            status=200,
            tokens=answer.usage,
            bill=answer.bill,
            values_kept=kept_share(self.call.values, visible_text(answer.text)),
            made=SummaryStats(
                seconds=round(self.seconds, 3),
                replaced=round(ratio * self.call.stands_for),
                summary=round(ratio * kept.tokens) if kept else None,
                summary_id=kept.id if kept else None,
            ),
        )


HEARTBEAT_SECONDS = 5.0
MISSED_BEATS = 2
"""Missed beats in a row after which the lease counts as lost."""
RACE_SECONDS = 0.25


class _LeaseLost(Exception):
    """The lease was lost: another holder may have it now."""


@dataclass(slots=True)
class LeasedCompaction:
    store: Store
    runner: CompactionRunner
    holder: str
    """Name of this process."""

    async def make(self, request: ChatRequest, job: CompactionJob) -> Compaction | None:
        """Take the lease and make a compaction, in a task that the application owns. The result may not have begun, or
        take too long; None if another process has the lease. Raises `StoreUnavailable`."""
        plan = job.plan
        if job.is_again:
            await asyncio.sleep(min(job.seconds_left, RACE_SECONDS * random.random()))
        quotas = self.runner.quotas
        if not quotas.begin(*request.place):
            return Compaction((), Outcome.NOT_BEGUN, because(Code.TOO_MANY_COMPACTIONS))
        lease = None
        try:
            chain = request.conversation.chain.positions
            lease = await self.store.take_lease(*request.place, plan.range, chain, self.holder, quotas.compactions)
        finally:
            if not isinstance(lease, Lease):
                quotas.end(*request.place)
        if isinstance(lease, TooMany):
            return Compaction((), Outcome.NOT_BEGUN, because(Code.TOO_MANY_COMPACTIONS))
        if not isinstance(lease, Lease):
            return None
        running = self._run(request, job, lease)
        compaction = await self.runner.result(job, self.runner.start(request, plan, running))
        return compaction or Compaction((), Outcome.TAKES_TOO_LONG)

    async def wait(self, request: ChatRequest, job: CompactionJob) -> bool:
        """Wait for the result of another process's compaction, not for the lease; False if it takes too long. Raises
        `StoreUnavailable`."""
        job.announce()
        place, began = (*request.place, job.plan.range, request.conversation.chain.positions), monotonic()
        try:
            while job.seconds_left:
                if await self.store.lease_ended(*place, job.seconds_left):
                    return True
            return False
        finally:
            self.runner.metrics.lease_waits.observe(monotonic() - began)

    async def _run(self, request: ChatRequest, job: CompactionJob, lease: Lease) -> Compaction:
        """Run from the lease to its release, also where no request waits any more."""
        plan, began = job.plan, monotonic()
        compaction = Compaction((), Outcome.LEASE_LOST)  # Unless one of the branches below comes to its end.

        async def keep(chunk: SummaryChunk) -> SummaryChunk | None:
            if stored := await self.store.keep_chunks(lease, [chunk]):
                self.runner.memory.add(request.place, request.series, stored[0])
                return stored[0]
            return None

        try:
            async with asyncio.TaskGroup() as group:
                beating = group.create_task(self._beat(lease))
                if request.purpose == "background" and not await self._is_stored(request):
                    compaction = Compaction((), Outcome.DELETED)
                elif await self._is_overtaken(request, job.known):
                    compaction = Compaction((), Outcome.AWAITED)
                else:
                    compaction = await self.runner.make_chunks(job, request, keep)
                beating.cancel()
        except* _LeaseLost:
            pass
        except* StoreUnavailable:
            compaction = Compaction((), Outcome.STORE_AWAY)
        finally:
            await self._release(lease)
        if compaction.outcome is Outcome.AWAITED:
            return compaction  # Nothing was begun, so that there is nothing to log, count or learn from.
        if compaction.outcome is Outcome.LEASE_LOST and await self._is_revoked(lease):
            compaction = Compaction((), Outcome.DELETED)
            self.runner.memory.forget(Erased(*request.place))
        self.runner.ended(request, plan, request.compaction_key(plan), compaction, began)
        return compaction

    async def _is_stored(self, request: ChatRequest) -> bool:
        """False if the conversation was deleted before the lease was taken, of which a deletion could not know."""
        # As for REST, after what waits to be stored: a conversation that just began may be in it.
        pulse = await self.store.rest(read_pulse, *request.place, self.store.lease_ttl_ms)
        return pulse.updated_at is not None

    async def _is_overtaken(self, request: ChatRequest, known: Sequence[SummaryChunk]) -> bool:
        """True if a chunk was stored between our look and our lease: it may be the one that is to be made."""
        ids = {chunk.id for chunk in known}
        found = await self.store.request(chunks_in, request.tenant, request.series, request.conversation.cut_digests)
        return any(chunk.id not in ids for chunk in found)

    async def _beat(self, lease: Lease) -> None:
        """Keep the lease alive. Raises `_LeaseLost` once it is lost, because the work is then in vain."""
        missed = 0
        while missed < MISSED_BEATS:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            try:
                if not await self.store.renew_lease(lease):
                    break
                missed = 0
            except StoreUnavailable:
                missed += 1
        raise _LeaseLost

    async def _release(self, lease: Lease) -> None:
        try:
            await self.store.release_lease(lease)
        except StoreUnavailable:
            log.warning("lease not released, it expires by itself", conversation_id=lease.conversation_id)

    async def _is_revoked(self, lease: Lease) -> bool:
        """True if the conversation was deleted: then a summary for the request is not to be made again for it."""
        try:
            return await self.store.task(is_revoked, lease)
        except StoreUnavailable:
            return False
