"""Planning: which messages a due compaction summarises, and in how many parts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct

from app.compaction.budget import Budget
from app.compaction.chunks import ChunkRange, SummaryChunk
from app.compaction.select import Path, build_view, unmasked_tokens, usable
from app.compaction.spans import (
    SMALLEST_PART,
    Span,
    fold_weight,
    quoted_tokens,
    released_tokens,
    replaced_tokens,
    split_span,
    summary_tokens,
)
from app.compaction.summary_options import SummaryBrief
from app.compaction.tail import FOLD_MINIMUM, choose_cut, expected_view, will_fold
from app.compaction.view import Conversation
from app.tokens.estimate import is_answer

MOST_PARTS = 64
"""Summaries that one compaction makes: of a history that takes more, the rest is for the compactions after it."""

MINIMUM_GAIN = 0.10
"""A compaction that frees less of the request is no progress: it would be due again a turn later."""


class Plan(Struct, frozen=True):
    """A due compaction: it extends `base` by one chunk for each of `spans`, and folds where they grow too many.

    The chunks are used together: a view that ends with one of them ends with the last that applies to it. Without
    spans it only folds.
    """

    base: Path
    spans: tuple[Span, ...]
    range: ChunkRange
    """Range that it will cover: the key of its lease."""
    asked: bool = False
    """Requested by a client; it is made whatever it frees."""
    masked: bool = False
    """True if its summariser reads the conversation with the masks it has: without them it does not fit one call."""
    goes_on: bool = False
    """True if the history takes more summaries than one compaction makes: the next one goes on behind it."""
    made: tuple[SummaryChunk, ...] = ()
    """Chunks of some of the spans, behind one that an earlier compaction failed at: they are not made again."""

    @property
    def missing(self) -> tuple[Span, ...]:
        """The spans whose chunks are to be made."""
        made = {(chunk.first_index, chunk.last_index + 1) for chunk in self.made}
        return tuple(span for span in self.spans if (span.start, span.stop) not in made)

    @property
    def messages(self) -> int:
        """How many messages its summaries will stand for; 0 if chunks are only folded."""
        return sum(span.stop - span.start for span in self.spans)


def plan_compaction(
    conversation: Conversation,
    base: Path,
    budget: Budget,
    summary: SummaryBrief,
    series: str,
    masked_before: Callable[[int], int] = lambda _: 0,
    known: Iterable[SummaryChunk] = (),
) -> Plan | None:
    """The compaction that is due after `base`, or None if no summary can make the conversation enough smaller.

    `masked_before` tells how many tokens masks take away between the base and a position. Of the `known` chunks those
    behind the base are taken for their part, unless the parts around them would be too many to make it smaller.
    """
    if summary.cumulative:
        return _plan_cumulative(conversation, base, budget, summary, series)
    start, goes_on, masked = base.covered, False, False
    made: tuple[SummaryChunk, ...] = ()
    cut = choose_cut(conversation, base, budget, summary)
    if cut is None:
        foldable = base.chunks[:-1]
        held = max(fold_weight(base.chunks), 2 * released_tokens(conversation.transcript, foldable))
        if len(foldable) < FOLD_MINIMUM or held <= budget.fold:
            return None
        start, cut = 0, conversation.chain.positions[foldable[-1].through_digest]
        spans: tuple[Span, ...] = ()
    else:
        all_spans, made = _spans(conversation, base, Span(start, cut), summary, known)
        if len(all_spans) > 1 and is_shown(conversation, base, Span(start, cut), summary, masked_before(cut)):
            all_spans, made, masked = (Span(start, cut),), (), True
        spans = all_spans[:MOST_PARTS]
        cut, goes_on = spans[-1].stop, spans != all_spans
        if not _worth_it(conversation, base, spans, budget, summary, is_last=not goes_on):
            return plan_compaction(conversation, base, budget, summary, series, masked_before) if made else None
    through = ChunkRange(series, conversation.chain[start], conversation.chain[cut])
    return Plan(base, spans, through, masked=masked, goes_on=goes_on, made=made)


def folds_in(conversation: Conversation, plan: Plan, budget: Budget, summary: SummaryBrief) -> bool:
    """Whether one call makes the plan's summary and the fold that it makes due: a chunk over everything so far."""
    if not summary.folds_in or len(plan.spans) != 1:
        return False
    (span,), chunks = plan.spans, plan.base.chunks
    read = quoted_tokens(conversation.transcript, span.start, span.stop) + summary_tokens(chunks)
    most = min(summary.input_tokens, summary.source_tokens or summary.input_tokens)
    fits = plan.masked or read + released_tokens(conversation.transcript, chunks) <= most
    return fits and will_fold(conversation, plan.base, span.stop, 1, budget)


def cut_at(conversation: Conversation, chunks: Iterable[SummaryChunk], position: int) -> int:
    """Position at which a compaction can end that was asked for up to a position: there, or at the nearest cut before
    it; 0 for nowhere. Not between summaries that are used together."""
    positions = conversation.chain.positions
    inside = {positions.get(chunk.through_digest) for chunk in chunks if chunk.continued}
    return max((cut for cut in conversation.transcript.cuts if cut <= position and cut not in inside), default=0)


