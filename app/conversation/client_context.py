"""Client context: text blocks, such as a project's rules, that the client program adds to user messages.

Some blocks are valid for the whole conversation (`CONTEXT`), others for a moment (`REMINDERS`). Steno recognises a
block only at the beginning of a message or directly after another block, because elsewhere it may be part of a
document. If Steno omits messages, a note after the leading instructions repeats the newest block of each kind verbatim.
The note depends on the omitted messages alone, so it stays the same until the next compaction.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from importlib.resources import files

from msgspec import Struct, convert
from msgspec.structs import replace

from app.conversation.messages import History, Kind, Message, Transcript, lazy, own_message
from app.conversation.tool_results import WORDINGS

_OPENING = """[The program that this conversation is held with put this there for the whole of it, in messages \
that are left out here. It still holds:]"""
CARRIED_OVER = "[instructions of the client that stay in the conversation, not shown]"
"""Text that the summariser gets in place of a block that the note repeats."""

MOST_OF_LIMIT = 0.5
"""Share of the limit. If instructions inside the history take more tokens, Steno may summarise superseded ones."""
BEGINNING = 24
"""Number of leading characters of instructions that Steno compares, with `0` in place of each number. If instructions
of one role begin alike, the newest supersede the others."""
_READ_CHARACTERS = 200


class ContextKind(Struct, frozen=True):
    begins: str
    ends: str = ""
    """End mark; empty if the block reaches to the end of its text."""
    members: tuple[str, ...] = ()
    """Tags in a block. In a later block of the same kind, clients repeat a tag only if the tag's content changed."""


_TABLE = tomllib.loads(files(__package__).joinpath("client_context.toml").read_text("utf-8"))
CONTEXT = convert(_TABLE["context"], tuple[ContextKind, ...])
"""Kinds that are valid for a whole conversation, the most important first."""
REMINDERS = convert(_TABLE["reminders"], tuple[ContextKind, ...])
_KINDS = sorted((*CONTEXT, *REMINDERS), key=lambda kind: -len(kind.begins))
"""All kinds, the longest beginning first, because a longer beginning may start with a shorter one."""
_BEGINNINGS = (re.sub(r"(\\\n)+", r"\\s*", re.escape(kind.begins)) for kind in _KINDS)
_BEGINNING = re.compile(rf"\s*(?:{'|'.join(f'({beginning})' for beginning in _BEGINNINGS)})")
_QUEUED = re.compile(rf"\s*+{WORDINGS['queued']}\s*+", re.DOTALL | re.IGNORECASE)


class ContextBlock(Struct, frozen=True):
    """Block that is valid for the whole conversation."""

    kind: ContextKind
    index: int
    """Index of the message with the block."""
    place: int
    """Index of the block's text among the message's texts."""
    text: str

    @property
    def replaces(self) -> Iterator[tuple[ContextKind, str]]:
        """Yield kind and tag of each part that this block replaces in older blocks. Untagged text has an empty tag."""
        return ((self.kind, tag) for tag in ("", *self.kind.members) if tag in self.text)


def queued_words(text: str) -> str | None:
    """Return the user's words if the text is a reminder of words typed while the assistant worked; otherwise None."""
    queued = _QUEUED.fullmatch(text)
    return queued["words"] if queued else None


def without_context(texts: Iterable[str]) -> tuple[str, ...]:
    """Return the texts without leading blocks and without blank texts. Of a reminder, keep only the user's words."""
    own: list[str] = []
    for text in texts:
        said = queued_words(text) or text
        if blocks := _leading(said):
            said = said[blocks[-1][2] :]
        if said.strip():
            own.append(said)
    return tuple(own)


def is_client_text(texts: Sequence[str]) -> bool:
    """Return whether a message with these texts consists of blocks only."""
    return not without_context(texts) and any(text.strip() for text in texts)


def blocks_in(message: Message, index: int) -> list[ContextBlock]:
    """Return the blocks of a message that are valid for the whole conversation, in order."""
    if message.kind not in (Kind.USER, Kind.CLIENT) and not message.beside:
        return []
    found: list[ContextBlock] = []
    foreign = {*message.passed_on, *message.result_places}
    for place, text in enumerate(message.texts):
        if place in foreign:
            continue
        end = 0
        for kind, start, end in _leading(text):
            if kind not in REMINDERS:
                found.append(ContextBlock(kind, index, place, text[start:end]))
        if text[end:].strip():  # The rest is the user's text, or a quotation.
            break
    return found


def _leading(text: str) -> list[tuple[ContextKind, int, int]]:
    """Return kind, start and end of each block at the beginning of a text. Start and end include white space."""
    blocks: list[tuple[ContextKind, int, int]] = []
    end = 0
    while (match := _BEGINNING.match(text, end)) and not _QUEUED.fullmatch(text):
        kind = _KINDS[(match.lastindex or 1) - 1]
        close = text.find(kind.ends, match.end()) if kind.ends else len(text)
        if close < 0:
            break
        start, end = end, len(text) - len(text[close + len(kind.ends) :].lstrip())
        blocks.append((kind, start, end))
    return blocks


