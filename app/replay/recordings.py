"""Recordings: conversations from files, as lists of OpenAI messages, whatever shape the file has."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

Message = dict[str, Any]

ONE_MORE = "There is one more thing I would like to ask."
"""What a user says before a question: the question itself is nobody's to know, the summariser's least of all."""

_TURN_ID = re.compile(r"D\d+:\d+")


class UnreadableRecording(Exception):
    """Which file, which line, and what was expected there."""


@dataclass(frozen=True, slots=True)
class Question:
    """What somebody may ask after a conversation."""

    answer: str
    evidence: tuple[str, ...]
    """Ids of the remarks that hold the answer."""


@dataclass(frozen=True, slots=True)
class Remark:
    """What one speaker said, within a message."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class Recording:
    """One conversation, as it was held."""

    name: str
    messages: tuple[Message, ...]
    questions: tuple[Question, ...] = ()
    """Those whose evidence is in it."""
    remarks: Mapping[str, Remark] = field(default_factory=dict)

    @property
    def requests(self) -> tuple[int, ...]:
        """Where an assistant message stands that somebody asked for: the client's history ended there."""
        return tuple(i for i, message in enumerate(self.messages) if i and message["role"] == "assistant")

    def followed_by_a_question(self) -> Recording:
        """With one more request at the end, in which everything that was said is history."""
        asked = () if self.messages[-1]["role"] == "user" else ({"role": "user", "content": ONE_MORE},)
        return replace(self, messages=(*self.messages, *asked, {"role": "assistant", "content": "Yes?"}))


def read_recordings(path: Path) -> list[Recording]:
    """The conversations in a file, recognised by content.

    JSON lines of `{"id", "messages"}` or of LoCoMo's `{"id", "speakers", "sessions"}`, or one JSON `{"messages"}`.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UnreadableRecording(f"{path} cannot be read: {error}") from error
    try:
        return [_recording(f"{path.name}", path.stem, msgspec.json.decode(text))]
    except msgspec.DecodeError:  # Not one value: a value a line.
        return list(_lines(path, text))


def chain(recordings: Sequence[Recording], length: int) -> list[Recording]:
    """Each `length` recordings as one, see `joined`."""
    if length <= 1:
        return list(recordings)
    return [joined(group) for group in _batched(recordings, length)]


def joined(recordings: Sequence[Recording]) -> Recording:
    """One after the other as one: later system messages dropped, ids of tool calls made unique, all questions kept."""
    messages: list[Message] = []
    questions: list[Question] = []
    remarks: dict[str, Remark] = {}
    for number, recording in enumerate(recordings):
        kept = [i for i, message in enumerate(recording.messages) if number == 0 or message["role"] != "system"]
        places = {index: place for place, index in enumerate(kept, len(messages))}
        messages += _with_own_ids([recording.messages[index] for index in kept], number)
        for name, remark in recording.remarks.items():
            remarks[f"{number}/{name}"] = Remark(places[remark.index], remark.text)
        questions += (
            Question(asked.answer, tuple(f"{number}/{name}" for name in asked.evidence))
            for asked in recording.questions
        )
    name = f"{recordings[0].name}+{len(recordings) - 1}"
    return Recording(name, tuple(messages), tuple(questions), remarks)


def _lines(path: Path, text: str) -> Iterator[Recording]:
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        place = f"{path.name}, line {number}"
        try:
            value = msgspec.json.decode(line)
        except msgspec.DecodeError as error:
            raise UnreadableRecording(f"{place}: {error}") from error
        yield _recording(place, f"{path.stem}-{number}", value)


def _recording(place: str, name: str, value: Any) -> Recording:
    if isinstance(value, dict):
        name = str(value.get("id", name))
        if isinstance(value.get("messages"), list):
            return Recording(name, tuple(_checked(place, value["messages"])))
        if isinstance(value.get("sessions"), list) and isinstance(value.get("speakers"), list):
            try:
                return _dialogue(name, value)
            except (KeyError, TypeError, IndexError) as error:
                raise UnreadableRecording(f"{place}: a session lacks {error}.") from error
    raise UnreadableRecording(f'{place}: expected an object with "messages", or with "speakers" and "sessions".')


def _checked(place: str, messages: Sequence[Any]) -> Iterator[Message]:
    for number, message in enumerate(messages, 1):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise UnreadableRecording(f"{place}: message {number} has no role.")
        yield message


def _dialogue(name: str, value: Mapping[str, Any]) -> Recording:
    """The first speaker as user, the other as assistant; a session's date stands before its first words."""
    roles = dict(zip(value["speakers"], ("user", "assistant"), strict=False))
    messages: list[Message] = []
    remarks: dict[str, Remark] = {}
    for session in value["sessions"]:
        date = f"[{session['date_time']}] "
        for turn in session["turns"]:
            role, text = roles[turn["speaker"]], date + turn["text"]
            date = ""
            if messages and messages[-1]["role"] == role:
                messages[-1]["content"] += f"\n{text}"
            else:
                messages.append({"role": role, "content": text})
            remarks[str(turn.get("id"))] = Remark(len(messages) - 1, turn["text"])
    asked = (Question(str(qa["answer"]), _ids(qa.get("evidence"))) for qa in value.get("qa") or () if "answer" in qa)
    questions = tuple(question for question in asked if question.evidence and remarks.keys() >= {*question.evidence})
    return Recording(name, tuple(messages), questions, remarks)


def _ids(evidence: Any) -> tuple[str, ...]:
    """Some are several in one string."""
    return tuple(found for listed in evidence or () for found in _TURN_ID.findall(str(listed)) or [str(listed)])


def _with_own_ids(messages: Sequence[Message], number: int) -> Iterator[Message]:
    """The messages with the ids of their tool calls made anew, in order."""
    renamed: dict[str, str] = {}
    made = 0
    for message in messages:
        if calls := message.get("tool_calls"):
            for call in calls:
                renamed[call["id"]] = f"call_{number}_{made}"
                made += 1
            yield {**message, "tool_calls": [{**call, "id": renamed[call["id"]]} for call in calls]}
        elif message["role"] == "tool" and message.get("tool_call_id") in renamed:
            yield {**message, "tool_call_id": renamed[message["tool_call_id"]]}
        else:
            yield message


def _batched(recordings: Sequence[Recording], length: int) -> Iterator[Sequence[Recording]]:
    return (recordings[start : start + length] for start in range(0, len(recordings), length))