def plan_asked(
    conversation: Conversation,
    base: Path,
    summary: SummaryBrief,
    series: str,
    cut: int,
    known: Iterable[SummaryChunk] = (),
) -> Plan | None:
    """The compaction of everything before a cut, or as much of it as one makes; None where
    nothing is left."""
    if cut <= base.covered:
        return None
    start = 0 if summary.strategy == "full" else base.covered
    spans, made = _spans(conversation, base if start else Path(), Span(start, cut), summary, known)
    if len(spans) > MOST_PARTS and start < base.covered:
        spans, made = _spans(conversation, base, Span(base.covered, cut), summary)
    spans = spans[:MOST_PARTS]
    first = 0 if summary.cumulative else base.covered
    through = conversation.chain[spans[-1].stop]
    return Plan(base, spans, ChunkRange(series, conversation.chain[first], through), asked=True, made=made)


def _plan_cumulative(
    conversation: Conversation, base: Path, budget: Budget, summary: SummaryBrief, series: str
) -> Plan | None:
    """One summary over everything before the tail; what is read for it is everything, or what the last one lacks."""
    empty = Path()
    cut = choose_cut(conversation, base, budget, summary)
    if cut is None:
        return None
    start = 0 if summary.strategy == "full" else base.covered
    spans, _ = _spans(conversation, base if start else empty, Span(start, cut), summary)
    if len(spans) > MOST_PARTS and start < base.covered:  # Too long to be read anew each time.
        start = base.covered
        spans, _ = _spans(conversation, base, Span(start, cut), summary)
    is_last = len(spans) <= MOST_PARTS
    spans = spans[:MOST_PARTS]
    cut = spans[-1].stop
    if replaced_tokens(conversation.transcript, Span(0, cut), cut) < SMALLEST_PART:
        return None
    view = unmasked_tokens(conversation, base)
    expected = expected_view(conversation, empty, cut, 1, budget, summary)
    if not _frees_enough(conversation, view, expected, cut, budget, is_last=is_last):
        return None
    return Plan(base, spans, ChunkRange(series, conversation.chain[0], conversation.chain[cut]))


def _spans(
    conversation: Conversation, base: Path, span: Span, summary: SummaryBrief, known: Iterable[SummaryChunk] = ()
) -> tuple[tuple[Span, ...], tuple[SummaryChunk, ...]]:
    """The span whole, where the summariser is shown the conversation up to its end; else as it can read it, and the
    known chunks of some of these parts."""
    if is_shown(conversation, base, span, summary):
        return (span,), ()
    made = _behind(conversation, span, () if summary.cumulative else known)
    spans = split_span(conversation.transcript, span, summary, [*made])
    return spans, tuple(made[part] for part in spans[:MOST_PARTS] if part in made)


def _behind(conversation: Conversation, span: Span, known: Iterable[SummaryChunk]) -> dict[Span, SummaryChunk]:
    """Known chunks of messages of the span that do not overlap. None of its first ones, which the base would have; and
    none at its end that is only used with another one behind it."""
    found: dict[Span, SummaryChunk] = {}
    free = span.start + 1
    for start, stop, chunk in sorted(usable(conversation, known), key=lambda edge: (edge[0], -edge[1])):
        goes_on = chunk.continued and stop == span.stop
        if free <= start and stop <= span.stop and chunk.level == 0 and not goes_on:
            found[Span(start, stop)], free = chunk, stop
    return found


def is_shown(conversation: Conversation, base: Path, span: Span, summary: SummaryBrief, masked: int = 0) -> bool:
    """Whether the summariser is to read the conversation itself up to the span's end, and can. `masked`: tokens that
    masks take away from it.

    Not where instructions stand in the middle of it: it would follow them. In a transcript they are quoted.
    """
    if summary.style != "prefix" or conversation.transcript.first_instruction < span.stop:
        return False
    if not may_continue(conversation, span, summary):
        return False
    return shown_size(conversation, base, span) - masked <= summary.shown_tokens


def may_continue(conversation: Conversation, span: Span, summary: SummaryBrief) -> bool:
    """Whether a user's message may follow the span: for some summarisers only behind an answer."""
    return not summary.alternates or is_answer(conversation.transcript.messages[span.stop - 1])


def shown_size(conversation: Conversation, base: Path, span: Span) -> int:
    """Tokens of the conversation up to the span's end: the base's summaries, and the span as the client wrote it."""
    return build_view(conversation, base).tokens - conversation.transcript.tokens(span.stop)


def _worth_it(
    conversation: Conversation,
    base: Path,
    spans: Sequence[Span],
    budget: Budget,
    summary: SummaryBrief,
    *,
    is_last: bool,
) -> bool:
    """Whether the compaction frees a tenth of the request and brings it under the trigger.

    Over the limit, or where others have to follow it, whether it frees anything.
    """
    cut = spans[-1].stop
    if any(replaced_tokens(conversation.transcript, span, cut) < SMALLEST_PART for span in spans):
        return False
    view = unmasked_tokens(conversation, base)
    expected = expected_view(conversation, base, cut, len(spans), budget, summary)
    return _frees_enough(conversation, view, expected, cut, budget, is_last=is_last)


def _frees_enough(
    conversation: Conversation, view: int, expected: int, cut: int, budget: Budget, *, is_last: bool
) -> bool:
    if view > budget.limit or not is_last:  # Over the limit the choice is between less and nothing.
        return expected < view
    tail = conversation.transcript.tokens(cut)
    return view - expected >= MINIMUM_GAIN * view and not budget.trigger.fires(expected, tail)
