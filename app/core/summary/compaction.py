"""Compaction: the planned chunks are made, checked, kept, and folded where they grow too many.

It is a generator (see `flow`): what it wants done it yields, and goes on with the reply.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Sequence

from msgspec.structs import replace

from app.core.limits.budget import Budget
from app.core.reasons import Reasons
from app.core.summary.brief import SummaryBrief
from app.core.summary.cut import FOLD_MINIMUM, words_room
from app.core.summary.flow import Announce, Compaction, Effect, Failure, Flow, Reply, Together
from app.core.summary.gate import was_refused
from app.core.summary.maker import ChunkMaker
from app.core.summary.plan import Plan, folds_in
from app.core.summary.spans import Span, fold_weight, halves, released_tokens, summary_tokens
from app.core.summary.user_words import own_entries
from app.core.view.chunks import SummaryChunk
from app.core.view.view import Conversation, View
from app.tokens.estimate import Count

MAX_HALVINGS = 3


def compact(
    conversation: Conversation,
    conversation_id: str,
    plan: Plan,
    budget: Budget,
    settings: SummaryBrief,
    count: Count,
    sent: View | None = None,
) -> Flow:
    """Make the planned chunks, one call each. Where they exceed their share with a new one, that takes the others in,
    in the same call; where one call cannot, all but the newest are folded afterwards. `sent`: the view over the plan's
    base as the provider knows it.

    Where a summary stands for the whole history, each call goes on from the chunk before it.
    """
    maker = ChunkMaker(conversation, conversation_id, plan, budget, settings, count, sent)
    if settings.user_words:
        start = plan.spans[0].start if plan.spans else 0
        said = own_entries(conversation.transcript, start, plan.spans[-1].stop) if plan.spans else ()
        room = words_room(conversation, plan.base, plan.spans, budget, settings)
        maker = replace(maker, said=said, words_room=room)
    yield Announce(plan.messages)
    if settings.cumulative:
        return (yield from _go_on(maker, plan))
    if folds_in(conversation, plan, budget, settings):
        folded_in = yield from maker.keep((yield from maker.update(plan.spans[0], plan.base.chunks)))
        if not isinstance(folded_in, Failure):
            return Compaction((folded_in,))
        if not folded_in.overflow:
            return _as_far_as((), folded_in)
    spans = plan.missing
    summarised = yield from (_summarised(maker, *spans) if len(spans) == 1 else _in_parts(maker, spans))
    path = [*plan.base.chunks, *sorted((*plan.made, *summarised.made), key=lambda chunk: chunk.first_index)]
    held = max(fold_weight(path), 2 * released_tokens(conversation.transcript, path[:-1]))
    if not summarised.is_whole or held <= budget.fold:
        return summarised
    folded = yield from _fold(maker, path[:-1])
    return replace(folded, made=(*summarised.made, *folded.made))


def _as_far_as(made: Sequence[SummaryChunk], failure: Failure) -> Compaction:
    """Compaction as far as it came before a failure."""
    return Compaction(tuple(made), failure.outcome, failure.why)


def _side_by_side(flows: Sequence[Flow]) -> Flow:
    if len(flows) == 1:
        return (yield from flows[0])
    return _joined((yield from _together(flows)))


def _together(flows: Sequence[Flow]) -> Generator[Effect, Reply, list[Compaction]]:
    replies = (yield Together(tuple(flows))) if flows else ()
    return list(replies) if isinstance(replies, tuple) else []


def _joined(parts: Sequence[Compaction]) -> Compaction:
    made = tuple(chunk for part in parts for chunk in part.made)
    first_failed = next((part for part in parts if not part.is_whole), None)
    return replace(first_failed, made=made) if first_failed else Compaction(made)


def _in_parts(maker: ChunkMaker, spans: Sequence[Span]) -> Flow:
    """The chunks of several spans, side by side.

    Whoever answers too briefly once does so each time, and each call is paid for. So of the parts whose answer was
    refused one is asked for once more, and the others only if that helped.
    """
    parts = yield from _together([_summarised(maker, span, once=True) for span in spans])
    refused = [place for place, part in enumerate(parts) if not part.made and was_refused(part.why)]
    if refused and all(part.is_whole or place in refused for place, part in enumerate(parts)):
        again = [_summarised(maker, spans[place], refused=parts[place].why) for place in refused]
        parts[refused[0]] = yield from again[0]
        if parts[refused[0]].is_whole:
            for place, part in zip(refused[1:], (yield from _together(again[1:])), strict=True):
                parts[place] = part
    return _joined(parts)


def _summarised(maker: ChunkMaker, span: Span, halvings: int = 0, refused: Reasons = (), *, once: bool = False) -> Flow:
    """The chunk of a span; two or more where it turns out too large for one.

    `refused`: why its first answer could not be kept. `once`: what is refused is not asked for again.
    """
    result = yield from maker.summarise(span, refused, once=once)
    if not isinstance(result, Failure):
        return Compaction((result,))
    if once and was_refused(result.why):
        return _as_far_as((), result)
    parts = halves(maker.conversation.transcript, span) if result.overflow and halvings < MAX_HALVINGS else (span,)
    if len(parts) == 1:
        return _as_far_as((), result)
    made: list[SummaryChunk] = []
    for part in parts:
        half = yield from _summarised(maker, part, halvings + 1)
        made.extend(half.made)
        if not half.is_whole:
            return replace(half, made=tuple(made))
    return Compaction(tuple(made))


def _go_on(maker: ChunkMaker, plan: Plan) -> Flow:
    """Make chunks that each stand for everything before their end, from the one before and what follows that.

    Only the last one is kept: shorter ones would be used until they do not fit, and the tail not be the one planned.
    """
    prior = plan.base.chunks[-1:]
    reached: SummaryChunk | None = None
    failure: Failure | None = None
    spans = deque(plan.spans)
    halvings = 0
    while spans and failure is None:
        span = spans.popleft()
        result = yield from maker.update(span, prior)
        if not isinstance(result, Failure):
            prior, reached = (result,), result
            continue
        parts = halves(maker.conversation.transcript, span) if result.overflow and halvings < MAX_HALVINGS else (span,)
        if len(parts) == 1:
            failure = result
        else:
            halvings += 1
            spans.extendleft(reversed(parts))
    if reached is not None:
        kept = yield from maker.keep(reached)
        if isinstance(kept, Failure):
            return _as_far_as((), kept)
        reached = kept
    made = (reached,) if reached else ()
    return _as_far_as(made, failure) if failure else Compaction(made)


def _fold(maker: ChunkMaker, chunks: Sequence[SummaryChunk]) -> Flow:
    """Fold the chunks in one call, or in as few as fit, then the results again while too many."""
    settings = maker.settings
    at_most = min(settings.input_tokens, settings.source_tokens or settings.input_tokens)
    made: list[SummaryChunk] = []
    todo = list(chunks)
    while len(todo) >= FOLD_MINIMUM:
        groups = _groups(todo, at_most)
        folded = yield from _side_by_side([_folded(maker, group, group is not groups[-1]) for group in groups])
        made += [chunk for chunk in folded.made if chunk not in todo]
        if not folded.is_whole or len(groups) == 1 or fold_weight(folded.made) <= maker.budget.fold:
            return replace(folded, made=tuple(made))
        todo = list(folded.made)
    return Compaction(tuple(made))


def _folded(maker: ChunkMaker, chunks: Sequence[SummaryChunk], continued: bool) -> Flow:
    """Fold several chunks into one that stands for them; a single one stays as it is."""
    if len(chunks) < FOLD_MINIMUM:
        return Compaction(tuple(chunks))
    result = yield from maker.fold(chunks, continued)
    return _as_far_as((), result) if isinstance(result, Failure) else Compaction((result,))


def _groups(chunks: Sequence[SummaryChunk], at_most: int) -> list[list[SummaryChunk]]:
    """Neighbouring chunks in groups the summariser can read; each of at least two, so that a fold always gains."""
    groups: list[list[SummaryChunk]] = [[]]
    for chunk in chunks:
        if len(groups[-1]) >= FOLD_MINIMUM and summary_tokens(groups[-1]) + chunk.tokens > at_most:
            groups.append([])
        groups[-1].append(chunk)
    return groups
