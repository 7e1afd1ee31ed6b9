"""Planning: which messages a due compaction summarises, in how many parts, where the verbatim tail begins, and what the
compaction is worth."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from math import ceil

from msgspec import Struct

from app.compaction.budget import Budget
from app.compaction.chunks import ChunkRange, SummaryChunk
from app.compaction.mask import MaskBoundary, Masking
from app.compaction.policy import SummaryOptions
from app.compaction.select import Path, PlanningState, build_view, pinned_tokens, unmasked_tokens, usable
from app.compaction.user_words import SHARE, WIDE_SHARE, chunk_room, held_tokens
from app.compaction.view import Conversation
from app.conversation.messages import Kind, Transcript
from app.tokens.estimate import is_answer
from app.tokens.usage import Change, Price, Rates, is_worth

QUOTE_TOKENS = 6
"""Tokens that quoting a message in a transcript costs beyond what the message costs in a prompt: its heading."""

SMALLEST_PART = 100
"""Fewer tokens leave no room between the shortest summary and one that is clearly smaller than what it replaces."""

FOLD_MINIMUM = 2
"""Folding fewer chunks than this makes nothing smaller."""
AIMED_SHARE = 0.5
"""A summary is asked to take at most this share of what it replaces, so that the gate does not find it too large."""
MOST_PARTS = 64
"""Summaries that one compaction makes: of a history that takes more, the rest is for the compactions after it."""
MINIMUM_GAIN = 0.10
"""A compaction that frees less of the request is no progress: it would be due again a turn later."""
CHARACTERS_A_TOKEN = 4
"""Characters a token in a prompt for summaries; it stands in a call twice."""


class Span(Struct, frozen=True):
    """The messages from `start` up to `stop`, to be summarised as one chunk."""

    start: int
    stop: int


def split_span(
    transcript: Transcript, span: Span, options: SummaryOptions, made: Sequence[Span] = ()
) -> tuple[Span, ...]:
    """The span in as few parts as the summariser can read and a summary may stand for, of about one size.

    Cut between turns where one begins near, else between units. A single unit larger than a part stays whole: it is
    shown to the summariser shortened. What is left before or after one may be too little for a summary of its own, and
    goes with its neighbour.

    Cut around the parts that are `made` already. What has come since goes with the last of them where one call reads
    both: else each time a little more would be a part of its own.
    """
    fits_one_call = quoted_tokens(transcript, span.start, span.stop) <= options.input_tokens
    at_most = options.input_tokens if fits_one_call else options.part_tokens
    if not options.cumulative and options.source_tokens is not None:
        at_most = min(at_most, options.source_tokens)
    parts: list[Span] = []
    start = span.start
    for part in made:
        parts += [*_cut(transcript, Span(start, part.start), at_most), part]
        start = part.stop
    if made and start < span.stop and quoted_tokens(transcript, made[-1].start, span.stop) <= at_most:
        start = parts.pop().start
    return _with_neighbours(transcript, [*parts, *_cut(transcript, Span(start, span.stop), at_most)], options)


def _cut(transcript: Transcript, span: Span, at_most: int) -> list[Span]:
    """Parts of about one size; none of nothing."""
    inside = [cut for cut in transcript.cuts if span.start < cut < span.stop]
    turns = sorted({*transcript.turn_starts} & {*inside})  # A user's message may hold results: then it ends a unit.
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
    return [*parts, Span(start, span.stop)] if start < span.stop else parts


def _nearest(transcript: Transcript, start: int, cuts: Sequence[int], size: float, at_most: int) -> int | None:
    """Cut that makes a part of about that size, and none larger than `at_most`. The cuts ascend."""

    def quoted(cut: int) -> int:
        return quoted_tokens(transcript, start, cut)

    begin = bisect_right(cuts, start)
    end = bisect_right(cuts, at_most, lo=begin, key=quoted)
    above = bisect_left(cuts, size, lo=begin, hi=end, key=quoted)
    return min(cuts[max(begin, above - 1) : min(end, above + 1)], key=lambda cut: abs(quoted(cut) - size), default=None)


def _with_neighbours(transcript: Transcript, parts: Sequence[Span], options: SummaryOptions) -> tuple[Span, ...]:
    joined: list[Span] = []
    for part in parts:
        # A summary of everything so far is made part by part, and each carries what the end of its part splits.
        neighbours = ((each, each.stop if options.cumulative else parts[-1].stop) for each in (*joined[-1:], part))
        smaller = min(replaced_tokens(transcript, each, end) for each, end in neighbours)
        if joined and smaller < SMALLEST_PART:
            joined[-1] = Span(joined[-1].start, part.stop)
        else:
            joined.append(part)
    return tuple(joined)


def replaced_tokens(transcript: Transcript, span: Span, end: int) -> int:
    """Tokens that a summary of the range stands for, in a compaction up to `end`: its messages but those that are
    carried."""
    return transcript.tokens(span.start, span.stop) - transcript.carried_tokens(span.start, span.stop, end)


def quoted_tokens(transcript: Transcript, start: int, stop: int) -> int:
    return transcript.tokens(start, stop) + QUOTE_TOKENS * (stop - start)


def longest_within(lengths: Iterable[int], room: int) -> int:
    """The length to which the longest of these are cut so that all together are within `room`."""
    ascending = sorted(lengths)
    for place, length in enumerate(ascending):
        if length * (left := len(ascending) - place) > room:
            return room // left
        room -= length
    return ascending[-1] if ascending else 0


def halves(transcript: Transcript, span: Span) -> tuple[Span, ...]:
    """The span in two parts of about equal size, or as it is where it cannot be cut."""
    cuts = transcript.cuts
    inside = cuts[bisect_right(cuts, span.start) : bisect_left(cuts, span.stop)]
    if not inside:
        return (span,)
    half = transcript.tokens(span.start, span.stop) / 2
    cut = min(inside, key=lambda position: abs(transcript.tokens(span.start, position) - half))
    return Span(span.start, cut), Span(cut, span.stop)


def fold_weight(chunks: Iterable[SummaryChunk]) -> int:
    """Tokens of summaries, by which a fold is due: the user's words, which it does not make fewer, count half."""
    return sum(chunk.tokens - chunk.user_words_tokens // 2 for chunk in chunks)


def released_by(transcript: Transcript, chunks: Sequence[SummaryChunk]) -> list[int]:
    """Positions of the messages that chunks carry and a fold of them does not: what the user said in an agent's turns,
    each split by some cut, would pile up in the payload."""
    if not chunks:
        return []
    held = (chunk.first_index + offset for chunk in chunks for offset in chunk.carried)
    return transcript.released(held, chunks[-1].last_index + 1)


def released_tokens(transcript: Transcript, chunks: Sequence[SummaryChunk]) -> int:
    """Tokens of these. A fold is due where they take half of what summaries may."""
    return sum(map(transcript.tokens_of, released_by(transcript, chunks)))


def choose_cut(conversation: Conversation, base: Path, budget: Budget, options: SummaryOptions) -> int | None:
    """Start of the verbatim tail: as early as its share allows, later until the view meets the target.

    First between turns, then inside the last one, between units, its user message kept; None if nothing is left to
    summarise before the last unit.
    """
    transcript = conversation.transcript
    cuts = [cut for cut in transcript.cuts if cut > base.covered]
    if not cuts:
        return None
    # A summary of everything stands for what the base's chunks stand for too.
    kept = Path() if options.cumulative else base
    asked = {transcript.last_turn, transcript.last_user} - {-1}
    always = next(iter(transcript.turn_starts[-1 - budget.tail_turns :]), 0)
    for cut in _tails(transcript, cuts, always, budget.tail_fill):
        tail = transcript.tokens(cut) + sum(transcript.tokens_of(index) for index in asked if index < cut)
        parts = _parts(quoted_tokens(transcript, base.covered, cut), options)
        expected = sum(expected_view(conversation, kept, cut, parts, budget, options))
        # Of more turns than must stay, and inside a turn, at most half of what may follow a summary is left, or the
        # next turn, or an agent's next step, would fire the trigger again.
        since = (1 + (cut > transcript.last_turn or cut < always)) * transcript.tokens(cut)
        if tail <= budget.tail and expected <= budget.target and not budget.trigger.fires(expected, since):
            return cut
    return cuts[-1]


def _tails(transcript: Transcript, cuts: Sequence[int], always: int, fill: int) -> list[int]:
    """Places where the tail may begin, the largest tail first: at `always`, or earlier while it has at most `fill`
    tokens.

    A turn that leaves most of the fill unused because it is too long for it is cut between its units: what an agent has
    just done is what it goes on from. Of the last turn no more than the fill is left, if there is one, or its last
    unit: each token more would be read anew now, and with every step until the next compaction, which comes sooner.
    """
    turns = transcript.turn_starts
    fitting = bisect_left(cuts, -fill, key=lambda cut: -transcript.tokens(cut))
    whole = bisect_left(turns, cuts[fitting]) if fitting < len(cuts) else len(turns)
    is_used = whole < len(turns) and 2 * transcript.tokens(turns[whole]) >= fill
    next_turn = turns[whole] if whole < len(turns) else len(transcript)
    between_units = () if is_used else cuts[fitting : bisect_left(cuts, next_turn)]
    first = min((always, *turns[whole : whole + 1], *between_units))
    filled = min(fitting, len(cuts) - 1) if fill else 0
    inside_last_turn = cuts[max(bisect_right(cuts, transcript.last_turn), filled) :]
    return sorted({*turns[bisect_left(turns, first) :], *between_units, *inside_last_turn} & {*cuts})


def words_room(
    conversation: Conversation, base: Path, spans: Sequence[Span], budget: Budget, options: SummaryOptions
) -> int:
    """Most tokens of the user's words in all chunks after a compaction: more while the view is under its target."""
    kept, cut = Path() if options.cumulative else base, spans[-1].stop if spans else base.covered
    others, _ = expected_view(conversation, kept, cut, len(spans), budget, options)
    return max(int(SHARE * budget.room), min(int(WIDE_SHARE * budget.room), budget.target - others))


def expected_view(
    conversation: Conversation, base: Path, cut: int, parts: int, budget: Budget, options: SummaryOptions
) -> tuple[int, int]:
    """Tokens of the view after a compaction up to `cut`, without the user's words, and of these: summaries as large as
    they may be, folded where they will be."""
    transcript = conversation.transcript
    words = held_tokens(base.chunks)
    held, new = sum(chunk.tokens for chunk in base.chunks) - words, _new_tokens(conversation, base, cut, parts, budget)
    released = released_tokens(transcript, base.chunks)
    folds = will_fold(conversation, base, cut, parts, budget)
    summaries = (1 + _parts(held + new, options)) * budget.summary if folds else held + new
    carried = base.tokens - held - words - folds * released + transcript.carried_tokens(base.covered, cut, cut)
    context = conversation.client_context.carry_over(cut, transcript.carried(0, cut, cut))
    beside = pinned_tokens(conversation, cut) + context.tokens
    words += _new_words(conversation, base.covered, cut, parts, budget) if options.user_words else 0
    others = conversation.instruction_tokens + summaries + carried + beside + transcript.tokens(cut)
    return others, min(words, int(SHARE * budget.room)) if folds else words


def will_fold(conversation: Conversation, base: Path, cut: int, parts: int, budget: Budget) -> bool:
    """Whether the summaries grow too many with a compaction up to `cut`."""
    held = fold_weight(base.chunks) + _new_tokens(conversation, base, cut, parts, budget)
    released = released_tokens(conversation.transcript, base.chunks)
    return max(held, 2 * released) > budget.fold and len(base.chunks) + parts > FOLD_MINIMUM


def _new_words(conversation: Conversation, start: int, stop: int, parts: int, budget: Budget) -> int:
    """Most tokens of the user's words in the summaries of a range."""
    transcript, most = conversation.transcript, min(parts * chunk_room(budget), int(SHARE * budget.room))
    users, tokens = transcript.messages.user_places, 0
    for index in users[bisect_left(users, start) : bisect_left(users, stop)]:
        tokens += transcript.tokens_of(index)
        if tokens > most:
            return most
    return tokens


def _new_tokens(conversation: Conversation, base: Path, cut: int, parts: int, budget: Budget) -> int:
    replaced = replaced_tokens(conversation.transcript, Span(base.covered, cut), cut)
    return min(parts * budget.summary, int(AIMED_SHARE * replaced))


def _parts(tokens: int, options: SummaryOptions) -> int:
    if options.cumulative or options.source_tokens is None:
        return 1
    return max(1, ceil(tokens / options.source_tokens))


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
    options: SummaryOptions,
    series: str,
    masked_before: Callable[[int], int] = lambda _: 0,
    known: Iterable[SummaryChunk] = (),
) -> Plan | None:
    """The compaction that is due after `base`, or None if no summary can make the conversation enough smaller.

    `masked_before` tells how many tokens masks take away between the base and a position. Of the `known` chunks those
    behind the base are taken for their part, unless the parts around them would be too many to make it smaller.
    """
    if options.cumulative:
        return _plan_cumulative(conversation, base, budget, options, series)
    start, goes_on, masked = base.covered, False, False
    made: tuple[SummaryChunk, ...] = ()
    cut = choose_cut(conversation, base, budget, options)
    if cut is None:
        foldable = base.chunks[:-1]
        held = max(fold_weight(base.chunks), 2 * released_tokens(conversation.transcript, foldable))
        if len(foldable) < FOLD_MINIMUM or held <= budget.fold:
            return None
        start, cut = 0, conversation.chain.positions[foldable[-1].through_digest]
        spans: tuple[Span, ...] = ()
    else:
        all_spans, made = _spans(conversation, base, Span(start, cut), options, known)
        if len(all_spans) > 1 and is_shown(conversation, base, Span(start, cut), options, masked_before(cut)):
            all_spans, made, masked = (Span(start, cut),), (), True
        spans = all_spans[:MOST_PARTS]
        cut, goes_on = spans[-1].stop, spans != all_spans
        if not _worth_it(conversation, base, spans, budget, options, is_last=not goes_on):
            return plan_compaction(conversation, base, budget, options, series, masked_before) if made else None
    through = ChunkRange(series, conversation.chain[start], conversation.chain[cut])
    return Plan(base, spans, through, masked=masked, goes_on=goes_on, made=made)


