"""Blocks that stay: what a client put into messages for good stands in every view, whatever stands for the messages.

Of each kind the newest that is left out is said again, letter by letter, in one note behind the leading instructions.
Which these are depends on what is left out and on nothing behind it: between two compactions the note stays as it is.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from app.core.history.blocks import MARKS, Block, Mark, blocks_in
from app.core.history.messages import Message, Transcript, own_message
from app.core.lazy import lazy
from app.core.limits.budget import Budget
from app.core.tokens.estimate import Cost

BLOCKS_SHARE = 0.10
"""Share of the limit that all that is said again may take."""
RATIO_STEP = 0.25
OPENING = (
    "[The program that this conversation is held with put this there for the whole of it, in messages that are left out"
    " here. It still holds:]"
)
SAID_AGAIN = "[instructions of the client that stay in the conversation, not shown]"
"""Text in place of such a block for whoever summarises its message."""


def blocks_room(budget: Budget) -> int:
    """Tokens that all that is said again may take."""
    return steady_estimate(BLOCKS_SHARE * budget.reported_limit, budget)


def steady_estimate(tokens: float, budget: Budget) -> int:
    """So many of the provider's tokens in ours, by coarse steps of the calibration: with each answer that moves a
    little, and so would what there is room for."""
    return int(tokens / (max(1, round(budget.line.ratio / RATIO_STEP)) * RATIO_STEP))


class SaidAgain(Struct, frozen=True):
    """Blocks that a view has to say again."""

    blocks: tuple[Block, ...] = ()
    """Blocks that are said again, in the order in which they were said."""
    left_out: tuple[Block, ...] = ()
    """Blocks that there is no room for."""
    text: str = ""
    """Text of the note; empty where nothing is to be said."""
    tokens: int = 0


NOTHING = SaidAgain()


class Blocks:
    """Blocks of one conversation."""

    def __init__(self, transcript: Transcript, room: int, cost: Cost) -> None:
        """`room` in tokens."""
        self._transcript = transcript
        self._room = room
        self._cost = cost
        self._said: dict[tuple[Block, ...], SaidAgain] = {}

    @lazy
    def _found(self) -> tuple[Block, ...]:
        messages = enumerate(self._transcript.messages)
        return tuple(block for index, message in messages for block in blocks_in(message, index))

    @lazy
    def places(self) -> Mapping[int, frozenset[int]]:
        """Texts that hold blocks, by their messages: no stage may shorten them, unless they are too large anyway."""
        places: dict[int, frozenset[int]] = {}
        for block in self._found:
            if self._cost(own_message(block.text)) <= self._room:
                places[block.index] = places.get(block.index, frozenset()) | {block.place}
        return places

    def again(self, reach: int, stands: Container[int]) -> SaidAgain:
        """Blocks to be said in a view in which, of the first `reach` messages, only those in `stands` are sent."""
        newest = {kind: block for block in self._found if block.index < reach for kind in block.kinds}
        return self._said_of(newest.values(), stands)

    def most_again(self, least_reach: int, reach: int, stands: Container[int]) -> int:
        """Tokens of the largest note that `again` makes for any reach from the one to the other.

        The furthest reach need not have it: where that takes in a message that stands, what this says is not said
        again, and an older block of the same kind is for a shorter one.
        """
        newest: dict[tuple[Mark, str], Block] = {}
        most = 0
        for block in self._found:
            if block.index >= reach:
                break
            newest.update(dict.fromkeys(block.kinds, block))
            if block.index + 1 >= least_reach:
                most = max(most, self._said_of(newest.values(), stands).tokens)
        return most

    def _said_of(self, blocks: Iterable[Block], stands: Container[int]) -> SaidAgain:
        gone = tuple(dict.fromkeys(block for block in blocks if block.index not in stands))
        if not gone:
            return NOTHING
        if gone not in self._said:
            self._said[gone] = self._fitting(gone)
        return self._said[gone]

    def unquoted(self, message: Message, index: int, again: SaidAgain) -> Message:
        """A message as it is summarised: without what is said again, or was before it was said anew."""
        left_out = {block.mark for block in again.left_out}
        texts = list(message.texts)
        for block in blocks_in(message, index):
            if block.mark not in left_out:
                texts[block.place] = texts[block.place].replace(block.text, SAID_AGAIN, 1)
        return replace(message, texts=tuple(texts)) if tuple(texts) != message.texts else message

    def _fitting(self, gone: Sequence[Block]) -> SaidAgain:
        """The more important first, as the tables have them."""
        chosen: tuple[Block, ...] = ()
        tokens = 0
        for block in sorted(gone, key=lambda each: MARKS.index(each.mark)):
            more = tuple(sorted((*chosen, block), key=lambda each: (each.index, each.place)))
            needed = self._cost(own_message(_written(more)))
            if needed <= self._room:
                chosen, tokens = more, needed
        left_out = tuple(block for block in gone if block not in chosen)
        return SaidAgain(chosen, left_out, _written(chosen) if chosen else "", tokens)


def _written(blocks: Sequence[Block]) -> str:
    return "\n\n".join((OPENING, *(block.text for block in blocks)))
