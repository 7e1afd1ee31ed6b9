"""Chunk maker: requests each planned chunk from the summariser, checks and stores it, and folds too many chunks."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Protocol, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from app.compaction.chunk_builder import ChunkBuilder, Draft, SummaryCall
from app.compaction.chunks import Compaction, Failure, Outcome, SummaryAnswer, SummaryChunk
from app.compaction.plan import FOLD_MINIMUM, Span, fold_weight, folds_in, halves, released_tokens
from app.conversation.reasons import Reasons

T = TypeVar("T")
SIDE_BY_SIDE = 8
"""Maximum concurrent summary calls of one compaction: providers limit concurrency per API key."""
MAX_HALVINGS = 3
_Written = tuple[SummaryChunk, SummaryAnswer]
"""Chunk that is not stored yet, and the summariser's answer that it was made from."""


class SummaryCalls(Protocol):
    """Calls to the summariser, and the store of chunks."""

    async def ask(self, call: SummaryCall) -> SummaryAnswer | Failure: ...
    async def keep(self, chunk: SummaryChunk, answer: SummaryAnswer) -> SummaryChunk | None:
        """Store the chunk made from an answer. Return the stored chunk; None if the lease was lost."""

    def reject(self, answer: SummaryAnswer) -> None:
        """Record an answer that is not stored."""

    async def compute(self, step: Callable[[], T]) -> T:
        """Run a step over the whole history, in a worker thread if the history is long."""


async def make_chunks(builder: ChunkBuilder, calls: SummaryCalls) -> Compaction:
    """Make the planned chunks, one summary call each. If all chunks together would exceed `budget.fold`, the new chunk
    replaces the older ones. If that is too much for one call, the older chunks are folded afterwards.

    Cumulative chunks each cover the whole history so far: each call extends the chunk before.
    """
    plan, budget, options, transcript = builder.plan, builder.budget, builder.options, builder.conversation.transcript
    maker = ChunkMaker(await calls.compute(builder.with_words), calls)
    if options.cumulative:
        return await maker.continue_summary()
    if folds_in(builder.conversation, plan, budget, options):
        folded_in = await maker.keep(await maker.update(plan.spans[0], plan.base.chunks))
        if not folded_in.overflow:
            return folded_in
    summarised = _joined(await _side_by_side([partial(maker.summarise, span) for span in plan.missing]))
    path = [*plan.base.chunks, *sorted((*plan.made, *summarised.made), key=lambda chunk: chunk.first_index)]
    held = max(fold_weight(path), 2 * released_tokens(transcript, path[:-1]))
    if not summarised.is_whole or held <= budget.fold:
        return summarised
    folded = await maker.fold(path[:-1])
    return replace(folded, made=(*summarised.made, *folded.made))


class ChunkMaker(Struct, frozen=True):
    builder: ChunkBuilder
    calls: SummaryCalls

    async def summarise(self, span: Span, halvings: int = 0) -> Compaction:
        """Make the chunk of a span, or several chunks if the span is too large for one."""
        draft = await self.calls.compute(lambda: self.builder.of_messages(span))
        whole = await self.keep(await self.write(draft))
        parts = halves(self.builder.conversation.transcript, span) if whole.overflow and halvings < MAX_HALVINGS else ()
        if len(parts) < 2:
            return whole
        made: tuple[SummaryChunk, ...] = ()
        for part in parts:
            half = await self.summarise(part, halvings + 1)
            made += half.made
            if not half.is_whole:
                return replace(half, made=made)
        return Compaction(made)

    async def continue_summary(self) -> Compaction:
        """Make cumulative chunks: each is made from the chunk before and the next span, and covers the history so far.

        Only the last chunk is stored. Later views would use a shorter chunk while it fits, with a longer tail than
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
        """Fold the chunks in as few calls as possible, and fold the results again while they exceed `budget.fold`."""
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
        """Fold several chunks into one; return a single chunk unchanged."""
        if len(chunks) < FOLD_MINIMUM:
            return Compaction(tuple(chunks))
        return await self.keep(
            await self.write(await self.calls.compute(lambda: self.builder.of_fold(chunks, continued=continued)))
        )

    async def write(self, draft: Draft) -> _Written | Failure:
        """Ask the summariser for a chunk's text, and retry once if the answer is rejected."""
        refused: Reasons = ()
        while True:
            call = self.builder.call(draft, refused)
            answer = await self.calls.ask(call)
            if isinstance(answer, Failure):
                return answer
            read = await self.calls.compute(partial(self.builder.read, draft, call, answer))
            if isinstance(read, SummaryChunk):
                return read, answer
            self.calls.reject(answer)
            if refused:
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
    """Group neighbouring chunks for calls of `at_most` input tokens. Only the last group may have one chunk."""
    groups: list[list[SummaryChunk]] = [[]]
    for chunk in chunks:
        if len(groups[-1]) >= FOLD_MINIMUM and sum(chunk.tokens for chunk in groups[-1]) + chunk.tokens > at_most:
            groups.append([])
        groups[-1].append(chunk)
    return groups
