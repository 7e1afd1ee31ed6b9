"""Plan of a due compaction: the messages to summarise, their parts, the start of the verbatim tail, and the cost."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from math import ceil
from typing import Literal

from msgspec import Struct

from app.compaction.budget import WIDE_WORDS_SHARE, Budget
from app.compaction.chunks import ChunkRange, SummaryChunk
from app.compaction.planning_state import CUMULATIVE, Path, Strategy, unmasked_tokens, usable
from app.compaction.user_words import held_tokens
from app.compaction.view import Conversation
from app.conversation.messages import Transcript
from app.tokens.costs import Price, Rates
from app.tokens.estimate import is_answer

QUOTE_TOKENS = 6
"""Tokens of the heading above a quoted message in a summary call."""

SMALLEST_PART = 100
"""Minimum tokens of a part. The summary of a smaller part would be hardly shorter than the part itself."""

FOLD_MINIMUM = 2
"""Minimum number of chunks to fold."""
AIMED_SHARE = 0.5
"""Requested length of a summary, as a share of the replaced messages. It is well below `REPLACED_SHARE`, above which
Steno rejects a summary."""
MOST_PARTS = 64
"""Maximum number of summaries in one compaction; later compactions summarise the rest."""
MINIMUM_GAIN = 0.10
"""Minimum share of the view that a compaction frees. If it freed less, another might be due one turn later."""
CHARACTERS_A_TOKEN = 4
"""Assumed characters per token of a summary prompt."""


class SummaryOptions(Struct, frozen=True):
    """Settings of the summaries of a request, and limits of the summariser in tokens."""

    model: str
    prompt: str
    input_tokens: int
    """Maximum tokens of a transcript in one call."""
    part_tokens: int
    """Maximum tokens of a part, if a transcript is too long for one call and is split into parts."""
    source_tokens: int | None = None
    """Maximum tokens that one summary replaces, unless it is cumulative; None for no maximum."""
    update_prompt: str = ""
    """Prompt for updating an earlier summary; empty to use `prompt`."""
    focus: str = ""
    """Subject that the client wants summaries to emphasise, in the client's words."""
    ratio: float = 1.0
    """Number of tokens that the summariser counts for each estimated token."""
    strategy: Strategy = "additive"
    folds_in: bool = True
    """Whether a due fold is made in the same call as the new summary."""
    style: Literal["transcript", "prefix"] = "transcript"
    """`transcript`: the summariser reads a quoted transcript. `prefix`: the summariser reads the conversation itself,
    because the provider may have cached it."""
    shown_tokens: int = 0
    """Maximum tokens of the conversation in a call of style `prefix`."""
    alternates: bool = False
    """Whether the summariser refuses two consecutive messages of one role."""
    values_share: float = 0.0
    """Maximum share of a chunk's tokens that exact values take."""
    user_words: bool = False
    """Whether Steno quotes the user's words after a summary."""
    failed_results: int = 0
    """Maximum number of failed tool calls that Steno appends to a summary verbatim, because models omit them."""

    @property
    def cumulative(self) -> bool:
        return self.strategy in CUMULATIVE


class Span(Struct, frozen=True):
    """Range of messages for one chunk: from `start` to `stop` - 1."""

    start: int
    stop: int