def folds_in(conversation: Conversation, plan: Plan, budget: Budget, options: SummaryOptions) -> bool:
    """Whether one call makes the plan's summary and the fold that it makes due: a chunk over everything so far."""
    if not options.folds_in or len(plan.spans) != 1:
        return False
    (span,), chunks = plan.spans, plan.base.chunks
    read = quoted_tokens(conversation.transcript, span.start, span.stop) + sum(chunk.tokens for chunk in chunks)
    most = min(options.input_tokens, options.source_tokens or options.input_tokens)
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
    options: SummaryOptions,
    series: str,
    cut: int,
    known: Iterable[SummaryChunk] = (),
) -> Plan | None:
    """The compaction of everything before a cut, or as much of it as one makes; None where
    nothing is left."""
    if cut <= base.covered:
        return None
    start = 0 if options.strategy == "full" else base.covered
    spans, made = _spans(conversation, base if start else Path(), Span(start, cut), options, known)
    if len(spans) > MOST_PARTS and start < base.covered:
        spans, made = _spans(conversation, base, Span(base.covered, cut), options)
    spans = spans[:MOST_PARTS]
    first = 0 if options.cumulative else base.covered
    through = conversation.chain[spans[-1].stop]
    return Plan(base, spans, ChunkRange(series, conversation.chain[first], through), asked=True, made=made)


