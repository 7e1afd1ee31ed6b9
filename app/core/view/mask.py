"""Masks: of tool results that the assistant has answered only what their shape leaves is sent, and then stays so.

A boundary is a position in the history. A tool result before it is masked if text of the assistant, before it too,
came after the result: the model has read it and said something. Later text changes nothing until the boundary moves,
so the same message has the same bytes in every payload between.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from fnmatch import fnmatchcase
from hashlib import blake2b
from itertools import accumulate

from msgspec import Struct
from msgspec.structs import replace

from app.core.history.messages import Kind, Message, Transcript
from app.core.lazy import lazy
from app.core.shapes.shape import shaped, shorten
from app.core.tokens.estimate import Cost

SHAPES_VERSION = 1
"""Version of what a shape leaves: with another one, boundaries that were stored are not used."""


class MaskPolicy(Struct, frozen=True):
    characters: int = 300
    """Characters that are left of a text, beside the notice of its size."""
    shapes: bool = True
    """Leave what the shape of a text says; otherwise 70 % head, 30 % tail."""
    allow: tuple[str, ...] = ()
    """Tools whose results are masked, as globs; all if empty."""
    deny: tuple[str, ...] = ()
    """Tools whose results are never masked; stronger than `allow`."""

    pressure: float | None = None
    """Share of the limit, taken by messages alone, from which on all that can be masked is. None: only where masks make
    a summary unnecessary."""
    minimum_gain: float = 0.10
    """A boundary moves only where that frees this share of the view: each move breaks the provider's prompt cache."""

    @property
    def key(self) -> str:
        """Names what is masked and how: a boundary holds for one set of that."""
        masked = (self.characters, self.allow, self.deny, *([SHAPES_VERSION] if self.shapes else []))
        written = repr(masked).encode("utf-8", "surrogatepass")
        return blake2b(written, digest_size=8, person=b"steno-mask").hexdigest()

    def left_of(self, text: str, call: str) -> str:
        """Text that is left of a result of this call."""
        return shaped(text, call, self.characters) if self.shapes else shorten(text, self.characters)


def is_allowed(tool: str, allow: Sequence[str], deny: Sequence[str]) -> bool:
    """Whether the globs let a tool's results be cut: `deny` is stronger, an empty `allow` means all."""
    if any(fnmatchcase(tool, pattern) for pattern in deny):
        return False
    return not allow or any(fnmatchcase(tool, pattern) for pattern in allow)


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

    def between(self, start: int, boundary: int) -> Iterator[tuple[int, Mask]]:
        """The masked messages from `start` on with this boundary, in order."""
        return ((index, self._masks[index]) for index in range(start, self._answered(boundary)) if index in self._masks)

    def saved(self, start: int, boundary: int) -> int:
        """Tokens that masking takes away from the messages from `start` on."""
        return max(0, self._saved_before[max(start, self._answered(boundary))] - self._saved_before[start])

    def _answered(self, boundary: int) -> int:
        """Results before this position have been answered before the boundary."""
        return self._last_text[boundary]

    @lazy
    def _last_text(self) -> tuple[int, ...]:
        """Position of the last text of the assistant before each boundary; 0 without one."""
        spoken = (i if _speaks(message) else 0 for i, message in enumerate(self._transcript.messages))
        return tuple(accumulate(spoken, max, initial=0))

    @lazy
    def _masks(self) -> dict[int, Mask]:
        transcript, settings = self._transcript, self._settings
        found: dict[int, Mask] = {}
        for index, message in enumerate(transcript.messages):
            if not _may_be_masked(message) or index in self._untouchable:
                continue
            tool, places = transcript.tool_name(index), message.result_places
            call = transcript.call_text(index)
            texts = tuple(
                settings.left_of(text, call) if place in places else text for place, text in enumerate(message.texts)
            )
            if texts == message.texts or not is_allowed(tool, settings.allow, settings.deny):
                continue
            # As the result of a single call; one of several parallel calls costs a few tokens less.
            name = tool if message.kind is Kind.RESULT else message.name
            tokens = self._cost(replace(message, texts=texts, name=name))
            if tokens < transcript.tokens_of(index):
                found[index] = Mask(texts, tokens)
        return found

    @lazy
    def _saved_before(self) -> tuple[int, ...]:
        transcript, masks = self._transcript, self._masks
        saved = (transcript.tokens_of(i) - masks[i].tokens if i in masks else 0 for i in range(len(transcript)))
        return tuple(accumulate(saved, initial=0))


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
