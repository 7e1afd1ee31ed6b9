"""Spans: the ranges of a conversation that become chunks, and how large they are."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from math import ceil

from msgspec import Struct

from app.compaction.chunks import SummaryChunk
from app.compaction.summary_options import SummaryBrief
from app.conversation.messages import Transcript

QUOTE_TOKENS = 6
"""Tokens that quoting a message in a transcript costs beyond what the message costs in a prompt: its heading."""

SMALLEST_PART = 100
"""Fewer tokens leave no room between the shortest summary and one that is clearly smaller than what it replaces."""


class Span(Struct, frozen=True):
    """The messages from `start` up to `stop`, to be summarised as one chunk."""

    start: int
    stop: int


def split_span(
    transcript: Transcript, span: Span, summary: SummaryBrief, made: Sequence[Span] = ()
) -> tuple[Span, ...]:
    """The span in as few parts as the summariser can read and a summary may stand for, of about one size.

    Cut between turns where one begins near, else between units. A single unit larger than a part stays whole: it is
    shown to the summariser shortened. What is left before or after one may be too little for a summary of its own, and
    goes with its neighbour.

    Cut around the parts that are `made` already. What has come since goes with the last of them where one call reads
    both: else each time a little more would be a part of its own.
    """
    at_most = _largest_part(transcript, span, summary)
    parts: list[Span] = []
    start = span.start
    for part in made:
        parts += [*_cut(transcript, Span(start, part.start), at_most), part]
        start = part.stop
    if made and start < span.stop and quoted_tokens(transcript, made[-1].start, span.stop) <= at_most:
        start = parts.pop().start
    return _with_neighbours(transcript, [*parts, *_cut(transcript, Span(start, span.stop), at_most)], summary)


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


def _largest_part(transcript: Transcript, span: Span, summary: SummaryBrief) -> int:
    fits_one_call = quoted_tokens(transcript, span.start, span.stop) <= summary.input_tokens
    readable = summary.input_tokens if fits_one_call else summary.part_tokens
    if summary.cumulative or summary.source_tokens is None:
        return readable
    return min(readable, summary.source_tokens)


def _nearest(transcript: Transcript, start: int, cuts: Sequence[int], size: float, at_most: int) -> int | None:
    """Cut that makes a part of about that size, and none larger than `at_most`. The cuts ascend."""

    def quoted(cut: int) -> int:
        return quoted_tokens(transcript, start, cut)

    begin = bisect_right(cuts, start)
    end = bisect_right(cuts, at_most, lo=begin, key=quoted)
    above = bisect_left(cuts, size, lo=begin, hi=end, key=quoted)
    return min(cuts[max(begin, above - 1) : min(end, above + 1)], key=lambda cut: abs(quoted(cut) - size), default=None)


def _with_neighbours(transcript: Transcript, parts: Sequence[Span], summary: SummaryBrief) -> tuple[Span, ...]:
    def replaced(part: Span) -> int:
        # A summary of everything so far is made part by part, and each carries what the end of its part splits.
        return replaced_tokens(transcript, part, part.stop if summary.cumulative else parts[-1].stop)

    joined: list[Span] = []
    for part in parts:
        smaller = min(map(replaced, (*joined[-1:], part)))
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
    """The size of a range as the summariser reads it."""
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


def summary_tokens(chunks: Iterable[SummaryChunk]) -> int:
    return sum(chunk.tokens for chunk in chunks)


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
