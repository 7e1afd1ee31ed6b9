"""Planning: which messages a due compaction summarises, and in how many parts."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Literal

from app.core.history.messages import Transcript
from app.core.limits.budget import Budget
from app.core.stages.case import Case
from app.core.stages.policy import CUMULATIVE, Strategy
from app.core.view.chunks import ChunkRange, SummaryChunk
from app.core.view.mask import Boundary, MaskSettings
from app.core.view.view import Conversation, Masking, Path, build_view, pinned_tokens, size_after

FOLD_MINIMUM = 2
"""Folding fewer chunks than this makes nothing smaller."""

QUOTE_TOKENS = 6
"""What quoting a message in a transcript costs beyond what the message costs in a prompt: its heading."""

AIMED_SHARE = 0.5
"""A summary is asked to take at most this share of what it replaces, so that the gate does not find it too large."""

SMALLEST_PART = 100
"""Fewer tokens leave no room between the shortest summary and one that is clearly smaller than what it replaces."""

MOST_PARTS = 64
"""Summaries that one compaction makes: of a history that takes more, the rest is for the compactions after it."""

MINIMUM_GAIN = 0.10
"""A compaction that frees less of the request is no progress: it would be due again a turn later."""


FLAT = MaskSettings()


@dataclass(frozen=True, slots=True)
class SummarySettings:
    """How chunks are made, and what the summariser can read, in tokens."""

    model: str
    prompt: str
    input_tokens: int
    """One call reads a transcript of at most this."""
    part_tokens: int
    """What exceeds one call is read in parts of at most this."""
    source_tokens: int | None = None
    """One summary stands for at most this, one of everything aside: a larger range becomes several. None: no bound."""
    update_prompt: str = ""
    """Where there is a summary to go on from; the same prompt if empty."""
    focus: str = ""
    """What this conversation's summaries are to look after, in the client's words."""
    ratio: float = 1.0
    """The summariser's own tokens for each one we estimate: its answers are capped in those."""
    strategy: Strategy = "additive"
    style: Literal["transcript", "prefix"] = "transcript"
    """Whether the summariser is shown quoted text, or the conversation itself, which its provider has in its cache."""
    shown_tokens: int = 0
    """The conversation itself is shown up to this size, in one call: it is what was sent a turn ago, and fitted."""
    failed_results: int = 0
    """Failed tool calls that are appended to a summary as they are, because models leave them out; at most so many."""

    @property
    def cumulative(self) -> bool:
        """Whether a summary stands for the whole history before the tail."""
        return self.strategy in CUMULATIVE


@dataclass(frozen=True, slots=True)
class Span:
    """The messages from `start` up to `stop`, to be summarised as one chunk."""

    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Plan:
    """A due compaction: it extends `base` by one chunk for each of `spans`, and folds where they grow too many.

    The chunks are used together: a view that ends with one of them ends with the last that applies to it. Without
    spans it only folds.
    """

    base: Path
    spans: tuple[Span, ...]
    range: ChunkRange
    """What it will cover: the key of its lease."""

    @property
    def messages(self) -> int:
        """How many messages its summaries will stand for; 0 if chunks are only folded."""
        return sum(span.stop - span.start for span in self.spans)


def plan_compaction(
    conversation: Conversation, base: Path, budget: Budget, summary: SummarySettings, series: str
) -> Plan | None:
    """The compaction that is due after `base`, or None if no summary can make the conversation enough smaller."""
    if summary.cumulative:
        return _plan_cumulative(conversation, base, budget, summary, series)
    start = base.covered
    cut = choose_cut(conversation, base, budget, summary)
    if cut is None:
        foldable = base.chunks[:-1]
        if len(foldable) < FOLD_MINIMUM or summary_tokens(base.chunks) <= budget.fold:
            return None
        start, cut = 0, conversation.chain.positions[foldable[-1].through_digest]
        spans: tuple[Span, ...] = ()
    else:
        all_spans = _spans(conversation, base, Span(start, cut), summary)
        spans = all_spans[:MOST_PARTS]
        cut = spans[-1].stop
        if not _worth_it(conversation, base, spans, budget, summary, is_last=spans == all_spans):
            return None
    return Plan(base, spans, ChunkRange(series, conversation.chain[start], conversation.chain[cut]))


