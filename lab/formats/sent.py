"""Messages as they were sent: what a reader of one has to be shown, and what may be left of it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import AnyStr

import msgspec

INSTRUCTION_ROLES = frozenset({"system", "developer"})
RESULT_ROLES = frozenset({"tool", "function"})

LONGEST_NOTICE = 200
"""Characters that may stand in a shortened text for what was cut, its original size among them."""

_TOLD = re.compile(
    r"\s*(?:<(?:returncode|output|stdout|observation|tool_result|result)\b|observation:)",
    re.IGNORECASE,
)
"""Beginnings of what agents without tools are told that a command printed."""
_CORRECTION = re.compile(r"\s*please always provide exactly one action\b", re.IGNORECASE)
"""Beginning of what such an agent is told of the form of its last answer, where that held no command or several."""
_NUMBER = re.compile(r"\d[\d,]*")
_PLACEHOLDER = re.compile(r"\[[^\[\]\n]{1,200}\]")

_SHAPE = re.compile(r"\[\.\.\. (\d+) characters in all, shortened: [^\[\]\n]{1,80} \.\.\.\]\n")
_SHOWN = re.compile(r"\[(?:image|audio|file)\b[^\[\]\n]{1,200}: you have seen it, and it is left out now\]")
_NEWER = re.compile(r"\n\[\.\.\. [^\[\]\n]{1,100} in message \d+ \.\.\.\]\Z")
_WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class SentMessage:
    """One element of a history, with its own bytes."""

    raw: bytes
    role: str
    """Speaker: `tool` for what only answers calls, whatever the format calls it."""
    pieces: tuple[str, ...]
    """Texts, then name and arguments of its calls: what a reader has to be shown."""
    texts: int
    """Number of the pieces that are texts."""
    plain: bool
    """True where it is text and nothing else."""
    calls: tuple[str, ...]
    """Ids of the tool calls it makes."""
    answers: tuple[str, ...]
    """Ids of the tool calls it answers."""
    frame: bytes
    """All of it but its texts, the arguments of its calls, and what is tied to its place."""
    anywhere: bool = False
    """The results of its calls may stand anywhere behind it, not only next to it."""
    sealed: bool = False
    """True for what is the provider's own: sent as it came or not at all, and quoted to nobody."""
    opaque: bool = False
    """True where it holds what is no text, and a reader may be shown something of that."""
    tied: bool = False
    """True for what means something only behind what stood before it: thoughts, an id, a mark of the cache."""

    @property
    def tells_a_result(self) -> bool:
        """Whether it is a user's message in which a client without tools tells what a command printed."""
        return self.role == "user" and self.plain and bool(self.pieces) and _TOLD.match(self.pieces[0]) is not None

    @property
    def corrects(self) -> bool:
        """Whether it is a user's message in which such a client says that the answer before it is not in form."""
        return (
            self.role == "user" and self.plain and bool(self.pieces) and _CORRECTION.match(self.pieces[0]) is not None
        )

    @property
    def speakers(self) -> frozenset[str]:
        """Roles that whoever quotes it may give it."""
        other = "tool" if self.tells_a_result else "model" if self.role == "assistant" else self.role
        return frozenset({self.role, other})

    def is_loosened(self, original: SentMessage) -> bool:
        """Whether it is the original without what was tied to its place."""
        return original.tied and (self.frame, self.pieces) == (original.frame, original.pieces)

    def reduces(self, original: SentMessage) -> bool:
        """Whether it stands for an original of which head and tail are left, or its shape, with a note of the original
        size; or a placeholder."""
        if original.opaque and self._says_what_was_shown(original):
            return True
        if self.frame != original.frame or self.pieces == original.pieces:
            return False
        if _is_placeholder(self) and original.role in RESULT_ROLES:
            return True
        if len(self.pieces) != len(original.pieces) or self.texts != original.texts:
            return False
        cut = zip(self.pieces[self.texts :], original.pieces[self.texts :], strict=True)
        calls = all(piece == whole or _are_fewer_arguments(piece, whole) for piece, whole in cut)
        return calls and self._shortens_texts(original)

    def _says_what_was_shown(self, original: SentMessage) -> bool:
        """Whether a line stands in place of each picture, sound and file, beside what is left of the texts."""
        left = tuple(piece for piece in self.pieces if not _SHOWN.fullmatch(piece))
        same = (self.role, self.calls, self.answers) == (original.role, original.calls, original.answers)
        if not same or len(left) == len(self.pieces) or len(left) != len(original.pieces):
            return False
        return left == original.pieces or (original.role in RESULT_ROLES and all(map(_is_left, left, original.pieces)))

    def _shortens_texts(self, original: SentMessage) -> bool:
        """Whether each text is whole, or its head and tail, or its shape, or the first one is head and tail of all."""
        texts, wholes = self.pieces[: self.texts], original.pieces[: self.texts]
        if texts == wholes:
            return True
        if original.role not in RESULT_ROLES and original.role != "user":
            return False
        together = is_shortened(texts[0], "\n".join(wholes)) and not any(texts[1:])
        return together or all(map(_is_left, texts, wholes))

    def repairs(self, original: SentMessage) -> bool:
        """Whether it is the message without those of its calls that nothing answers."""
        texts = self.role, self.pieces[: self.texts]
        return texts == (original.role, original.pieces[: original.texts]) and set(self.calls) < set(original.calls)


