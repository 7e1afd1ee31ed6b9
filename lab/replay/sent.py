"""Messages of Chat Completions as they were sent: what a reader of one has to be shown, and what may be left of it.

Nothing here knows `app/formats`: an oracle that shared code with what it judges would be none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, AnyStr, NamedTuple

import msgspec

from lab.simulator.replies import largest

Message = dict[str, Any]
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
_NEWER = re.compile(r"\n\[\.\.\. [^\[\]\n]{1,100} in message \d+ \.\.\.\]\Z")
_WORD = re.compile(r"\w+")


class Called(NamedTuple):
    id: str
    name: str
    arguments: str
    """Arguments as text: JSON, or what a custom tool takes."""


class Reading(NamedTuple):
    """Texts and calls of a message."""

    texts: tuple[str, ...]
    calls: tuple[Called, ...]

    @property
    def pieces(self) -> tuple[str, ...]:
        """Texts, then name and arguments of each call: what a reader has to be shown."""
        return (*self.texts, *(piece for call in self.calls for piece in (call.name, call.arguments)))


def read_message(message: Message) -> Reading:
    content = message.get("content")
    texts = [content] if isinstance(content, str) else [part["text"] for part in dicts(content) if _is_text(part)]
    return Reading(tuple(texts), tuple(map(_called, dicts(message.get("tool_calls")))))


def _called(call: Message) -> Called:
    function = call.get("function") or call.get("custom") or {}
    arguments = function.get("arguments") or function.get("input") or ""
    return Called(str(call.get("id")), str(function.get("name") or ""), str(arguments))


def _is_text(part: Any) -> bool:
    return isinstance(part, dict) and isinstance(part.get("text"), str)


def _frame(message: Mapping[str, Any], calls: Sequence[Called]) -> bytes:
    content = message.get("content")
    parts = content if isinstance(content, list) else []
    left = {
        "content": [part for part in parts if not _is_text(part)],
        "calls": [(call.id, call.name) for call in calls],
    }
    others = {key: inner for key, inner in message.items() if key not in ("content", "tool_calls")}
    return msgspec.json.encode([others, left], order="sorted")


def dicts(value: Any) -> list[Message]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


# Bodies


def messages_of(body: bytes) -> list[bytes]:
    """Messages in a request's body, each with its own bytes."""
    try:
        return [bytes(each) for each in msgspec.json.decode(prompt_of(body), type=list[msgspec.Raw])]
    except (msgspec.DecodeError, UnicodeDecodeError):
        return []


def prompt_of(body: bytes) -> bytes:
    """Bytes of the messages as they stand in the body; empty where it has none."""
    try:
        return bytes(msgspec.json.decode(body, type=dict[str, msgspec.Raw]).get("messages", b""))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return b""


def answers_in(body: bytes) -> list[Message]:
    """Chunks of a streamed answer, or an answer in one piece; none where the body is none."""
    lines = [line.removeprefix(b"data:").strip() for line in body.splitlines() if line.startswith(b"data:")]
    try:
        return [msgspec.json.decode(line, type=dict) for line in lines or [body] if line != b"[DONE]"]
    except (msgspec.DecodeError, UnicodeDecodeError):
        return []


def answered(body: bytes) -> str | None:
    """Text of a model's answer, streamed or whole; None where the body is none, or was cut."""
    choices = [choice for answer in answers_in(body) for choice in dicts(answer.get("choices"))]
    said = [str((choice.get("delta") or choice.get("message") or {}).get("content") or "") for choice in choices]
    return "".join(said) if any(choice.get("finish_reason") for choice in choices) else None


# Messages


@dataclass(frozen=True, slots=True)
class SentMessage:
    """One message of a history, with its own bytes."""

    raw: bytes
    role: str
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
    """All of it but its texts and the arguments of its calls."""

    @classmethod
    def read(cls, raw: bytes) -> SentMessage:
        """The message in these bytes; an empty one where they are no object."""
        decoded = msgspec.json.decode(raw)
        message = decoded if isinstance(decoded, dict) else {}
        read, role = read_message(message), str(message.get("role"))
        return cls(
            raw=raw,
            role=role,
            pieces=read.pieces,
            texts=len(read.texts),
            plain=not read.calls and isinstance(message.get("content"), str),
            calls=tuple(call.id for call in read.calls),
            answers=(str(message["tool_call_id"]),) if role == "tool" else (),
            frame=_frame(message, read.calls),
        )

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

    def reduces(self, original: SentMessage) -> bool:
        """Whether it stands for an original of which head and tail are left, or its shape, with a note of the original
        size; or a placeholder."""
        if self.frame != original.frame or self.pieces == original.pieces:
            return False
        if _is_placeholder(self) and original.role in RESULT_ROLES:
            return True
        if len(self.pieces) != len(original.pieces) or self.texts != original.texts:
            return False
        cut = zip(self.pieces[self.texts :], original.pieces[self.texts :], strict=True)
        calls = all(piece == whole or _are_fewer_arguments(piece, whole) for piece, whole in cut)
        return calls and self._shortens_texts(original)

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
    tail = largest(min(len(rest), len(whole) - head), lambda length: whole[len(whole) - length :] in rest)
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
    return largest(min(len(one), len(other)), lambda length: one[:length] == other[:length])