def _plan_cumulative(
    conversation: Conversation, base: Path, budget: Budget, options: SummaryOptions, series: str
) -> Plan | None:
    """One summary over everything before the tail; what is read for it is everything, or what the last one lacks."""
    empty = Path()
    cut = choose_cut(conversation, base, budget, options)
    if cut is None:
        return None
    start = 0 if options.strategy == "full" else base.covered
    spans, _ = _spans(conversation, base if start else empty, Span(start, cut), options)
    if len(spans) > MOST_PARTS and start < base.covered:  # Too long to be read anew each time.
        start = base.covered
        spans, _ = _spans(conversation, base, Span(start, cut), options)
    is_last = len(spans) <= MOST_PARTS
    spans = spans[:MOST_PARTS]
    cut = spans[-1].stop
    if replaced_tokens(conversation.transcript, Span(0, cut), cut) < SMALLEST_PART:
        return None
    view = unmasked_tokens(conversation, base)
    expected = sum(expected_view(conversation, empty, cut, 1, budget, options))
    if not _frees_enough(conversation, view, expected, cut, budget, is_last=is_last):
        return None
    return Plan(base, spans, ChunkRange(series, conversation.chain[0], conversation.chain[cut]))


def _spans(
    conversation: Conversation, base: Path, span: Span, options: SummaryOptions, known: Iterable[SummaryChunk] = ()
) -> tuple[tuple[Span, ...], tuple[SummaryChunk, ...]]:
    """The span whole, where the summariser is shown the conversation up to its end; else as it can read it, and the
    known chunks of some of these parts."""
    if is_shown(conversation, base, span, options):
        return (span,), ()
    made = _behind(conversation, span, () if options.cumulative else known)
    spans = split_span(conversation.transcript, span, options, [*made])
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


