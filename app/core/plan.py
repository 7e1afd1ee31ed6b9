"""Planning: which messages a due compaction summarises, and in how many parts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from app.core.budget import Budget
from app.core.chunks import ChunkRange, SummaryChunk
from app.core.mask import Boundary, MaskSettings
from app.core.messages import INSTRUCTION_ROLES, Transcript
from app.core.policy import CUMULATIVE, Strategy
from app.core.view import Conversation, Masking, Path, build_view, pinned_tokens, size_after, widest_path

FOLD_MINIMUM = 2
"""Folding fewer chunks than this makes nothing smaller."""

QUOTE_TOKENS = 6
"""What quoting a message in a transcript costs beyond what the message costs in a prompt: its heading."""

SMALLEST_PART = 100
"""Fewer tokens leave no room between the shortest summary and one that is clearly smaller than what it replaces."""

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

    Without spans it only folds.
    """

    base: Path
    spans: tuple[Span, ...]
    range: ChunkRange
    """What it will cover: the key of its lease."""


def plan_compaction(
    conversation: Conversation, chunks: Iterable[SummaryChunk], budget: Budget, summary: SummarySettings, series: str
) -> Plan | None:
    """The compaction that is due, or None if no summary can make the conversation enough smaller."""
    base = widest_path(conversation, chunks)
    if summary.cumulative:
        return _plan_cumulative(conversation, base, budget, summary, series)
    start = base.covered
    cut = choose_cut(conversation, base, budget)
    if cut is None:
        foldable = base.chunks[:-1]
        if len(foldable) < FOLD_MINIMUM or summary_tokens(base.chunks) <= budget.fold:
            return None
        start, cut = 0, conversation.chain.positions[foldable[-1].through_digest]
        spans: tuple[Span, ...] = ()
    else:
        spans = _needed(conversation, base, _spans(conversation, base, Span(start, cut), summary), budget)
        cut = spans[-1].stop
        if not _worth_it(conversation, base, spans, budget):
            return None
    return Plan(base, spans, ChunkRange(series, conversation.chain[start], conversation.chain[cut]))


def _plan_cumulative(
    conversation: Conversation, base: Path, budget: Budget, summary: SummarySettings, series: str
) -> Plan | None:
    """One summary over everything before the tail; what is read for it is everything, or what the last one lacks."""
    empty = Path()
    cut = choose_cut(conversation, base, budget, replaces=True)
    if cut is None:
        return None
    start = 0 if summary.strategy == "full" else base.covered
    spans = _spans(conversation, base if start else empty, Span(start, cut), summary)
    if replaced_tokens(conversation.transcript, Span(0, cut)) < SMALLEST_PART:
        return None
    view = _present_view(conversation, base)
    if not _frees_enough(conversation, view, _expected_view(conversation, empty, cut, 1, budget), cut, budget):
        return None
    return Plan(base, spans, ChunkRange(series, conversation.chain[0], conversation.chain[cut]))


def _spans(conversation: Conversation, base: Path, span: Span, summary: SummarySettings) -> tuple[Span, ...]:
    """The span whole, where the summariser is shown the conversation up to its end; else as it can read it."""
    if summary.style == "prefix" and shown_size(conversation, base, span) <= summary.shown_tokens:
        return (span,)
    return split_span(conversation.transcript, span, summary)


def shown_size(conversation: Conversation, base: Path, span: Span) -> int:
    """Tokens of the conversation up to the span's end: the base's summaries, and the span as the client wrote it."""
    return build_view(conversation, base).tokens - conversation.transcript.tokens(span.stop)


def plan_mask(
    conversation: Conversation,
    chunks: Iterable[SummaryChunk],
    budget: Budget,
    masking: Masking,
    settings: MaskSettings = FLAT,
) -> Boundary | None:
    """The boundary that makes a summary unnecessary for now, or, from a set pressure on, that masks all there is.

    None without one: it is moved rarely, and then for a gain.

    Everything before the last unit counts, so that the next boundaries are far off; what the model has not answered
    in text stays whole anyway.
    """
    transcript = conversation.transcript
    base = widest_path(conversation, chunks)
    last = transcript.cuts[-1] if transcript.cuts else 0
    held = max(masking.usable(base.covered), default=base.covered)
    if last <= held:
        return None
    view = _present_view(conversation, base)
    before, after = (view - masking.masks.saved(base.covered, position) for position in (held, last))
    if before - after < max(1, settings.minimum_gain * before):
        return None
    under_pressure = settings.pressure is not None and (
        before - conversation.instruction_tokens >= settings.pressure * budget.limit
    )
    return Boundary(last, base.covered) if under_pressure or after <= budget.target else None


def _needed(conversation: Conversation, base: Path, spans: Sequence[Span], budget: Budget) -> tuple[Span, ...]:
    """As many parts as bring the view to the target: a view would use no more of them, and the next comes later."""
    for parts, span in enumerate(spans, 1):
        if _expected_view(conversation, base, span.stop, parts, budget) <= budget.target:
            return tuple(spans[:parts])
    return tuple(spans)


def _worth_it(conversation: Conversation, base: Path, spans: Sequence[Span], budget: Budget) -> bool:
    """Whether the compaction frees a tenth of the request and brings it under the trigger.

    Over the limit, whether it frees anything: there the choice is between less and nothing.
    """
    if any(replaced_tokens(conversation.transcript, span) < SMALLEST_PART for span in spans):
        return False
    view = _present_view(conversation, base)
    cut = spans[-1].stop
    return _frees_enough(conversation, view, _expected_view(conversation, base, cut, len(spans), budget), cut, budget)