def _plan_cumulative(
    conversation: Conversation, base: Path, budget: Budget, summary: SummarySettings, series: str
) -> Plan | None:
    """One summary over everything before the tail; what is read for it is everything, or what the last one lacks."""
    empty = Path()
    cut = choose_cut(conversation, base, budget, summary)
    if cut is None:
        return None
    start = 0 if summary.strategy == "full" else base.covered
    spans = _spans(conversation, base if start else empty, Span(start, cut), summary)
    if len(spans) > MOST_PARTS and start < base.covered:  # Too long to be read anew each time.
        start = base.covered
        spans = _spans(conversation, base, Span(start, cut), summary)
    is_last = len(spans) <= MOST_PARTS
    spans = spans[:MOST_PARTS]
    cut = spans[-1].stop
    if replaced_tokens(conversation.transcript, Span(0, cut), cut) < SMALLEST_PART:
        return None
    view = _present_view(conversation, base)
    expected = _expected_view(conversation, empty, cut, 1, budget, summary)
    if not _frees_enough(conversation, view, expected, cut, budget, is_last=is_last):
        return None
    return Plan(base, spans, ChunkRange(series, conversation.chain[0], conversation.chain[cut]))


def _spans(conversation: Conversation, base: Path, span: Span, summary: SummarySettings) -> tuple[Span, ...]:
    """The span whole, where the summariser is shown the conversation up to its end; else as it can read it."""
    if is_shown(conversation, base, span, summary):
        return (span,)
    return split_span(conversation.transcript, span, summary)


def is_shown(conversation: Conversation, base: Path, span: Span, summary: SummarySettings) -> bool:
    """Whether the summariser is to read the conversation itself up to the span's end, and can.

    Not where instructions stand in the middle of it: it would follow them. In a transcript they are quoted.
    """
    if summary.style != "prefix" or conversation.transcript.first_instruction < span.stop:
        return False
    return shown_size(conversation, base, span) <= summary.shown_tokens


def shown_size(conversation: Conversation, base: Path, span: Span) -> int:
    """Tokens of the conversation up to the span's end: the base's summaries, and the span as the client wrote it."""
    return build_view(conversation, base).tokens - conversation.transcript.tokens(span.stop)


def due_mask(case: Case) -> Boundary | None:
    """The boundary that is due in this case, or None."""
    settings = case.policy.mask
    if case.masking is None or settings is None:
        return None
    if settings.pressure is None and (not case.policy.summarises or case.least_view is not None):
        return None
    return plan_mask(case.conversation, case.widest_path, case.budget, case.masking, settings)


def plan_mask(
    conversation: Conversation,
    base: Path,
    budget: Budget,
    masking: Masking,
    settings: MaskSettings = FLAT,
) -> Boundary | None:
    """The boundary that makes a summary after `base` unnecessary for now; None without one.

    It is moved rarely, and then for a gain, as far as the target needs and no further: as many of the latest results
    stay whole as there is room for. Where masks go by pressure it is set from that on, too, and everything before the
    last unit is masked. What the model has not answered in text stays whole anyway.
    """
    transcript = conversation.transcript
    held = max(masking.usable(base.covered), default=base.covered)
    ahead = transcript.cuts[bisect_right(transcript.cuts, held) :]
    if not ahead:
        return None
    view = _present_view(conversation, base)

    def masked(position: int) -> int:
        return view - masking.masks.saved(base.covered, position)

    before = masked(held)
    pressed = settings.pressure is not None and (
        before - conversation.instruction_tokens >= settings.pressure * budget.limit
    )
    enough = bisect_left(ahead, -budget.target, key=lambda position: -masked(position))
    if enough == len(ahead) and not pressed:
        return None
    position = ahead[enough] if settings.pressure is None else ahead[-1]
    if before - masked(position) < max(1, settings.minimum_gain * before):
        return None
    return Boundary(position, base.covered)


def _worth_it(
    conversation: Conversation,
    base: Path,
    spans: Sequence[Span],
    budget: Budget,
    summary: SummarySettings,
    *,
    is_last: bool,
) -> bool:
    """Whether the compaction frees a tenth of the request and brings it under the trigger.

    Over the limit, or where others have to follow it, whether it frees anything.
    """
    cut = spans[-1].stop
    if any(replaced_tokens(conversation.transcript, span, cut) < SMALLEST_PART for span in spans):
        return False
    view = _present_view(conversation, base)
    expected = _expected_view(conversation, base, cut, len(spans), budget, summary)
    return _frees_enough(conversation, view, expected, cut, budget, is_last=is_last)