def is_shortened(piece: str, whole: str) -> bool:
    """Whether it is head and tail of a text, in order, and beside them a notice that holds the text's size."""
    if str(len(whole)) not in piece and f"{len(whole):,}" not in piece:
        return False  # Most are decided by this, and the rest takes time.
    head = common_prefix(piece, whole)
    rest = piece[head:]
    tail = _longest(min(len(rest), len(whole) - head), lambda length: whole[len(whole) - length :] in rest)
    start = rest.rfind(whole[len(whole) - tail :])
    notice = f"{rest[:start]} {rest[start + tail :]}"
    sizes = (int(number.replace(",", "")) for number in _NUMBER.findall(notice))
    return len(notice) <= LONGEST_NOTICE and len(whole) in sizes


def _is_left(piece: str, whole: str) -> bool:
    return piece == whole or is_shortened(piece, whole) or _is_shape(piece, whole)


def _is_shape(piece: str, whole: str) -> bool:
    """Whether it is a notice of a text's size and shape, and then words of the text, or numbers of its lines."""
    notice = _SHAPE.match(piece)
    if notice is None or int(notice[1]) != len(whole) or len(piece) >= len(whole):
        return False
    left = _NEWER.sub("", piece[notice.end() :])
    words = frozenset(_WORD.findall(whole))
    return all(word in words or word.isdecimal() or word in whole for word in _WORD.findall(left))


def _is_placeholder(message: SentMessage) -> bool:
    first, *others = message.pieces or ("",)
    return message.texts == len(message.pieces) and _PLACEHOLDER.fullmatch(first) is not None and not any(others)


def _are_fewer_arguments(piece: str, whole: str) -> bool:
    """Arguments that were cut are still a JSON object, and providers refuse anything else."""
    try:
        cut, full = (msgspec.json.decode(arguments) for arguments in (piece, whole))
    except msgspec.DecodeError:
        return False
    return isinstance(cut, dict) and isinstance(full, dict) and len(piece) < len(whole)


def common_prefix(one: AnyStr, other: AnyStr) -> int:
    """How many leading bytes two payloads share, or characters two texts."""
    return _longest(min(len(one), len(other)), lambda length: one[:length] == other[:length])


def _longest(most: int, holds: Callable[[int], bool]) -> int:
    """The largest length up to `most` for which something holds, if it holds for all that are smaller."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if holds(middle):
            low = middle
        else:
            high = middle - 1
    return low
