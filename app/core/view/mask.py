"""Masks: tool results that the assistant has used become head and tail, and then stay so.

A boundary is a position in the history. A tool result before it is masked if, before it too, the result was used up:

- text of the assistant came after it: the model has read it and said something;
- or the assistant has gone on without a word, and ten later results stand behind that;
- or something newer makes it old (see `history/work`): the same file was read again, the same command was run again.

What is made old before ten later results came says in its mask where the newer one is. What comes after the boundary
changes nothing until it moves, so the same message has the same bytes in every payload between; and what has been
masked for ten results has the same bytes ever after, wherever the boundary moves.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from fnmatch import fnmatchcase
from hashlib import blake2b
from itertools import accumulate

from msgspec import Struct
from msgspec.structs import replace

from app.core.history.messages import Kind, Message, Transcript
from app.core.history.work import Newer, newer_in
from app.core.lazy import lazy
from app.core.tokens.estimate import Cost


class MaskPolicy(Struct, frozen=True):
    characters: int = 300
    """Characters that are left of a text: 70 % of it head, 30 % tail."""
    allow: tuple[str, ...] = ()
    """Tools whose results are masked, as globs; all if empty."""
    deny: tuple[str, ...] = ()
    """Tools whose results are never masked; stronger than `allow`."""

    pressure: float | None = None
    """Share of the limit, taken by messages alone, from which on all that can be masked is. None: only where masks make
    a summary unnecessary."""
    later: int | None = 10
    """Results after which one is used up without a word. None: text alone uses results up, and nothing makes them
    old."""
    minimum_gain: float = 0.10
    """A boundary moves only where that frees this share of the view: each move breaks the provider's prompt cache."""

    @property
    def key(self) -> str:
        """Names what is masked and how: a boundary holds for one set of that."""
        how = (self.characters, self.allow, self.deny)
        written = repr(how if self.later is None else (*how, self.later)).encode("utf-8", "surrogatepass")
        return blake2b(written, digest_size=8, person=b"steno-mask").hexdigest()


def is_allowed(tool: str, allow: Sequence[str], deny: Sequence[str]) -> bool:
    """Whether the globs let a tool's results be cut: `deny` is stronger, an empty `allow` means all."""
    if any(fnmatchcase(tool, pattern) for pattern in deny):
        return False
    return not allow or any(fnmatchcase(tool, pattern) for pattern in allow)


def shorten(text: str, longest: int) -> str:
    """Head (70 %) and tail of a text, with a notice of the original size in characters; itself if it is no longer."""
    if len(text) <= longest:
        return text
    head = longest * 7 // 10
    return f"{text[:head]}\n[... {len(text)} characters in all, shortened ...]\n{text[len(text) - (longest - head) :]}"


class Boundary(Struct, frozen=True, order=True):
    """A place before which answered results are masked."""

    position: int
    start: int
    """How many messages summaries stood for when it was set: with fewer it is not used, or a summary that was made
    would give way to masks again, and the prefix break."""


class Mask(Struct, frozen=True):
    """Remainder of one message."""

    texts: tuple[str, ...]
    tokens: int


class _Used(Struct, frozen=True):
    """When a result is used up, as lengths of the history."""

    at: int
    mask: Mask
    old_at: int
    """When something newer has made it old; more than any length where nothing has."""
    old: Mask
    """Remainder from then on."""

    def mask_at(self, boundary: int) -> Mask:
        return self.old if self.old_at <= boundary else self.mask


