"""The compactor decides what is sent for a request: it does what core's `decide` asks for, or imagines it.

How a compaction is made is in `leased`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from time import monotonic
from typing import Any

from app.compaction.breakers import HistoryBreaker, Setbacks
from app.compaction.leased import LeasedCompaction
from app.compaction.performer import Course, OnStart, Performer, nobody
from app.compaction.quotas import BackgroundRoom
from app.compaction.recaller import Recaller
from app.compaction.request import ChatRequest
from app.core.deciding import effects
from app.core.deciding.attempt import Answer, Attempt, Imagine, Mode
from app.core.deciding.decide import decide
from app.core.deciding.effects import Background, Lately, Prices, StoreAway, Stored
from app.core.reasons import Reasons
from app.core.stages.ladder import Decision, Status
from app.core.summary.brief import SummaryBrief
from app.core.summary.flow import Compaction, Effect, Flow, Reply, StoreChunk, Summarise, Together, drive, drive_async
from app.core.summary.gate import SummaryAnswer
from app.core.tokens.economy import COMMON_PRICE, rates_of
from app.core.view.chunks import FirstChunk, SummaryChunk
from app.core.view.mask import Boundary
from app.core.view.view import View
from app.runtime.caches import Caches
from app.runtime.erased import Erased
from app.runtime.shared import SharedWork
from app.store import Store, StoreUnavailable
from app.store.chunks import chunks_in, recent_first_chunks
from app.store.pins import pins_in
from app.store.places import keep_mask, masks_in

CHANGES_WITHIN_SECONDS = 3_600.0

_Act = Callable[[Course, Any], Awaitable[object]]
"""Performance of one kind of effect; returns the reply."""


class Compactor:
    def __init__(self, store: Store, performer: Performer, room: BackgroundRoom, holder: str, caches: Caches) -> None:
        """`holder`: name of this process."""
        self._store = store
        self._performer = performer
        self._room = room
        self._refused_shapes = Setbacks(tolerated=0)
        self._breaker = HistoryBreaker()
        self._shared: SharedWork[Stored] = SharedWork()
        self.under_way = performer.under_way
        self._leased = LeasedCompaction(store, performer, holder)
        self._recaller = Recaller(performer.work, caches)
        self._acts: Mapping[type, _Act] = {
            effects.Read: lambda course, _: self._read(course.request),
            effects.KeepMask: self._keep_mask,
            effects.ReadRewritten: self._rewritten,
            effects.ReadHeads: self._heads,
            effects.Brief: self._brief,
            effects.AskPrices: self._prices,
            effects.LookBack: self._lately,
            effects.LookAhead: self._background,
            effects.ShapeRefusals: self._shape_refusals,
            effects.Make: self._leased.make,
            effects.Wait: lambda course, asked: self._leased.wait(course, asked.plan),
            effects.Postpone: _nothing,
            effects.Remember: self._remembered,
            effects.Freed: self._freed,
            effects.Recall: self._recalled,
        }
        self._imagined: Mapping[type, _Act] = {
            **self._acts,
            effects.Read: lambda course, _: self._read(course.request, bind=False),
            effects.KeepMask: _nothing,
            effects.ReadRewritten: _nothing,
            effects.LookBack: self._lately_imagined,
            effects.Make: self._imagined_compaction,
            effects.Postpone: self._imagined_chunks,
        }

    async def decide(self, request: ChatRequest, mode: Mode, on_start: OnStart = nobody) -> Decision:
        """Decide what is sent. `on_start` is called when a summary is really being made for it.

        Raises `StoreUnavailable` where a dry run, or what a client asked for, needs the database.
        """
        attempt = Attempt(request, mode)
        course = Course(request, attempt, on_start, monotonic() + request.wait_seconds)
        acts = self._imagined if isinstance(mode, Imagine) else self._acts

        async def perform(effect: object) -> object:
            return await acts[type(effect)](course, effect)

        beside = partial(request.beside, self._performer.work.do)
        try:
            decision = await drive_async(decide(attempt), perform, beside, thrown=(StoreUnavailable,))
        except StoreUnavailable:
            raise
        except StoreAway as away:
            raise StoreUnavailable(str(away)) from away
        if isinstance(mode, Answer):
            self._performer.metrics.reused(_reused(decision))
        return decision

    def is_likely_to_continue(self, request: ChatRequest) -> bool:
        """True if another request is expected soon, so that its summary is worth making in the background."""
        is_enabled = request.measure.rules.compaction.background.enabled
        return is_enabled and self._performer.rates.of(request.place).is_likely_to_continue

    def shape_refused(self, request: ChatRequest, status: Status, why: Reasons) -> None:
        """Remember that views of this status are refused for their shape: the step below was answered."""
        self._refused_shapes.failed(request.history(status), why)

    def forget(self, erased: Erased) -> None:
        """Forget what was erased."""
        for memory in (self._recaller, self._performer.memory, self._performer.rates):
            memory.forget(erased)

    def forget_summaries(self, tenant: str, ids: Sequence[str]) -> None:
        """Forget summaries that were edited or deleted. Other processes do when they read the conversation next."""
        self._performer.memory.forget_chunks(tenant, ids)

    async def _read(self, request: ChatRequest, *, bind: bool = True) -> Stored:
        mask, last = request.policy.mask, request.conversation.chain.digests[-1]
        what = request.place, request.series, request.policy.summarises, mask.key if mask else None, last, bind
        # Once for a crowd, such as one that was woken together: they would wait for each other at the database.
        stored = await self._shared.do(what, lambda: self._find(request, bind=bind))
        self._performer.memory.keep(request.place, request.series, stored.chunks)
        return stored

    async def _find(self, request: ChatRequest, *, bind: bool) -> Stored:
        conversation, policy, tenant = request.conversation, request.policy, request.tenant
        chain, cuts, mask = conversation.chain, conversation.cut_digests, policy.mask
        pins = await self._store.request_steps(pins_in, tenant, request.conversation_id, chain.digests, bind=bind)
        chunks = await self._store.request(chunks_in, tenant, request.series, cuts) if policy.summarises else ()
        # Only results are masked, and media.
        history = conversation.history
        masks = mask is not None and (history.holds_answers or history.holds_media)
        found = await self._store.request(masks_in, tenant, mask.key, cuts) if mask is not None and masks else ()
        boundaries = (Boundary(chain.positions[digest], chain.positions[start]) for digest, start in found)
        return Stored(pins, tuple(chunks), tuple(boundaries))

    async def _keep_mask(self, course: Course, asked: effects.KeepMask) -> None:
        request, boundary = course.request, asked.boundary
        if (mask := request.policy.mask) is not None:
            chain = request.conversation.chain
            place = chain[boundary.position], chain[boundary.start]
            await self._store.request_change(keep_mask, request.tenant, mask.key, *place, request.conversation_id)

    async def _rewritten(self, course: Course, _: effects.ReadRewritten) -> Sequence[FirstChunk]:
        request = course.request
        digests = [message.digest for message in request.conversation.transcript.messages]
        return await self._store.request(
            recent_first_chunks, request.tenant, request.series, digests, CHANGES_WITHIN_SECONDS
        )

    async def _heads(self, course: Course, asked: effects.ReadHeads) -> Sequence[bytes]:
        return [head.digest for head in await self._store.heads(course.request.tenant, asked.digests)]

    async def _brief(self, course: Course, _: effects.Brief) -> SummaryBrief:
        return self._performer.writing.brief(course.request, warm=self._is_warm(course.request))

    async def _prices(self, course: Course, asked: effects.AskPrices) -> Prices:
        request, price_of = course.request, self._performer.ledger.price_of
        price, summariser = price_of(request.model), asked.summariser and price_of(asked.summariser)
        if price is None or (asked.summariser and summariser is None):
            # One of them alone would be in another currency.
            price, summariser = COMMON_PRICE, asked.summariser and COMMON_PRICE
        is_own = self._performer.writing.is_by_own_model(request)
        return Prices(rates_of(price, warm=self._is_warm(request)), summariser or None, is_own)

    def _is_warm(self, request: ChatRequest) -> bool:
        return self._performer.ledger.is_warm(request.tenant, request.conversation_id, request.model)

    async def _lately(self, course: Course, asked: effects.LookBack) -> Lately:
        request = course.request
        tokens, budget, undertaking = request.conversation.tokens, request.budget, request.undertaking(asked.plan)
        return Lately(
            stopping=self._performer.tasks.draining,
            blocked=self._breaker.blocks(request.history(), tokens, budget.room),
            paused=self._performer.setbacks.pauses(undertaking),
            failed_last=self._performer.setbacks.failed_last(undertaking),
        )

    async def _background(self, course: Course, _: effects.LookAhead) -> Background:
        request = course.request
        return Background(
            comes_back=self.is_likely_to_continue(request),
            has_room=self._room.is_taken(request.place) or self._room.is_free(request.tenant, request.size),
        )

    async def _lately_imagined(self, course: Course, asked: effects.LookBack) -> Lately:
        """The same without what speaks against a compaction: a dry run says what one would bring."""
        return Lately(failed_last=self._performer.setbacks.failed_last(course.request.undertaking(asked.plan)))

    async def _shape_refusals(self, course: Course, asked: effects.ShapeRefusals) -> Reasons | None:
        return self._refused_shapes.pauses(course.request.history(asked.status))

    async def _remembered(self, course: Course, _: effects.Remember) -> Sequence[SummaryChunk]:
        request = course.request
        return self._performer.memory.chunks_in(request.place, request.series, request.conversation.cut_digests)

    async def _freed(self, course: Course, asked: effects.Freed) -> None:
        request = course.request
        tokens, room = request.conversation.tokens, request.budget.room
        self._breaker.finished(request.history(), tokens, asked.before, asked.after, room)

    async def _recalled(self, course: Course, asked: effects.Recall) -> View:
        return await self._recaller.recalled(course.request, asked.view, asked.policy)

    async def _imagined_compaction(self, course: Course, asked: effects.Make) -> Compaction:
        return await course.request.beside(self._performer.work.do, lambda: _imagine(asked.flow))

    async def _imagined_chunks(self, course: Course, asked: effects.Postpone) -> Sequence[SummaryChunk]:
        return (await course.request.beside(self._performer.work.do, lambda: _imagine(asked.flow))).made


async def _nothing(_: Course, __: object) -> tuple[()]:
    """Do nothing, and reply that nothing was found."""
    return ()


def _reused(decision: Decision) -> int:
    """Count the summaries that were there before the request."""
    made = {chunk.id for chunk in decision.made}
    return sum(chunk.id not in made for chunk in decision.view.chunks) if decision.view else 0


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
