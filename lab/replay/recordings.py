"""Recordings: conversations of Chat Completions from files, whatever shape the file has."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from lab.replay.sent import Message

ONE_MORE = "There is one more thing I would like to ask."
"""Words of a user before a question, where the conversation does not end with a user's message."""
YES = "Yes?"
"""Words of the assistant before a question."""

_TURN_ID = re.compile(r"D\d+:\d+")


class UnreadableRecording(Exception):
    """Raised with the file, the line, and what was expected there."""


@dataclass(frozen=True, slots=True)
class Question:
    """Question that somebody may ask after a conversation."""

    text: str
    evidence: tuple[str, ...]
    """Ids of the remarks that hold the answer."""


@dataclass(frozen=True, slots=True)
class Remark:
    """Remark of one speaker, within a message."""

    index: int
    """Place of the message in the history."""
    text: str


@dataclass(frozen=True, slots=True)
class Recording:
    """One conversation, as it was held."""

    name: str
    messages: tuple[Message, ...]
    questions: tuple[Question, ...] = ()
    """Questions whose evidence is in the conversation."""
    remarks: Mapping[str, Remark] = field(default_factory=dict)

    @property
    def requests(self) -> tuple[int, ...]:
        """Indexes of the answers that somebody asked for: the client's history ended there."""
        return tuple(i for i, message in enumerate(self.messages) if i and message["role"] == "assistant")

    def followed_by_a_question(self) -> Recording:
        """The recording with one more request at the end, in which everything that was said is history."""
        asked = () if self.messages[-1]["role"] == "user" else ({"role": "user", "content": ONE_MORE},)
        return replace(self, messages=(*self.messages, *asked, {"role": "assistant", "content": YES}))

    def asked(self, question: Question) -> tuple[Message, ...]:
        """The history of a request that asks it; of what is `followed_by_a_question`."""
        return (*self.messages, {"role": "user", "content": question.text})


def read_recordings(path: Path) -> list[Recording]:
    """The conversations in a file, recognised by content.

    JSON lines of `{"id", "messages"}` or of LoCoMo's `{"id", "speakers", "sessions"}`; or one JSON of the first.
    Questions about messages are in `qa`, as LoCoMo has them, and the sentences that answer them in `remarks`, by the
    index of their message.
    """
    text = _text_of(path)
    try:
        return [_recording(f"{path.name}", path.stem, msgspec.json.decode(text))]
    except msgspec.DecodeError:  # Not one value: a value a line.
        return [_recording(_place(path, line), f"{path.stem}-{line}", value) for line, value in _lines(path, text)]


def chain(recordings: Sequence[Recording], length: int) -> list[Recording]:
    """Each `length` recordings as one, see `joined`."""
    if length <= 1:
        return list(recordings)
    return [joined(recordings[start : start + length]) for start in range(0, len(recordings), length)]


def joined(recordings: Sequence[Recording]) -> Recording:
    """One after the other as one: later system messages dropped, ids of tool calls made unique, all questions kept."""
    first = recordings[0]
    messages: list[Message] = []
    questions: list[Question] = []
    remarks: dict[str, Remark] = {}
    for number, recording in enumerate(recordings):
        kept = [i for i, message in enumerate(recording.messages) if number == 0 or message["role"] != "system"]
        places = {index: place for place, index in enumerate(kept, len(messages))}
        messages += (_renamed(recording.messages[index], number) for index in kept)
        for name, remark in recording.remarks.items():
            remarks[f"{number}/{name}"] = Remark(places[remark.index], remark.text)
        questions += (
            replace(asked, evidence=tuple(f"{number}/{name}" for name in asked.evidence))
            for asked in recording.questions
        )
    name = f"{first.name}+{len(recordings) - 1}"
    return Recording(name, tuple(messages), tuple(questions), remarks)


def _renamed(message: Message, number: int) -> Message:
    """A message with ids of calls of its own, for the recording of that number in a chain."""
    calls = [{**call, "id": f"{call['id']}_{number}"} for call in message.get("tool_calls") or ()]
    answers = {"tool_call_id": f"{message['tool_call_id']}_{number}"} if "tool_call_id" in message else {}
    return {**message, **({"tool_calls": calls} if calls else {}), **answers}


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UnreadableRecording(f"{path} cannot be read: {error}") from error


def _lines(path: Path, text: str) -> Iterator[tuple[int, Any]]:
    """The JSON value of each line that has one, with its number."""
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            yield number, msgspec.json.decode(line)
        except msgspec.DecodeError as error:
            raise UnreadableRecording(f"{_place(path, number)}: {error}") from error


def _place(path: Path, line: int) -> str:
    return f"{path.name}, line {line}"


def _recording(place: str, name: str, value: Any) -> Recording:
    if isinstance(value, dict):
        name = str(value.get("id", name))
        if isinstance(value.get("messages"), list):
            return _held(place, name, value)
        if isinstance(value.get("sessions"), list) and isinstance(value.get("speakers"), list):
            try:
                return _dialogue(name, value)
            except (KeyError, TypeError, IndexError) as error:
                raise UnreadableRecording(f"{place}: a session lacks {error}.") from error
    raise UnreadableRecording(f'{place}: expected an object with "messages", or with "speakers" and "sessions".')


def _held(place: str, name: str, value: Mapping[str, Any]) -> Recording:
    for number, message in enumerate(value["messages"], 1):
        if not (isinstance(message, dict) and isinstance(message.get("role"), str)):
            raise UnreadableRecording(f"{place}: message {number} has no role.")
    try:
        remarks = {index: Remark(int(index), text) for index, text in value.get("remarks", {}).items()}
        questions = _answerable(value, remarks)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UnreadableRecording(f"{place}: questions or remarks are not as expected: {error}") from error
    return Recording(name, tuple(value["messages"]), questions, remarks)


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
    return Recording(name, tuple(messages), _answerable(value, remarks), remarks)


def _answerable(value: Mapping[str, Any], remarks: Mapping[str, Remark]) -> tuple[Question, ...]:
    asked = (Question(str(qa["question"]), _ids(qa.get("evidence"))) for qa in value.get("qa") or () if "answer" in qa)
    return tuple(question for question in asked if question.evidence and remarks.keys() >= {*question.evidence})


def _ids(evidence: Any) -> tuple[str, ...]:
    """Ids in a list, of which some are several in one string."""
    return tuple(found for listed in evidence or () for found in _TURN_ID.findall(str(listed)) or [str(listed)])
