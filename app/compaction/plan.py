"""Planning of a due compaction: which messages it summarises, in how many parts, where the verbatim tail begins, and
whether it is worth its cost."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from math import ceil

from msgspec import Struct

from app.compaction.budget import Budget
from app.compaction.chunks import ChunkRange, SummaryChunk
from app.compaction.mask import MaskBoundary, Masking
from app.compaction.planning_state import Path, PlanningState, build_view, pinned_tokens, unmasked_tokens, usable
from app.compaction.policy import SummaryOptions
from app.compaction.user_words import SHARE, WIDE_SHARE, chunk_room, held_tokens
from app.compaction.view import Conversation
from app.conversation.messages import Kind, Transcript
from app.tokens.estimate import is_answer
from app.tokens.usage import Change, Price, Rates, is_worth

QUOTE_TOKENS = 6
"""Tokens that the heading of a quoted message adds to its cost in a prompt."""

SMALLEST_PART = 100
"""Least tokens of a part: a smaller one could not become a summary that is clearly shorter."""

FOLD_MINIMUM = 2
"""Least number of chunks to fold: a fold of fewer frees nothing."""
AIMED_SHARE = 0.5
"""Length asked of a summary, as a share of the replaced messages; well below the share at which it is rejected."""
MOST_PARTS = 64
"""Most summaries in one compaction; later compactions summarise the rest."""
MINIMUM_GAIN = 0.10
"""Least share of the request that a compaction has to free; otherwise it would be due again a turn later."""
CHARACTERS_A_TOKEN = 4
"""Characters for each token of a summary prompt, which is in a call twice."""


class Span(Struct, frozen=True):
    """The messages from `start` up to `stop`, for one chunk."""

    start: int
    stop: int


def split_span(
    transcript: Transcript, span: Span, options: SummaryOptions, made: Sequence[Span] = ()
) -> tuple[Span, ...]:
    """Split the span into the fewest parts of similar size that the summariser can read and a summary may replace.

    Cuts are between turns if possible, otherwise between units. A unit larger than a part stays whole and is shortened
    for the summariser. A remainder that is too small for a summary is joined to its neighbour.

    Parts in `made` have a chunk and stay unchanged. New messages are joined to the last of them if one call reads both;
    otherwise every few new messages would become a part.
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
    """Return parts of similar size; none for an empty span."""
    inside = [cut for cut in transcript.cuts if span.start < cut < span.stop]
    turns = sorted({*transcript.turn_starts} & {*inside})  # A user message with results is inside a unit.
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
    """Return the cut that makes a part closest to `size` and at most `at_most`, or None. `cuts` ascend."""

    def quoted(cut: int) -> int:
        return quoted_tokens(transcript, start, cut)

    begin = bisect_right(cuts, start)
    end = bisect_right(cuts, at_most, lo=begin, key=quoted)
    above = bisect_left(cuts, size, lo=begin, hi=end, key=quoted)
    return min(cuts[max(begin, above - 1) : min(end, above + 1)], key=lambda cut: abs(quoted(cut) - size), default=None)


def _with_neighbours(transcript: Transcript, parts: Sequence[Span], options: SummaryOptions) -> tuple[Span, ...]:
    joined: list[Span] = []
    for part in parts:
        # A cumulative summary is made part by part, and each part carries the messages of the turn that its end splits.
        neighbours = ((each, each.stop if options.cumulative else parts[-1].stop) for each in (*joined[-1:], part))
        smaller = min(replaced_tokens(transcript, each, end) for each, end in neighbours)
        if joined and smaller < SMALLEST_PART:
            joined[-1] = Span(joined[-1].start, part.stop)
        else:
            joined.append(part)
    return tuple(joined)


def replaced_tokens(transcript: Transcript, span: Span, end: int) -> int:
    """Return the tokens of the span's messages without those that a compaction up to `end` carries."""
    return transcript.tokens(span.start, span.stop) - transcript.carried_tokens(span.start, span.stop, end)


def quoted_tokens(transcript: Transcript, start: int, stop: int) -> int:
    return transcript.tokens(start, stop) + QUOTE_TOKENS * (stop - start)


def longest_within(lengths: Iterable[int], room: int) -> int:
    """Return the length to which longer texts are cut so that the sum of these lengths is within `room`."""
    ascending = sorted(lengths)
    for place, length in enumerate(ascending):
        if length * (left := len(ascending) - place) > room:
            return room // left
        room -= length
    return ascending[-1] if ascending else 0


