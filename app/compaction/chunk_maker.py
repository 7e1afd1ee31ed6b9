"""The maker of chunks: each planned chunk is asked for, checked and kept; too many are folded."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Protocol, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from app.compaction.chunk_builder import ChunkBuilder, Draft, SummaryCall
from app.compaction.chunks import Compaction, Failure, Outcome, SummaryAnswer, SummaryChunk, was_refused
from app.compaction.plan import FOLD_MINIMUM, Span, fold_weight, folds_in, halves, released_tokens
from app.conversation.reasons import Reasons

T = TypeVar("T")
SIDE_BY_SIDE = 8
"""Summary calls of one compaction that are under way at once: providers limit how much may be for one key."""
MAX_HALVINGS = 3
_Written = tuple[SummaryChunk, SummaryAnswer]
"""A chunk that is not kept yet, and the answer that it was made of."""


class SummaryCalls(Protocol):
    """Calls to the summariser, and the store of chunks."""

    async def ask(self, call: SummaryCall) -> SummaryAnswer | Failure: ...
    async def keep(self, chunk: SummaryChunk, answer: SummaryAnswer) -> SummaryChunk | None:
        """Keep the chunk of an answer. Returns it as stored; None if the right to store it was lost."""

    def reject(self, answer: SummaryAnswer) -> None:
        """Note that an answer cannot be kept."""

    async def compute(self, step: Callable[[], T]) -> T:
        """Run a step over the whole history: off the event loop where that is long."""


async def make_chunks(builder: ChunkBuilder, calls: SummaryCalls) -> Compaction:
    """Make the planned chunks, one call each. If all chunks together would exceed `budget.fold`, the new one takes the
    older ones in. If that is too much for one call, the older ones are folded afterwards.

    Where a summary stands for the whole history, each call goes on from the chunk before it.
    """
    plan, budget, options, transcript = builder.plan, builder.budget, builder.options, builder.conversation.transcript
    maker = ChunkMaker(await calls.compute(builder.with_words), calls)
    if options.cumulative:
        return await maker.continue_summary()
    if folds_in(builder.conversation, plan, budget, options):
        folded_in = await maker.keep(await maker.update(plan.spans[0], plan.base.chunks))
        if not folded_in.overflow:
            return folded_in
    spans = plan.missing
    summarised = await (maker.summarise(*spans) if len(spans) == 1 else maker.summarise_parts(spans))
    path = [*plan.base.chunks, *sorted((*plan.made, *summarised.made), key=lambda chunk: chunk.first_index)]
    held = max(fold_weight(path), 2 * released_tokens(transcript, path[:-1]))
    if not summarised.is_whole or held <= budget.fold:
        return summarised
    folded = await maker.fold(path[:-1])
    return replace(folded, made=(*summarised.made, *folded.made))


class ChunkMaker(Struct, frozen=True):
    builder: ChunkBuilder
    calls: SummaryCalls

    async def summarise_parts(self, spans: Sequence[Span]) -> Compaction:
        """Make the chunks of several spans, side by side.

        A summariser that answers too briefly once does so each time, and each call is paid for. So of the parts whose
        answer was refused one is asked for once more, and the others only if that helped.
        """
        parts = await _side_by_side([partial(self.summarise, span, once=True) for span in spans])
        refused = [place for place, part in enumerate(parts) if not part.made and was_refused(part.why)]
        if refused and all(part.is_whole or place in refused for place, part in enumerate(parts)):
            again = [partial(self.summarise, spans[place], refused=parts[place].why) for place in refused]
            parts[refused[0]] = await again[0]()
            if parts[refused[0]].is_whole:
                for place, part in zip(refused[1:], await _side_by_side(again[1:]), strict=True):
                    parts[place] = part
        return _joined(parts)

    async def summarise(
        self, span: Span, halvings: int = 0, refused: Reasons = (), *, once: bool = False
    ) -> Compaction:
        """Make the chunk of a span; two or more where it turns out too large for one. `refused` and `once` as for
        `write`."""
        draft = await self.calls.compute(lambda: self.builder.of_messages(span))
        whole = await self.keep(await self.write(draft, refused, once=once))
        parts = halves(self.builder.conversation.transcript, span) if whole.overflow and halvings < MAX_HALVINGS else ()
        if len(parts) < 2 or (once and was_refused(whole.why)):
            return whole
        made: tuple[SummaryChunk, ...] = ()
        for part in parts:
            half = await self.summarise(part, halvings + 1)
            made += half.made
            if not half.is_whole:
                return replace(half, made=made)
        return Compaction(made)

    async def continue_summary(self) -> Compaction:
        """Make chunks that each stand for everything before their end, from the one before and what follows that.

        Only the last one is kept: shorter ones would be used until they do not fit, and the tail not be the one
        planned.
        """
        plan, halvings = self.builder.plan, 0
        prior, spans = plan.base.chunks[-1:], deque(plan.spans)
        latest: _Written | None = None
        while spans:
            span = spans.popleft()
            written = await self.update(span, prior)
            if isinstance(written, Failure):
                parts = halves(self.builder.conversation.transcript, span) if written.overflow else ()
                if len(parts) < 2 or halvings == MAX_HALVINGS:
                    kept = await self.keep(latest or written)
                    return replace(kept, outcome=Outcome.FAILED, why=written.why) if kept.is_whole else kept
                halvings += 1
                spans.extendleft(reversed(parts))
            else:
                prior, latest = written[:1], written
        return await self.keep(latest) if latest else Compaction(())

    async def update(self, span: Span, prior: Sequence[SummaryChunk]) -> _Written | Failure:
        return await self.write(await self.calls.compute(lambda: self.builder.of_update(span, prior)))

    async def fold(self, chunks: Sequence[SummaryChunk]) -> Compaction:
        """Fold the chunks in one call, or in as few as fit, then the results again while too many."""
        options = self.builder.options
        at_most = min(options.input_tokens, options.source_tokens or options.input_tokens)
        made: list[SummaryChunk] = []
        todo = list(chunks)
        while len(todo) >= FOLD_MINIMUM:
            groups = _groups(todo, at_most)
            folds = [partial(self._fold, group, continued=group is not groups[-1]) for group in groups]
            folded = _joined(await _side_by_side(folds))
            made += [chunk for chunk in folded.made if chunk not in todo]
            if not folded.is_whole or len(groups) == 1 or fold_weight(folded.made) <= self.builder.budget.fold:
                return replace(folded, made=tuple(made))
            todo = list(folded.made)
        return Compaction(tuple(made))

    async def _fold(self, chunks: Sequence[SummaryChunk], *, continued: bool) -> Compaction:
        """Fold several chunks into one that stands for them; a single one stays as it is."""
        if len(chunks) < FOLD_MINIMUM:
            return Compaction(tuple(chunks))
        return await self.keep(
            await self.write(await self.calls.compute(lambda: self.builder.of_fold(chunks, continued=continued)))
        )

    async def write(self, draft: Draft, refused: Reasons = (), *, once: bool = False) -> _Written | Failure:
        """Ask for a chunk's text, and once more where the answer is refused. `refused`: why an earlier answer was, so
        that only the second call is made; with `once` only the first."""
        while True:
            call = self.builder.call(draft, refused)
            answer = await self.calls.ask(call)
            if isinstance(answer, Failure):
                return answer
            read = await self.calls.compute(partial(self.builder.read, draft, call, answer))
            if isinstance(read, SummaryChunk):
                return read, answer
            self.calls.reject(answer)
            if once or refused:
                return read
            refused = read.why

    async def keep(self, written: _Written | Failure) -> Compaction:
        if isinstance(written, Failure):
            return Compaction((), Outcome.FAILED, written.why, written.overflow)
        stored = await self.calls.keep(*written)
        return Compaction((), Outcome.LEASE_LOST) if stored is None else Compaction((stored,))


async def _side_by_side(parts: Sequence[Callable[[], Awaitable[Compaction]]]) -> list[Compaction]:
    free = asyncio.Semaphore(SIDE_BY_SIDE)

    async def one(part: Callable[[], Awaitable[Compaction]]) -> Compaction:
        async with free:
            return await part()

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(part)) for part in parts]
    return [task.result() for task in tasks]


def _joined(parts: Sequence[Compaction]) -> Compaction:
    made = tuple(chunk for part in parts for chunk in part.made)
    first_failed = next((part for part in parts if not part.is_whole), None)
    return replace(first_failed, made=made) if first_failed else Compaction(made)


def _groups(chunks: Sequence[SummaryChunk], at_most: int) -> list[list[SummaryChunk]]:
    """Neighbouring chunks in groups the summariser can read; each of at least two, so that a fold always gains."""
    groups: list[list[SummaryChunk]] = [[]]
    for chunk in chunks:
        if len(groups[-1]) >= FOLD_MINIMUM and sum(chunk.tokens for chunk in groups[-1]) + chunk.tokens > at_most:
            groups.append([])
        groups[-1].append(chunk)
    return groups