def is_shown(conversation: Conversation, base: Path, span: Span, options: SummaryOptions, masked: int = 0) -> bool:
    """Whether the summariser is to read the conversation itself up to the span's end, and can. `masked`: tokens that
    masks take away from it.

    Not where instructions stand in the middle of it: it would follow them. In a transcript they are quoted.
    """
    if options.style != "prefix" or conversation.transcript.messages.first_instruction < span.stop:
        return False
    if not may_continue(conversation, span, options):
        return False
    return shown_size(conversation, base, span) - masked <= options.shown_tokens


def may_continue(conversation: Conversation, span: Span, options: SummaryOptions) -> bool:
    """Whether a user's message may follow the span: for some summarisers only behind an answer."""
    return not options.alternates or is_answer(conversation.transcript.messages[span.stop - 1])


def shown_size(conversation: Conversation, base: Path, span: Span) -> int:
    """Tokens of the conversation up to the span's end: the base's summaries, and the span as the client wrote it."""
    return build_view(conversation, base).tokens - conversation.transcript.tokens(span.stop)


def _worth_it(
    conversation: Conversation,
    base: Path,
    spans: Sequence[Span],
    budget: Budget,
    options: SummaryOptions,
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
    expected = sum(expected_view(conversation, base, cut, len(spans), budget, options))
    return _frees_enough(conversation, view, expected, cut, budget, is_last=is_last)


def _frees_enough(
    conversation: Conversation, view: int, expected: int, cut: int, budget: Budget, *, is_last: bool
) -> bool:
    if view > budget.limit or not is_last:  # Over the limit the choice is between less and nothing.
        return expected < view
    tail = conversation.transcript.tokens(cut)
    return view - expected >= MINIMUM_GAIN * view and not budget.trigger.fires(expected, tail)


def change_of_plan(state: PlanningState, plan: Plan, options: SummaryOptions) -> Change:
    """Change by a compaction, in the provider's tokens. What stands before it stays as it is: the instructions, and the
    summaries that it extends."""
    conversation, budget = state.conversation, state.budget
    kept = Path() if options.cumulative else plan.base
    cut = conversation.chain.positions[plan.range.through_digest]
    after = sum(expected_view(conversation, kept, cut, len(plan.spans), budget, options))
    unchanged = conversation.instruction_tokens + kept.tokens
    return _change(state, state.widest_view.tokens - after, max(0, after - unchanged))


def change_of_mask(state: PlanningState, masking: Masking, boundary: MaskBoundary) -> Change:
    """Change by a mask, likewise: everything after the first result that it masks is read anew."""
    transcript = state.conversation.transcript
    covered = state.widest_path.covered
    held = max(masking.usable(covered), default=covered)
    before = {index for index, _ in masking.masks.between(covered, held)}
    first = next(index for index, _ in masking.masks.between(covered, boundary.position) if index not in before)
    freed = masking.masks.saved(covered, boundary.position) - masking.masks.saved(covered, held)
    return _change(state, freed, transcript.tokens(first) - masking.masks.saved(first, boundary.position))


def calls_of_plan(
    conversation: Conversation, plan: Plan, budget: Budget, options: SummaryOptions, price: Price, shown: Rates | None
) -> float:
    """Cost of the calls for a plan's summaries, in tokens times the price of a million.

    `shown` is what a token of the conversation itself costs the summariser where that is what it reads: None where it
    is another model, whose provider has nothing of it. What a model thinks before it writes, and folds, are left out.
    """
    rules = 2 * len(options.prompt) // CHARACTERS_A_TOKEN
    read = written = 0.0
    for span in plan.missing:
        if plan.masked or is_shown(conversation, plan.base, span, options):
            size = min(shown_size(conversation, plan.base, span), options.shown_tokens)
            read += size * (shown.cached if shown else price.prompt)
        else:
            read += quoted_tokens(conversation.transcript, span.start, span.stop) * price.prompt
        read += rules * price.prompt
        aimed = AIMED_SHARE * replaced_tokens(conversation.transcript, span, plan.spans[-1].stop)
        written += min(budget.summary, int(aimed)) * price.completion
    return (read + written) * options.ratio


class Prices(Struct, frozen=True):
    rates: Rates | None = None
    """Rates of the request's own model; None if they are not known."""
    summariser: Price | None = None
    reads_warm: bool = False
    """True if the summariser is the conversation's own model, whose provider has just read it."""


def plan_costs_too_much(state: PlanningState, plan: Plan, options: SummaryOptions, prices: Prices) -> bool:
    """Whether a compaction is to wait for its price. One that only folds costs little, and is due for its size."""
    gate, rates, price, most = state.policy.cost_gate, prices.rates, prices.summariser, state.budget.cost_gate_limit
    if gate is None or rates is None or price is None or not plan.spans or state.widest_view.tokens > most:
        return False
    calls = calls_of_plan(state.conversation, plan, state.budget, options, price, rates if prices.reads_warm else None)
    return not is_worth(change_of_plan(state, plan, options), rates, gate, calls)


def mask_costs_too_much(state: PlanningState, boundary: MaskBoundary, rates: Rates | None) -> bool:
    gate, masking = state.policy.cost_gate, state.masking
    if gate is None or masking is None or rates is None or state.widest_view.tokens > state.budget.cost_gate_limit:
        return False
    return not is_worth(change_of_mask(state, masking, boundary), rates, gate)


def _change(state: PlanningState, freed: int, rewritten: int) -> Change:
    """Change in the provider's tokens. Each of the assistant's messages answered a request."""
    conversation, ratio = state.conversation, state.budget.line.ratio
    answered = sum(message.kind is Kind.ASSISTANT for message in conversation.transcript.messages)
    growth = conversation.transcript.tokens(0) / max(1, answered)
    return Change(round(freed * ratio), round(rewritten * ratio), growth * ratio)