def halves(transcript: Transcript, span: Span) -> tuple[Span, ...]:
    """Split the span into two parts of similar size; return it alone if it has no cut."""
    cuts = transcript.cuts
    inside = cuts[bisect_right(cuts, span.start) : bisect_left(cuts, span.stop)]
    if not inside:
        return (span,)
    half = transcript.tokens(span.start, span.stop) / 2
    cut = min(inside, key=lambda position: abs(transcript.tokens(span.start, position) - half))
    return Span(span.start, cut), Span(cut, span.stop)


def fold_weight(chunks: Iterable[SummaryChunk]) -> int:
    """Return the tokens that make a fold due. The user's words count half, because a fold does not shorten them."""
    return sum(chunk.tokens - chunk.user_words_tokens // 2 for chunk in chunks)


def released_by(transcript: Transcript, chunks: Sequence[SummaryChunk]) -> list[int]:
    """Return the positions of messages that these chunks carry and a fold would not: the user messages of turns that
    were split, which would accumulate in the payload."""
    if not chunks:
        return []
    held = (chunk.first_index + offset for chunk in chunks for offset in chunk.carried)
    return transcript.released(held, chunks[-1].last_index + 1)


def released_tokens(transcript: Transcript, chunks: Sequence[SummaryChunk]) -> int:
    """Return the tokens of the `released_by` messages. A fold is due if they take half of the budget for summaries."""
    return sum(map(transcript.tokens_of, released_by(transcript, chunks)))


def choose_cut(conversation: Conversation, base: Path, budget: Budget, options: SummaryOptions) -> int | None:
    """Return the start of the verbatim tail: as early as the tail's share allows, later until the view meets the
    target.

    Cuts between turns come first, then cuts between units of the last turn, whose user message stays. None if there is
    nothing to summarise before the last unit.
    """
    transcript = conversation.transcript
    cuts = [cut for cut in transcript.cuts if cut > base.covered]
    if not cuts:
        return None
    # A cumulative summary replaces the chunks of the base, too.
    kept = Path() if options.cumulative else base
    asked = {transcript.last_turn, transcript.last_user} - {-1}
    always = next(iter(transcript.turn_starts[-1 - budget.tail_turns :]), 0)
    for cut in _tails(transcript, cuts, always, budget.tail_fill):
        tail = transcript.tokens(cut) + sum(transcript.tokens_of(index) for index in asked if index < cut)
        parts = _parts(quoted_tokens(transcript, base.covered, cut), options)
        expected = sum(expected_view(conversation, kept, cut, parts, budget, options))
        # A tail longer than required, or inside a turn, may take half of the room after a summary. Otherwise the
        # next turn, or an agent's next step, would fire the trigger again.
        since = (1 + (cut > transcript.last_turn or cut < always)) * transcript.tokens(cut)
        if tail <= budget.tail and expected <= budget.target and not budget.trigger.fires(expected, since):
            return cut
    return cuts[-1]


def _tails(transcript: Transcript, cuts: Sequence[int], always: int, fill: int) -> list[int]:
    """Return possible starts of the tail, the largest first: `always`, or earlier while the tail has at most `fill`
    tokens.

    A turn that is too long for the fill and would leave most of it unused is cut between its units, because an agent
    goes on from its latest steps. Of the last turn at most the fill is kept, or its last unit: every further token
    would be read uncached.
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
    """Return the room for the user's words in all chunks, in tokens; it is wider while the view is under its target."""
    kept, cut = Path() if options.cumulative else base, spans[-1].stop if spans else base.covered
    others, _ = expected_view(conversation, kept, cut, len(spans), budget, options)
    return max(int(SHARE * budget.room), min(int(WIDE_SHARE * budget.room), budget.target - others))


def expected_view(
    conversation: Conversation, base: Path, cut: int, parts: int, budget: Budget, options: SummaryOptions
) -> tuple[int, int]:
    """Estimate the view after a compaction up to `cut`: its tokens without the user's words, and the tokens of these
    words. Summaries count with their largest allowed size, and folded if a fold is due."""
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
    """Return whether a compaction up to `cut` makes a fold due."""
    held = fold_weight(base.chunks) + _new_tokens(conversation, base, cut, parts, budget)
    released = released_tokens(conversation.transcript, base.chunks)
    return max(held, 2 * released) > budget.fold and len(base.chunks) + parts > FOLD_MINIMUM


def _new_words(conversation: Conversation, start: int, stop: int, parts: int, budget: Budget) -> int:
    """Return the most tokens of the user's words in the summaries of a range."""
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
    """A due compaction: it adds one chunk to `base` for each of `spans`, and folds where there are too many chunks.

    The chunks are used together: a view that ends with one of them ends with the last that applies. Without spans the
    compaction only folds.
    """

    base: Path
    spans: tuple[Span, ...]
    range: ChunkRange
    """Range that the compaction will cover; also the key of its lease."""
    goes_on: bool = False
    """True if the history needs more summaries than one compaction makes; the next compaction goes on from there."""
    made: tuple[SummaryChunk, ...] = ()
    """Existing chunks for some of the spans, which an earlier, partly failed compaction made."""

    @property
    def missing(self) -> tuple[Span, ...]:
        made = {(chunk.first_index, chunk.last_index + 1) for chunk in self.made}
        return tuple(span for span in self.spans if (span.start, span.stop) not in made)

    @property
    def messages(self) -> int:
        """Number of messages that the new summaries will replace; 0 if the compaction only folds."""
        return sum(span.stop - span.start for span in self.spans)


def plan_compaction(
    conversation: Conversation,
    base: Path,
    budget: Budget,
    options: SummaryOptions,
    series: str,
    known: Iterable[SummaryChunk] = (),
) -> Plan | None:
    """Plan the compaction that is due after `base`. Return None if no summary frees enough.

    A cumulative summary covers everything before the tail: the summariser reads the whole history (strategy `full`), or
    the messages since the last summary. Otherwise `known` chunks after the base are reused for their part, unless the
    parts around them would become too many.
    """
    transcript, chain, kept = conversation.transcript, conversation.chain, Path() if options.cumulative else base
    cut = choose_cut(conversation, base, budget, options)
    if cut is None:
        return None if options.cumulative else _plan_fold(conversation, base, budget, series)
    start = 0 if options.strategy == "full" else base.covered
    all_spans, made = _spans(conversation, base if start else Path(), Span(start, cut), options, known)
    if len(all_spans) > MOST_PARTS and start < base.covered:  # Too long to be read completely each time.
        start = base.covered
        all_spans, made = _spans(conversation, base, Span(start, cut), options)
    spans, goes_on = all_spans[:MOST_PARTS], len(all_spans) > MOST_PARTS
    cut = spans[-1].stop
    covered = Span(0 if options.cumulative else base.covered, cut)
    parts = (covered,) if options.cumulative else spans
    expected = sum(expected_view(conversation, kept, cut, len(parts), budget, options))
    is_too_small = any(replaced_tokens(transcript, part, cut) < SMALLEST_PART for part in parts)
    if is_too_small or not _frees_enough(conversation, base, expected, cut, budget, is_last=not goes_on):
        return plan_compaction(conversation, base, budget, options, series) if made else None
    return Plan(base, spans, ChunkRange(series, chain[covered.start], chain[cut]), goes_on=goes_on, made=made)


def _plan_fold(conversation: Conversation, base: Path, budget: Budget, series: str) -> Plan | None:
    """Plan the fold of all chunks but the last one, if it is due."""
    foldable = base.chunks[:-1]
    held = max(fold_weight(base.chunks), 2 * released_tokens(conversation.transcript, foldable))
    if len(foldable) < FOLD_MINIMUM or held <= budget.fold:
        return None
    return Plan(base, (), ChunkRange(series, conversation.chain[0], foldable[-1].through_digest))


def _frees_enough(
    conversation: Conversation, base: Path, expected: int, cut: int, budget: Budget, *, is_last: bool
) -> bool:
    """Return whether a compaction frees a tenth of the request and brings it under the trigger. Over the limit, or if
    more compactions have to follow, it only has to free something."""
    view = unmasked_tokens(conversation, base)
    if view > budget.limit or not is_last:
        return expected < view
    tail = conversation.transcript.tokens(cut)
    return view - expected >= MINIMUM_GAIN * view and not budget.trigger.fires(expected, tail)


def folds_in(conversation: Conversation, plan: Plan, budget: Budget, options: SummaryOptions) -> bool:
    """Return whether one call makes the plan's summary and the fold that it makes due, as one chunk."""
    if not options.folds_in or len(plan.spans) != 1:
        return False
    (span,), chunks = plan.spans, plan.base.chunks
    read = quoted_tokens(conversation.transcript, span.start, span.stop) + sum(chunk.tokens for chunk in chunks)
    most = min(options.input_tokens, options.source_tokens or options.input_tokens)
    fits = read + released_tokens(conversation.transcript, chunks) <= most
    return fits and will_fold(conversation, plan.base, span.stop, 1, budget)


def _spans(
    conversation: Conversation, base: Path, span: Span, options: SummaryOptions, known: Iterable[SummaryChunk] = ()
) -> tuple[tuple[Span, ...], tuple[SummaryChunk, ...]]:
    """Return the span whole if the summariser reads the conversation itself up to its end; otherwise the parts that it
    can read, and the known chunks of some of them."""
    if is_shown(conversation, base, span, options):
        return (span,), ()
    made = _behind(conversation, span, () if options.cumulative else known)
    spans = split_span(conversation.transcript, span, options, [*made])
    return spans, tuple(made[part] for part in spans[:MOST_PARTS] if part in made)


def _behind(conversation: Conversation, span: Span, known: Iterable[SummaryChunk]) -> dict[Span, SummaryChunk]:
    """Return known chunks inside the span that do not overlap, except at its start, and except a last one that is only
    used with a later chunk."""
    found: dict[Span, SummaryChunk] = {}
    free = span.start + 1
    for start, stop, chunk in sorted(usable(conversation, known), key=lambda edge: (edge[0], -edge[1])):
        goes_on = chunk.continued and stop == span.stop
        if free <= start and stop <= span.stop and chunk.level == 0 and not goes_on:
            found[Span(start, stop)], free = chunk, stop
    return found


def is_shown(conversation: Conversation, base: Path, span: Span, options: SummaryOptions) -> bool:
    """Return whether the summariser reads the conversation itself up to the span's end. Instructions before that end
    prevent it: the summariser would follow them, while a transcript quotes them."""
    messages = conversation.transcript.messages
    if options.style != "prefix" or messages.first_instruction < span.stop:
        return False
    # Some summarisers accept a user message only after an assistant message.
    if options.alternates and not is_answer(messages[span.stop - 1]):
        return False
    return shown_size(conversation, base, span) <= options.shown_tokens


def shown_size(conversation: Conversation, base: Path, span: Span) -> int:
    """Return the tokens of a view over `base` up to the span's end."""
    return build_view(conversation, base).tokens - conversation.transcript.tokens(span.stop)


def change_of_plan(state: PlanningState, plan: Plan, options: SummaryOptions) -> Change:
    """Return the change by a compaction, in the provider's tokens. Instructions and extended summaries stay
    unchanged."""
    conversation, budget = state.conversation, state.budget
    kept = Path() if options.cumulative else plan.base
    cut = conversation.chain.positions[plan.range.through_digest]
    after = sum(expected_view(conversation, kept, cut, len(plan.spans), budget, options))
    unchanged = conversation.instruction_tokens + kept.tokens
    return _change(state, state.widest_view.tokens - after, max(0, after - unchanged))


def change_of_mask(state: PlanningState, masking: Masking, boundary: MaskBoundary) -> Change:
    """Return the change by a mask, in the provider's tokens: everything after the first newly masked result is read
    uncached."""
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
    """Return the cost of the calls for a plan's summaries, in tokens times the price of a million.

    `shown`: the summariser's rates for tokens of the conversation itself, which its provider has cached; None for
    another model, which has none of it cached. The model's reasoning and folds are not included.
    """
    rules = 2 * len(options.prompt) // CHARACTERS_A_TOKEN
    read = written = 0.0
    for span in plan.missing:
        if is_shown(conversation, plan.base, span, options):
            read += shown_size(conversation, plan.base, span) * (shown.cached if shown else price.prompt)
        else:
            read += quoted_tokens(conversation.transcript, span.start, span.stop) * price.prompt
        read += rules * price.prompt
        aimed = AIMED_SHARE * replaced_tokens(conversation.transcript, span, plan.spans[-1].stop)
        written += min(budget.summary, int(aimed)) * price.completion
    return (read + written) * options.ratio


class Prices(Struct, frozen=True):
    rates: Rates | None = None
    """Rates of the request's own model; None if unknown."""
    summariser: Price | None = None
    reads_warm: bool = False
    """True if the summariser is the conversation's own model, whose provider has just cached it."""


def plan_costs_too_much(state: PlanningState, plan: Plan, options: SummaryOptions, prices: Prices) -> bool:
    """Return whether a compaction is too expensive now. One that only folds is never: it costs little."""
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
    """Return the change in the provider's tokens. Growth is estimated for each request, one for each assistant
    message."""
    conversation, ratio = state.conversation, state.budget.line.ratio
    answered = sum(message.kind is Kind.ASSISTANT for message in conversation.transcript.messages)
    growth = conversation.transcript.tokens(0) / max(1, answered)
    return Change(round(freed * ratio), round(rewritten * ratio), growth * ratio)