def _frees_enough(
    conversation: Conversation, view: int, expected: int, cut: int, budget: Budget, *, is_last: bool
) -> bool:
    if view > budget.limit or not is_last:  # Over the limit the choice is between less and nothing.
        return expected < view
    tail = conversation.transcript.tokens(cut)
    after = size_after(conversation, cut, expected, budget.trigger.tail_turns, tail)
    return view - expected >= MINIMUM_GAIN * view and not budget.trigger.fires(after)


def _expected_view(
    conversation: Conversation, base: Path, cut: int, parts: int, budget: Budget, summary: SummarySettings
) -> int:
    """The view after a compaction up to `cut`: summaries as large as they may be, folded where they will be."""
    transcript = conversation.transcript
    replaced = replaced_tokens(transcript, Span(base.covered, cut), cut)
    held, new = summary_tokens(base.chunks), min(parts * budget.summary, int(AIMED_SHARE * replaced))
    folds = held + new > budget.fold and len(base.chunks) + parts > FOLD_MINIMUM
    summaries = (1 + _parts(held + new, summary)) * budget.summary if folds else held + new
    carried = base.tokens - held + transcript.carried_tokens(base.covered, cut, cut)
    pinned = pinned_tokens(conversation, cut)
    return conversation.instruction_tokens + summaries + carried + pinned + transcript.tokens(cut)


def _parts(tokens: int, summary: SummarySettings) -> int:
    """How many summaries stand for so many tokens."""
    if summary.cumulative or summary.source_tokens is None:
        return 1
    return max(1, ceil(tokens / summary.source_tokens))


def _present_view(conversation: Conversation, base: Path) -> int:
    """The view over the chunks there are, unmasked."""
    pinned = pinned_tokens(conversation, base.covered)
    return conversation.instruction_tokens + base.tokens + pinned + conversation.transcript.tokens(base.covered)


def choose_cut(conversation: Conversation, base: Path, budget: Budget, summary: SummarySettings) -> int | None:
    """Where the verbatim tail begins: as early as its share allows, later until the view meets the target.

    First between turns, then inside the last one, between units, its user message kept; None if nothing is left to
    summarise before the last unit.
    """
    transcript = conversation.transcript
    cuts = [cut for cut in transcript.cuts if cut > base.covered]
    if not cuts:
        return None
    # A summary of everything stands for what the base's chunks stand for too.
    kept = Path() if summary.cumulative else base
    user = transcript.last_user
    always = next(iter(transcript.turn_starts[-1 - budget.tail_turns :]), 0)
    for cut in _tails(transcript, cuts, always, budget.tail_fill):
        tail = transcript.tokens(cut) + (transcript.tokens_of(user) if 0 <= user < cut else 0)
        parts = _parts(quoted_tokens(transcript, base.covered, cut), summary)
        expected = _expected_view(conversation, kept, cut, parts, budget, summary)
        # Of more turns than must stay, and inside a turn, at most half of what may follow a summary is left, or the
        # next turn, or an agent's next step, would fire the trigger again.
        since = (1 + (cut > user or cut < always)) * transcript.tokens(cut)
        after = size_after(conversation, cut, expected, budget.trigger.tail_turns, since)
        if cut < always:
            after = replace(after, turns=2 * after.turns, messages=2 * after.messages)
        if tail <= budget.tail and expected <= budget.target and not budget.trigger.fires(after):
            return cut
    return cuts[-1]


def _tails(transcript: Transcript, cuts: Sequence[int], always: int, fill: int) -> list[int]:
    """Where the tail may begin, the largest first: at `always`, or earlier while it has at most `fill` tokens.

    A turn that leaves most of the fill unused because it is too long for it is cut between its units: what an agent has
    just done is what it goes on from.
    """
    turns = transcript.turn_starts
    fitting = bisect_left(cuts, -fill, key=lambda cut: -transcript.tokens(cut))
    whole = bisect_left(turns, cuts[fitting]) if fitting < len(cuts) else len(turns)
    is_used = whole < len(turns) and 2 * transcript.tokens(turns[whole]) >= fill
    next_turn = turns[whole] if whole < len(turns) else len(transcript)
    between_units = () if is_used else cuts[fitting : bisect_left(cuts, next_turn)]
    first = min((always, *turns[whole : whole + 1], *between_units))
    inside_last_turn = cuts[bisect_right(cuts, transcript.last_user) :]
    return sorted({*turns[bisect_left(turns, first) :], *between_units, *inside_last_turn} & {*cuts})