def split_span(
    transcript: Transcript, span: Span, options: SummaryOptions, made: Sequence[Span] = ()
) -> tuple[Span, ...]:
    """Split the span into parts of similar size: as few as the limits of the summariser and of a summary allow.

    Cuts are between turns if possible, otherwise between units. A unit larger than a part stays whole and is shortened
    for the summariser. A part that is too small for a summary is joined to its neighbour.

    Parts in `made` already have a chunk and are not split. If one call can read the last of these parts and the
    new messages together, they become one part. This avoids many small parts.
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
    """Split the span into parts of similar size, each of at most `at_most` tokens if possible."""
    inside = [cut for cut in transcript.cuts if span.start < cut < span.stop]
    turns = sorted({*transcript.turn_starts} & {*inside})  # A turn that starts inside a unit is no cut.
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
    """Return the cut at which a part from `start` has about `size` tokens and at most `at_most`; None if there is no
    such cut. `cuts` must ascend."""

    def quoted(cut: int) -> int:
        return quoted_tokens(transcript, start, cut)

    begin = bisect_right(cuts, start)
    end = bisect_right(cuts, at_most, lo=begin, key=quoted)
    above = bisect_left(cuts, size, lo=begin, hi=end, key=quoted)
    return min(cuts[max(begin, above - 1) : min(end, above + 1)], key=lambda cut: abs(quoted(cut) - size), default=None)


def _with_neighbours(transcript: Transcript, parts: Sequence[Span], options: SummaryOptions) -> tuple[Span, ...]:
    joined: list[Span] = []
    for part in parts:
        # Each part of a cumulative summary carries the user messages of a turn that the part's end splits.
        neighbours = ((each, each.stop if options.cumulative else parts[-1].stop) for each in (*joined[-1:], part))
        smaller = min(replaced_tokens(transcript, each, end) for each, end in neighbours)
        if joined and smaller < SMALLEST_PART:
            joined[-1] = Span(joined[-1].start, part.stop)
        else:
            joined.append(part)
    return tuple(joined)


def replaced_tokens(transcript: Transcript, span: Span, end: int) -> int:
    """Return the tokens of the span, except messages that stay verbatim in a compaction up to `end`."""
    return transcript.tokens(span.start, span.stop) - transcript.carried_tokens(span.start, span.stop, end)


def quoted_tokens(transcript: Transcript, start: int, stop: int) -> int:
    return transcript.tokens(start, stop) + QUOTE_TOKENS * (stop - start)


def longest_within(lengths: Iterable[int], room: int) -> int:
    """Return a maximum length. If every longer text is cut to this length, all texts together fit into `room`."""
    ascending = sorted(lengths)
    for place, length in enumerate(ascending):
        if length * (left := len(ascending) - place) > room:
            return room // left
        room -= length
    return ascending[-1] if ascending else 0


def halves(transcript: Transcript, span: Span) -> tuple[Span, ...]:
    """Split the span into two parts of similar size; return the whole span if it has no cut."""
    cuts = transcript.cuts
    inside = cuts[bisect_right(cuts, span.start) : bisect_left(cuts, span.stop)]
    if not inside:
        return (span,)
    half = transcript.tokens(span.start, span.stop) / 2
    cut = min(inside, key=lambda position: abs(transcript.tokens(span.start, position) - half))
    return Span(span.start, cut), Span(cut, span.stop)


def fold_weight(chunks: Iterable[SummaryChunk]) -> int:
    """Return the tokens to compare with `budget.fold`. The user's words count half, as no fold shortens them."""
    return sum(chunk.tokens - chunk.user_words_tokens // 2 for chunk in chunks)


def released_by(transcript: Transcript, chunks: Sequence[SummaryChunk]) -> list[int]:
    """Return the positions of user messages that these chunks carry, but that a fold would summarise. A chunk carries
    a user message if the chunk ends inside the message's turn. Without folds, such messages would fill the payload."""
    if not chunks:
        return []
    held = (chunk.first_index + offset for chunk in chunks for offset in chunk.carried)
    return transcript.released(held, chunks[-1].last_index + 1)


def released_tokens(transcript: Transcript, chunks: Sequence[SummaryChunk]) -> int:
    """Return the tokens of the messages in `released_by`. If these exceed half of `budget.fold`, a fold is due."""
    return sum(map(transcript.tokens_of, released_by(transcript, chunks)))


def choose_cut(conversation: Conversation, base: Path, budget: Budget, options: SummaryOptions) -> int | None:
    """Return the start of the verbatim tail; None if `base` covers all messages before the last unit.

    Choose the earliest start in `_tails` with three properties: the tail is within its budget, the view is within the
    target, and the trigger does not fire. If no start has these properties, choose the start of the last unit.
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
        # A tail that is longer than required, or starts inside a turn, counts twice for the trigger's limit on the
        # messages after a summary. Otherwise the next turn, or an agent's next step, would fire the trigger.
        since = (1 + (cut > transcript.last_turn or cut < always)) * transcript.tokens(cut)
        if tail <= budget.tail and expected <= budget.target and not budget.trigger.fires(expected, since):
            return cut
    return cuts[-1]


def _tails(transcript: Transcript, cuts: Sequence[int], always: int, fill: int) -> list[int]:
    """Return possible starts of the tail, ascending. `always`: start of the turn `tail_turns` before the current turn.

    1. Starts of turns from `always` on. Earlier starts of turns, if the tail then has at most `fill` tokens.
    2. Starts of units in the turn before the earliest of (1), if the tail would otherwise use less than half of `fill`.
    3. Starts of units inside the last turn, if `fill` is 0, or if the tail then has at most `fill` tokens or is the
       last unit. With a longer tail, the provider would read more tokens uncached.
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
    """Return the maximum tokens of the user's words in all chunks: `budget.words`, or more if the target permits."""
    kept, cut = Path() if options.cumulative else base, spans[-1].stop if spans else base.covered
    others, _ = expected_view(conversation, kept, cut, len(spans), budget, options)
    return max(budget.words, min(int(WIDE_WORDS_SHARE * budget.room), budget.target - others))


def expected_view(
    conversation: Conversation, base: Path, cut: int, parts: int, budget: Budget, options: SummaryOptions
) -> tuple[int, int]:
    """Estimate the size of the view after a compaction up to `cut`. Return the tokens without the user's words, and the
    tokens of these words. Assume that a new summary has its requested size, and that a due fold is done."""
    transcript = conversation.transcript
    words = held_tokens(base.chunks)
    held, new = sum(chunk.tokens for chunk in base.chunks) - words, _new_tokens(conversation, base, cut, parts, budget)
    released = released_tokens(transcript, base.chunks)
    folds = will_fold(conversation, base, cut, parts, budget)
    summaries = (1 + _parts(held + new, options)) * budget.summary if folds else held + new
    carried = base.tokens - held - words - folds * released + transcript.carried_tokens(base.covered, cut, cut)
    context = conversation.client_context.carry_over(cut, transcript.carried(0, cut, cut))
    pinned = sum(transcript.tokens(*unit) for unit in conversation.kept.units if unit[0] < cut)
    words += _new_words(conversation, base.covered, cut, parts, budget) if options.user_words else 0
    others = conversation.instruction_tokens + summaries + carried + pinned + context.tokens + transcript.tokens(cut)
    return others, min(words, budget.words) if folds else words


def will_fold(conversation: Conversation, base: Path, cut: int, parts: int, budget: Budget) -> bool:
    """Return whether a compaction up to `cut` makes a fold due."""
    held = fold_weight(base.chunks) + _new_tokens(conversation, base, cut, parts, budget)
    released = released_tokens(conversation.transcript, base.chunks)
    return max(held, 2 * released) > budget.fold and len(base.chunks) + parts > FOLD_MINIMUM


def _new_words(conversation: Conversation, start: int, stop: int, parts: int, budget: Budget) -> int:
    """Estimate the tokens of the user's words that are quoted with the summaries of the messages from `start` up to
    `stop`. `parts`: number of these summaries."""
    transcript, most = conversation.transcript, min(parts * budget.chunk_words, budget.words)
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
    """Due compaction. It adds a chunk to `base` for each of `spans`. It folds chunks if all together are too long.

    A view uses either all new chunks that apply to its history, or none. Without spans, the compaction only folds.
    """

    base: Path
    spans: tuple[Span, ...]
    range: ChunkRange
    """Range that the compaction will cover. The range is also the key of the compaction's lease."""
    made: tuple[SummaryChunk, ...] = ()
    """Existing chunks for some of the spans, from an earlier compaction that partly failed."""

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

    A cumulative summary covers everything before the tail. To write one, the summariser reads the whole history
    (strategy `full`), or the last summary and later messages. Other strategies reuse `known` chunks after the base,
    unless the parts between these chunks are too small or the plan then frees too little.
    """
    transcript, chain, kept = conversation.transcript, conversation.chain, Path() if options.cumulative else base
    cut = choose_cut(conversation, base, budget, options)
    if cut is None:
        return None if options.cumulative else _plan_fold(conversation, base, budget, series)
    start = 0 if options.strategy == "full" else base.covered
    all_spans, made = _spans(conversation, base if start else Path(), Span(start, cut), options, known)
    if len(all_spans) > MOST_PARTS and start < base.covered:  # The whole history is too long: read only new messages.
        start = base.covered
        all_spans, made = _spans(conversation, base, Span(start, cut), options)
    spans, is_last = all_spans[:MOST_PARTS], len(all_spans) <= MOST_PARTS
    cut = spans[-1].stop
    covered = Span(0 if options.cumulative else base.covered, cut)
    parts = (covered,) if options.cumulative else spans
    expected = sum(expected_view(conversation, kept, cut, len(parts), budget, options))
    is_too_small = any(replaced_tokens(transcript, part, cut) < SMALLEST_PART for part in parts)
    if is_too_small or not _frees_enough(conversation, base, expected, cut, budget, is_last=is_last):
        return plan_compaction(conversation, base, budget, options, series) if made else None
    return Plan(base, spans, ChunkRange(series, chain[covered.start], chain[cut]), made)


def _plan_fold(conversation: Conversation, base: Path, budget: Budget, series: str) -> Plan | None:
    """Plan the fold of all chunks but the last; None if no fold is due."""
    foldable = base.chunks[:-1]
    held = max(fold_weight(base.chunks), 2 * released_tokens(conversation.transcript, foldable))
    if len(foldable) < FOLD_MINIMUM or held <= budget.fold:
        return None
    return Plan(base, (), ChunkRange(series, conversation.chain[0], foldable[-1].through_digest))


def _frees_enough(
    conversation: Conversation, base: Path, expected: int, cut: int, budget: Budget, *, is_last: bool
) -> bool:
    """Return whether a compaction frees at least a tenth of the view, and the trigger then does not fire. Any gain is
    enough if the view exceeds the limit, or if further compactions follow this one (not `is_last`)."""
    view = unmasked_tokens(conversation, base)
    if view > budget.limit or not is_last:
        return expected < view
    tail = conversation.transcript.tokens(cut)
    return view - expected >= MINIMUM_GAIN * view and not budget.trigger.fires(expected, tail)


def folds_in(conversation: Conversation, plan: Plan, budget: Budget, options: SummaryOptions) -> bool:
    """Return whether one call summarises the new messages and all older chunks, so that no fold is needed."""
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
    """Return the parts of the span, and the known chunks for some of these parts. If the summariser reads the
    conversation itself (`is_shown`), the span is one part."""
    if is_shown(conversation, base, span, options):
        return (span,), ()
    made = _behind(conversation, span, () if options.cumulative else known)
    spans = split_span(conversation.transcript, span, options, [*made])
    return spans, tuple(made[part] for part in spans[:MOST_PARTS] if part in made)


def _behind(conversation: Conversation, span: Span, known: Iterable[SummaryChunk]) -> dict[Span, SummaryChunk]:
    """Return the chunks of level 0 inside the span, by range. If chunks overlap, take the earliest, then the longest.
    Exclude chunks at the span's start, and a `continued` chunk at the span's end, which another chunk must follow."""
    found: dict[Span, SummaryChunk] = {}
    free = span.start + 1
    for start, stop, chunk in sorted(usable(conversation, known), key=lambda edge: (edge[0], -edge[1])):
        goes_on = chunk.continued and stop == span.stop
        if free <= start and stop <= span.stop and chunk.level == 0 and not goes_on:
            found[Span(start, stop)], free = chunk, stop
    return found


def is_shown(conversation: Conversation, base: Path, span: Span, options: SummaryOptions) -> bool:
    """Return whether the summariser reads the conversation itself, up to the span's end, instead of a transcript.
    Return False if instructions occur before the span's end, because the summariser would follow them."""
    messages = conversation.transcript.messages
    if options.style != "prefix" or messages.first_instruction < span.stop:
        return False
    # Some summarisers accept a user message only after an assistant message.
    if options.alternates and not is_answer(messages[span.stop - 1]):
        return False
    return shown_size(conversation, base, span) <= options.shown_tokens


def shown_size(conversation: Conversation, base: Path, span: Span) -> int:
    """Return the tokens of the view with the summaries of `base`, up to the span's end."""
    return unmasked_tokens(conversation, base) - conversation.transcript.tokens(span.stop)


def calls_of_plan(
    conversation: Conversation, plan: Plan, budget: Budget, options: SummaryOptions, price: Price, shown: Rates | None
) -> float:
    """Return the cost of a plan's summary calls, in millionths of the price's unit. Folds and reasoning do not count.
    `shown`: the provider's rates if it has the conversation in its prompt cache, else None."""
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
