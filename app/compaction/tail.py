"""The cut: where the verbatim tail begins, and how large a view is then."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from math import ceil

from app.compaction.budget import Budget
from app.compaction.select import Path, pinned_tokens
from app.compaction.spans import Span, fold_weight, quoted_tokens, released_tokens, replaced_tokens, summary_tokens
from app.compaction.summary_options import SummaryBrief
from app.compaction.user_words import SHARE, WIDE_SHARE, chunk_room, held_tokens
from app.compaction.view import Conversation
from app.conversation.messages import Transcript

FOLD_MINIMUM = 2
"""Folding fewer chunks than this makes nothing smaller."""

AIMED_SHARE = 0.5
"""A summary is asked to take at most this share of what it replaces, so that the gate does not find it too large."""


def choose_cut(conversation: Conversation, base: Path, budget: Budget, summary: SummaryBrief) -> int | None:
    """Start of the verbatim tail: as early as its share allows, later until the view meets the target.

    First between turns, then inside the last one, between units, its user message kept; None if nothing is left to
    summarise before the last unit.
    """
    transcript = conversation.transcript
    cuts = [cut for cut in transcript.cuts if cut > base.covered]
    if not cuts:
        return None
    # A summary of everything stands for what the base's chunks stand for too.
    kept = Path() if summary.cumulative else base
    asked = {transcript.last_turn, transcript.last_user} - {-1}
    always = next(iter(transcript.turn_starts[-1 - budget.tail_turns :]), 0)
    for cut in _tails(transcript, cuts, always, budget.tail_fill):
        tail = transcript.tokens(cut) + sum(transcript.tokens_of(index) for index in asked if index < cut)
        parts = _parts(quoted_tokens(transcript, base.covered, cut), summary)
        expected = expected_view(conversation, kept, cut, parts, budget, summary)
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


def expected_view(
    conversation: Conversation, base: Path, cut: int, parts: int, budget: Budget, summary: SummaryBrief
) -> int:
    """The view after a compaction up to `cut`: summaries as large as they may be, folded where they will be."""
    return sum(_expected(conversation, base, cut, parts, budget, summary))


def words_room(
    conversation: Conversation, base: Path, spans: Sequence[Span], budget: Budget, summary: SummaryBrief
) -> int:
    """Most tokens of the user's words in all chunks after a compaction: more while the view is under its target."""
    kept, cut = Path() if summary.cumulative else base, spans[-1].stop if spans else base.covered
    others, _ = _expected(conversation, kept, cut, len(spans), budget, summary)
    return max(int(SHARE * budget.room), min(int(WIDE_SHARE * budget.room), budget.target - others))


def _expected(
    conversation: Conversation, base: Path, cut: int, parts: int, budget: Budget, summary: SummaryBrief
) -> tuple[int, int]:
    """Tokens of the view after a compaction up to `cut`: without the user's words, and of these."""
    transcript = conversation.transcript
    words = held_tokens(base.chunks)
    held, new = summary_tokens(base.chunks) - words, _new_tokens(conversation, base, cut, parts, budget)
    released = released_tokens(transcript, base.chunks)
    folds = will_fold(conversation, base, cut, parts, budget)
    summaries = (1 + _parts(held + new, summary)) * budget.summary if folds else held + new
    carried = base.tokens - held - words - folds * released + transcript.carried_tokens(base.covered, cut, cut)
    context = conversation.client_context.carry_over(cut, transcript.carried(0, cut, cut))
    beside = pinned_tokens(conversation, cut) + context.tokens
    words += _new_words(conversation, base.covered, cut, parts, budget) if summary.user_words else 0
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


def _parts(tokens: int, summary: SummaryBrief) -> int:
    """How many summaries stand for so many tokens."""
    if summary.cumulative or summary.source_tokens is None:
        return 1
    return max(1, ceil(tokens / summary.source_tokens))