def split_span(transcript: Transcript, span: Span, summary: SummarySettings) -> tuple[Span, ...]:
    """The span in as few parts as the summariser can read and a summary may stand for, of about one size.

    Cut between turns where one begins near, else between units. A single unit larger than a part stays whole: it is
    shown to the summariser shortened. What is left before or after one may be too little for a summary of its own, and
    goes with its neighbour.
    """
    inside = [cut for cut in transcript.cuts if span.start < cut < span.stop]
    turns = [start for start in transcript.turn_starts if span.start < start < span.stop]
    at_most = _largest_part(transcript, span, summary)
    parts: list[Span] = []
    start = span.start
    while (left := quoted_tokens(transcript, start, span.stop)) > at_most:
        even = left / ceil(left / at_most)
        cut = _nearest(transcript, start, turns, even, at_most)
        if cut is None or 2 * quoted_tokens(transcript, start, cut) < even:
            cut = _nearest(transcript, start, inside, even, at_most)
        if cut is None:  # The next unit is larger than a part.
            after = bisect_right(inside, start)
            if after == len(inside):
                break
            cut = inside[after]
        parts.append(Span(start, cut))
        start = cut
    return _with_neighbours(transcript, (*parts, Span(start, span.stop)))


def _largest_part(transcript: Transcript, span: Span, summary: SummarySettings) -> int:
    fits_one_call = quoted_tokens(transcript, span.start, span.stop) <= summary.input_tokens
    readable = summary.input_tokens if fits_one_call else summary.part_tokens
    if summary.cumulative or summary.source_tokens is None:
        return readable
    return min(readable, summary.source_tokens)


def _nearest(transcript: Transcript, start: int, cuts: Sequence[int], size: float, at_most: int) -> int | None:
    """Of the cuts, ascending, the one that makes a part of about that size, and none larger than `at_most`."""

    def quoted(cut: int) -> int:
        return quoted_tokens(transcript, start, cut)

    begin = bisect_right(cuts, start)
    end = bisect_right(cuts, at_most, lo=begin, key=quoted)
    above = bisect_left(cuts, size, lo=begin, hi=end, key=quoted)
    return min(cuts[max(begin, above - 1) : min(end, above + 1)], key=lambda cut: abs(quoted(cut) - size), default=None)


def _with_neighbours(transcript: Transcript, parts: Sequence[Span]) -> tuple[Span, ...]:
    end = parts[-1].stop
    joined: list[Span] = []
    for part in parts:
        smaller = min(replaced_tokens(transcript, each, end) for each in (*joined[-1:], part))
        if joined and smaller < SMALLEST_PART:
            joined[-1] = Span(joined[-1].start, part.stop)
        else:
            joined.append(part)
    return tuple(joined)


def replaced_tokens(transcript: Transcript, span: Span, end: int) -> int:
    """What a summary of the range stands for, in a compaction up to `end`: its messages but those that are carried."""
    return transcript.tokens(span.start, span.stop) - transcript.carried_tokens(span.start, span.stop, end)


def quoted_tokens(transcript: Transcript, start: int, stop: int) -> int:
    """The size of a range as the summariser reads it."""
    return transcript.tokens(start, stop) + QUOTE_TOKENS * (stop - start)


def halves(transcript: Transcript, span: Span) -> tuple[Span, ...]:
    """The span in two parts of about equal size, or as it is where it cannot be cut."""
    cuts = transcript.cuts
    inside = cuts[bisect_right(cuts, span.start) : bisect_left(cuts, span.stop)]
    if not inside:
        return (span,)
    half = transcript.tokens(span.start, span.stop) / 2
    cut = min(inside, key=lambda position: abs(transcript.tokens(span.start, position) - half))
    return Span(span.start, cut), Span(cut, span.stop)


def summary_tokens(chunks: Iterable[SummaryChunk]) -> int:
    return sum(chunk.tokens for chunk in chunks)