class CarriedContext(Struct, frozen=True):
    """Note that repeats the blocks of omitted messages."""

    blocks: tuple[ContextBlock, ...] = ()
    left_out: tuple[ContextBlock, ...] = ()
    """Blocks that do not fit into the note."""
    text: str = ""
    """Text of the note; empty without blocks."""
    tokens: int = 0


class ClientContext:
    def __init__(self, transcript: Transcript, room: int, cost: Callable[[Message], int]) -> None:
        """Each note has at most `room` tokens. `cost` returns the tokens of a message."""
        self._transcript = transcript
        self._room = room
        self._cost = cost
        self._notes: dict[tuple[ContextBlock, ...], CarriedContext] = {(): CarriedContext()}

    @lazy
    def _blocks(self) -> tuple[ContextBlock, ...]:
        return tuple(b for index, message in enumerate(self._transcript.messages) for b in blocks_in(message, index))

    @lazy
    def _parts(self) -> Sequence[tuple[tuple[ContextKind, str], ContextBlock]]:
        return [(part, block) for block in self._blocks for part in block.replaces]

    @lazy
    def places(self) -> Mapping[int, frozenset[int]]:
        """Map the index of each message with blocks to the indexes of its texts with blocks. Steno must not shorten
        these texts. Blocks that are too large for a note do not count."""
        places: dict[int, frozenset[int]] = {}
        for block in self._blocks:
            if self._cost(own_message(block.text)) <= self._room:
                places[block.index] = places.get(block.index, frozenset()) | {block.place}
        return places

    def carry_over(self, reach: int, sent: Container[int]) -> CarriedContext:
        """Return the note for a payload that omits the first `reach` messages, except those in `sent`."""
        newest = {part: block for part, block in self._parts if block.index < reach}
        gone = tuple(dict.fromkeys(block for block in newest.values() if block.index not in sent))
        if gone not in self._notes:
            self._notes[gone] = self._note(gone)
        return self._notes[gone]

    def most_tokens(self, least_reach: int, reach: int, sent: Container[int]) -> int:
        """Return the tokens of the largest note of all payloads that omit the first n messages, n from `least_reach` to
        `reach`. A larger n may have a smaller note: a message in `sent` may have a newer block of the same kind."""
        ends = {block.index + 1 for block in self._blocks if least_reach <= block.index + 1 <= reach}
        return max((self.carry_over(end, sent).tokens for end in ends), default=0)

    def without_repeated(self, message: Message, index: int, carried: CarriedContext) -> Message:
        """Return the message for the summariser. `CARRIED_OVER` replaces each block, unless the note lacks its kind."""
        left_out = {block.kind for block in carried.left_out}
        texts = list(message.texts)
        for block in blocks_in(message, index):
            if block.kind not in left_out:
                texts[block.place] = texts[block.place].replace(block.text, CARRIED_OVER, 1)
        return replace(message, texts=tuple(texts)) if tuple(texts) != message.texts else message

    def _note(self, gone: Sequence[ContextBlock]) -> CarriedContext:
        """Return a note with the blocks that fit. The most important blocks take precedence."""
        note = CarriedContext()
        for block in sorted(gone, key=lambda each: CONTEXT.index(each.kind)):
            blocks = tuple(sorted((*note.blocks, block), key=lambda each: (each.index, each.place)))
            text = "\n\n".join((_OPENING, *(each.text for each in blocks)))
            if (tokens := self._cost(own_message(text))) <= self._room:
                note = CarriedContext(blocks, (), text, tokens)
        return replace(note, left_out=tuple(block for block in gone if block not in note.blocks))


_NUMBER = re.compile(r"\d+")


def superseded_places(history: History) -> frozenset[int]:
    """Return the indexes of instructions that newer instructions with the same beginning supersede.

    Some clients send retrieved passages for each question as a system message. Instructions stay in every payload, so
    such messages would fill the window.
    """
    newest = {_beginning(history[place]): place for place in history.instruction_places}
    return frozenset(history.instruction_places) - frozenset(newest.values())


def without_superseded(history: History, superseded: frozenset[int]) -> History:
    """Return the history. Its superseded instructions are sealed: summaries may replace them, but not quote them."""

    def messages() -> Iterator[Message]:
        for place, message in enumerate(history):
            yield replace(message, kind=Kind.OTHER, sealed=True) if place in superseded else message

    return History(messages())


def _beginning(message: Message) -> tuple[str, str]:
    return message.role, _NUMBER.sub("0", message.text[:_READ_CHARACTERS].strip())[:BEGINNING]