class Masks:
    """Masks of one conversation, worked out as far as they are asked for."""

    def __init__(
        self, transcript: Transcript, settings: MaskPolicy, cost: Cost, untouchable: Collection[int] = ()
    ) -> None:
        """`untouchable`: results at these positions are not masked: they are pinned."""
        self._transcript = transcript
        self._untouchable = untouchable
        self._settings = settings
        self._cost = cost
        self._saved: dict[int, tuple[int, ...]] = {}

    def between(self, start: int, boundary: int) -> Iterator[tuple[int, Mask]]:
        """The masked messages from `start` on with this boundary, in order."""
        for index in range(start, boundary):
            if (used := self._used.get(index)) is not None and used.at <= boundary:
                yield index, used.mask_at(boundary)

    def saved(self, start: int, boundary: int) -> int:
        """Tokens that masking takes away from the messages from `start` on."""
        if start not in self._saved:
            self._saved[start] = self._saved_from(start)
        return self._saved[start][boundary]

    def _saved_from(self, start: int) -> tuple[int, ...]:
        """Tokens that masking takes away from the messages from `start` on, with each boundary."""
        more = [0] * (len(self._transcript) + 2)
        for index, used in self._used.items():
            if index >= start:
                more[used.at] += self._transcript.tokens_of(index) - used.mask.tokens
                more[used.old_at] += used.mask.tokens - used.old.tokens
        return tuple(accumulate(more))

    @lazy
    def _used(self) -> dict[int, _Used]:
        """When each message that may be masked is used up."""
        messages, later, found = self._transcript.messages, self._settings.later, dict[int, _Used]()
        newer = {} if later is None else newer_in(messages)
        never = len(messages) + 1
        said = never
        results: list[int] = []  # Positions of the results behind a message, from the last one on.
        behind = 0  # Of those, the ones behind the assistant's next message.
        for index in reversed(range(len(messages))):
            message = messages[index]
            if message.kind is Kind.ASSISTANT:
                said = index + 1 if _speaks(message) else said
                behind = len(results)
            if (mask := self._masks.get(index)) is not None:
                aged = results[behind - later] + 1 if later is not None and behind >= later else never
                old = newer.get(index)
                old_at = old.known if old is not None and old.known <= aged else never
                if (at := min(said, aged, old_at)) < never:
                    found[index] = _Used(at, mask, old_at, self._mask(index, old) if old and old_at < never else mask)
            results += [index] * (len(message.answers) or message.is_told)
        return found

    @lazy
    def _masks(self) -> dict[int, Mask]:
        """Remainder of each message that masking makes smaller."""
        found: dict[int, Mask] = {}
        for index, message in enumerate(self._transcript.messages):
            if not _may_be_masked(message) or index in self._untouchable:
                continue
            if not is_allowed(self._transcript.tool_name(index), self._settings.allow, self._settings.deny):
                continue
            mask = self._mask(index)
            if mask.texts != message.texts and mask.tokens < self._transcript.tokens_of(index):
                found[index] = mask
        return found

    def _mask(self, index: int, newer: Newer | None = None) -> Mask:
        message = self._transcript.messages[index]
        places = message.result_places
        texts = tuple(self._left(text, newer) if place in places else text for place, text in enumerate(message.texts))
        # As the result of a single call; one of several parallel calls costs a few tokens less.
        name = self._transcript.tool_name(index) if message.kind is Kind.RESULT else message.name
        return Mask(texts, self._cost(replace(message, texts=texts, name=name)))

    def _left(self, text: str, newer: Newer | None) -> str:
        """Remainder of a result's text."""
        longest = self._settings.characters
        if newer is None or len(text) <= longest:
            return shorten(text, longest)
        where = f"{newer.how} in message {newer.message + 1}"
        if newer.replaces:
            return f"[... {len(text)} characters in all, {where} ...]"
        return f"{shorten(text, longest)}\n[... {where} ...]"


def _may_be_masked(message: Message) -> bool:
    return (message.kind is Kind.RESULT or bool(message.answers)) and not message.sealed


def _speaks(message: Message) -> bool:
    return message.kind is Kind.ASSISTANT and any(text.strip() for text in message.texts)


class Masking(Struct, frozen=True):
    """Effect of masks on a conversation, and the boundaries there are, ascending."""

    masks: Masks
    boundaries: tuple[Boundary, ...] = ()

    def usable(self, covered: int) -> list[int]:
        """The positions of the boundaries for views in which summaries cover so many messages."""
        return [boundary.position for boundary in self.boundaries if boundary.position > covered >= boundary.start]