def _frees_enough(conversation: Conversation, view: int, expected: int, cut: int, budget: Budget) -> bool:
    if view > budget.limit:
        return expected < view
    tail = conversation.transcript.tokens(cut)
    after = size_after(conversation, cut, expected, budget.trigger.tail_turns, tail)
    return view - expected >= MINIMUM_GAIN * view and not budget.trigger.fires(after)


def _expected_view(conversation: Conversation, base: Path, cut: int, parts: int, budget: Budget) -> int:
    """The view after a compaction up to `cut`: summaries as large as they may be, folded where they will be."""
    transcript = conversation.transcript
    held, new = summary_tokens(base.chunks), parts * budget.summary
    folds = held + new > budget.fold and len(base.chunks) + parts > FOLD_MINIMUM
    summaries = 2 * budget.summary if folds else held + new
    carried = base.tokens - held + sum(map(transcript.tokens_of, carried_in(transcript, base.covered, cut)))
    pinned = pinned_tokens(conversation, cut)
    return conversation.instruction_tokens + summaries + carried + pinned + transcript.tokens(cut)


def _present_view(conversation: Conversation, base: Path) -> int:
    """The view over the chunks there are, unmasked."""
    pinned = pinned_tokens(conversation, base.covered)
    return conversation.instruction_tokens + base.tokens + pinned + conversation.transcript.tokens(base.covered)


def choose_cut(conversation: Conversation, base: Path, budget: Budget, *, replaces: bool = False) -> int | None:
    """Where the verbatim tail begins: as many turns as fit, fewer until the view meets the target.

    Four turns, three, two, one; then inside the last turn, between units, its user message kept; None if nothing is
    left to summarise before the last unit. `replaces`: the new summary stands for what the base's chunks stand for too.
    """
    transcript = conversation.transcript
    cuts = [cut for cut in transcript.cuts if cut > base.covered]
    if not cuts:
        return None
    kept_turns = transcript.turn_starts[-budget.tail_turns :] if budget.tail_turns else ()
    between_turns = [start for start in kept_turns if start in cuts]
    inside_last_turn = [cut for cut in cuts if cut > transcript.last_user]
    user = transcript.last_user
    for cut in (*between_turns, *inside_last_turn):
        tail = transcript.tokens(cut) + (transcript.tokens_of(user) if 0 <= user < cut else 0)
        expected = _expected_view(conversation, Path() if replaces else base, cut, 1, budget)
        # Inside a turn at most half of what may follow a summary stays, or an agent's next step would fire it again.
        since = (1 + (cut > user)) * transcript.tokens(cut)
        after = size_after(conversation, cut, expected, budget.trigger.tail_turns, since)
        if tail <= budget.tail and expected <= budget.target and not budget.trigger.fires(after):
            return cut
    return cuts[-1]


def carried_in(transcript: Transcript, start: int, stop: int) -> tuple[int, ...]:
    """The messages of a range that stay verbatim: mid-conversation instructions, and a split turn's user message."""
    split = transcript.split_user(stop)
    return tuple(
        index for index in range(start, stop) if index == split or transcript.messages[index].role in INSTRUCTION_ROLES
    )


def split_span(transcript: Transcript, span: Span, summary: SummarySettings) -> tuple[Span, ...]:
    """The span in as few parts as the summariser can read, cut between turns where it can be, else between units.

    A single unit larger than that stays whole: it is shown to the summariser shortened. What is left before or after
    one may be too little for a summary of its own, and goes with its neighbour.
    """
    starts = frozenset(transcript.turn_starts)
    inside = [cut for cut in transcript.cuts if span.start < cut < span.stop]
    parts: list[Span] = []
    start = span.start
    fits_one_call = quoted_tokens(transcript, span.start, span.stop) <= summary.input_tokens
    at_most = summary.input_tokens if fits_one_call else summary.part_tokens
    while quoted_tokens(transcript, start, span.stop) > at_most:
        ahead = [cut for cut in inside if cut > start]
        fitting = [cut for cut in ahead if quoted_tokens(transcript, start, cut) <= at_most]
        cut = next((cut for cut in reversed(fitting) if cut in starts), fitting[-1] if fitting else None)
        cut = cut if cut is not None else (ahead[0] if ahead else None)
        if cut is None:
            break
        parts.append(Span(start, cut))
        start = cut
    return _with_neighbours(transcript, (*parts, Span(start, span.stop)))


def _with_neighbours(transcript: Transcript, parts: Iterable[Span]) -> tuple[Span, ...]:
    joined: list[Span] = []
    for part in parts:
        if joined and min(replaced_tokens(transcript, joined[-1]), replaced_tokens(transcript, part)) < SMALLEST_PART:
            joined[-1] = Span(joined[-1].start, part.stop)
        else:
            joined.append(part)
    return tuple(joined)


def replaced_tokens(transcript: Transcript, span: Span) -> int:
    """What a summary of the range stands for: its messages but those that are carried."""
    carried = carried_in(transcript, span.start, span.stop)
    return transcript.tokens(span.start, span.stop) - sum(map(transcript.tokens_of, carried))


def quoted_tokens(transcript: Transcript, start: int, stop: int) -> int:
    """The size of a range as the summariser reads it."""
    return transcript.tokens(start, stop) + QUOTE_TOKENS * (stop - start)


def halves(transcript: Transcript, span: Span) -> tuple[Span, ...]:
    """The span in two parts of about equal size, or as it is where it cannot be cut."""
    inside = [cut for cut in transcript.cuts if span.start < cut < span.stop]
    if not inside:
        return (span,)
    half = transcript.tokens(span.start, span.stop) / 2
    cut = min(inside, key=lambda position: abs(transcript.tokens(span.start, position) - half))
    return Span(span.start, cut), Span(cut, span.stop)


def summary_tokens(chunks: Iterable[SummaryChunk]) -> int:
    return sum(chunk.tokens for chunk in chunks)
