"""Recordings: conversations from files, in the format that they were held in, whatever shape the file has."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from lab.formats.format import Reading, ReplayFormat, dicts
from lab.formats.known import CHAT_COMPLETIONS, GEMINI, MESSAGES, RESPONSES
from lab.formats.sent import INSTRUCTION_ROLES

Message = dict[str, Any]
"""An element of the history: a message, or an item of Responses."""

ONE_MORE = "There is one more thing I would like to ask."
"""Words of a user before a question, where the conversation does not end with a user's message."""
YES = "Yes?"
"""Words of the assistant before a question, unless the question needs something else before it."""

KINDS_OF_LOCOMO = {1: "multi-hop", 2: "temporal", 3: "open-domain", 4: "single-hop", 5: "adversarial"}
"""Names of LoCoMo's categories of questions, by its authors' numbers."""

ONLY_IN_MESSAGES = frozenset({"tool_use", "tool_result", "thinking", "redacted_thinking", "server_tool_use"})
"""Blocks by which a recording without a system prompt is known."""

_TURN_ID = re.compile(r"D\d+:\d+")


class UnreadableRecording(Exception):
    """Raised with the file, the line, and what was expected there."""


@dataclass(frozen=True, slots=True)
class Question:
    """Question that somebody may ask after a conversation."""

    answer: str
    """Empty where nobody wrote one down."""
    evidence: tuple[str, ...]
    """Ids of the remarks that hold the answer."""
    text: str = ""
    kind: str = ""
    before: str = YES
    """Last words of the assistant, which may name what the question does not."""


@dataclass(frozen=True, slots=True)
class Remark:
    """Remark of one speaker, within a message."""

    index: int
    """Place in the history as the judge reads it: what stands beside the messages is its first."""
    text: str


@dataclass(frozen=True, slots=True)
class Recording:
    """One conversation, as it was held."""

    name: str
    messages: tuple[Message, ...]
    questions: tuple[Question, ...] = ()
    """Questions whose evidence is in the conversation."""
    remarks: Mapping[str, Remark] = field(default_factory=dict)
    format: ReplayFormat = CHAT_COMPLETIONS
    beside: Mapping[str, Any] = field(default_factory=dict)
    """Members that are sent with every request."""

    @property
    def requests(self) -> tuple[int, ...]:
        """Indexes at which an answer begins that somebody asked for: the client's history ended there."""
        return tuple(i for i in range(len(self.messages)) if self.format.is_answer(self.messages, i))

    def followed_by_a_question(self) -> Recording:
        """The recording with one more request at the end, in which everything that was said is history."""
        said = self.format.said
        asked = () if self.messages[-1]["role"] == "user" else (said("user", ONE_MORE),)
        return replace(self, messages=(*self.messages, *asked, said("assistant", YES)))

    def asked(self, question: Question) -> tuple[Message, ...]:
        """The history of a request that asks it; of what is `followed_by_a_question`, the last words are its own."""
        before, asked = self.format.said("assistant", question.before), self.format.said("user", question.text)
        return (*self.messages[:-1], before, asked)


def read_recordings(path: Path) -> list[Recording]:
    """The conversations in a file, recognised by content.

    JSON lines of `{"id", "messages"}`, of `{"id", "input"}`, of `{"id", "contents"}` or of LoCoMo's `{"id",
    "speakers", "sessions"}`; or one JSON of the first three. Questions about messages are in `qa`, as LoCoMo has them,
    and the sentences that answer them in `remarks`, by the index of their message.
    """
    text = _text_of(path)
    try:
        return [_recording(f"{path.name}", path.stem, msgspec.json.decode(text))]
    except msgspec.DecodeError:  # Not one value: a value a line.
        return [_recording(_place(path, line), f"{path.stem}-{line}", value) for line, value in _lines(path, text)]


def with_questions(recordings: Sequence[Recording], path: Path) -> list[Recording]:
    """The recordings with the questions of a file instead of their own: JSON lines of `{"conversation", "question",
    "evidence"}`, and where there are any `category`, `answer`, and in `before` what the assistant said last."""
    asked: dict[str, list[Question]] = {}
    for line, value in _lines(path, _text_of(path)):
        try:
            question = _question(value)
            asked.setdefault(value["conversation"], []).append(question)
        except (KeyError, TypeError) as error:
            raise UnreadableRecording(f"{_place(path, line)}: a question lacks {error}.") from error
        if not question.evidence:
            raise UnreadableRecording(f"{_place(path, line)}: a question without evidence cannot be judged.")
    for recording in recordings:
        evidence = {name for question in asked.get(recording.name, ()) for name in question.evidence}
        if unknown := sorted(evidence - recording.remarks.keys()):
            raise UnreadableRecording(f"{path.name}: {recording.name} has no remark {', '.join(unknown)}.")
    return [replace(recording, questions=tuple(asked.get(recording.name, ()))) for recording in recordings]


def chain(recordings: Sequence[Recording], length: int) -> list[Recording]:
    """Each `length` recordings as one, see `joined`."""
    if length <= 1:
        return list(recordings)
    return [joined(group) for group in _batched(recordings, length)]


def joined(recordings: Sequence[Recording]) -> Recording:
    """One after the other as one: later system messages dropped, ids of tool calls made unique, all questions kept."""
    first = recordings[0]
    messages: list[Message] = []
    questions: list[Question] = []
    remarks: dict[str, Remark] = {}
    for number, recording in enumerate(recordings):
        if recording.format is not first.format:
            raise UnreadableRecording(f"{first.name} and {recording.name} are of two formats: they make no chain.")
        is_instruction = recording.format.is_instruction
        kept = [i for i, message in enumerate(recording.messages) if number == 0 or not is_instruction(message)]
        places = {index: place for place, index in enumerate(kept, len(messages))}
        messages += (recording.format.renamed(recording.messages[index], number) for index in kept)
        for name, remark in recording.remarks.items():
            remarks[f"{number}/{name}"] = Remark(places[remark.index], remark.text)
        questions += (
            replace(asked, evidence=tuple(f"{number}/{name}" for name in asked.evidence))
            for asked in recording.questions
        )
    name = f"{first.name}+{len(recordings) - 1}"
    return Recording(name, tuple(messages), tuple(questions), remarks, first.format, _beside_all(recordings))


def _beside_all(recordings: Sequence[Recording]) -> Mapping[str, Any]:
    """Members that are said once, with all tools."""
    tools = {msgspec.json.encode(tool): tool for recording in recordings for tool in recording.beside.get("tools", ())}
    return {**recordings[0].beside, **({"tools": list(tools.values())} if tools else {})}


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
            return _held(place, name, value, MESSAGES if _is_messages(value) else CHAT_COMPLETIONS)
        if isinstance(value.get("input"), list):
            return _held(place, name, value, RESPONSES)
        if isinstance(value.get("contents"), list):
            return _held(place, name, value, GEMINI)
        if isinstance(value.get("sessions"), list) and isinstance(value.get("speakers"), list):
            try:
                return _dialogue(name, value)
            except (KeyError, TypeError, IndexError) as error:
                raise UnreadableRecording(f"{place}: a session lacks {error}.") from error
    raise UnreadableRecording(
        f'{place}: expected an object with "messages", "input", "contents", or "speakers" and "sessions".'
    )


def _held(place: str, name: str, value: Mapping[str, Any], written: ReplayFormat) -> Recording:
    beside = {key: value[key] for key in written.beside if value.get(key)}
    messages = tuple(_checked(place, value[written.history], written))
    try:
        remarks = {index: Remark(int(index), text) for index, text in value.get("remarks", {}).items()}
        questions = _answerable(value, remarks)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UnreadableRecording(f"{place}: questions or remarks are not as expected: {error}") from error
    return Recording(name, messages, questions, remarks, written, beside)


def _is_messages(value: Mapping[str, Any]) -> bool:
    """Whether it is a conversation of Messages: by its system prompt, its tools or its blocks."""
    blocks = (block for message in dicts(value["messages"]) for block in dicts(message.get("content")))
    tools = dicts(value.get("tools"))
    return (
        "system" in value
        or any("input_schema" in tool for tool in tools)
        or any(block.get("type") in ONLY_IN_MESSAGES or "source" in block for block in blocks)
    )


def _checked(place: str, messages: Sequence[Any], written: ReplayFormat) -> Iterator[Message]:
    for number, message in enumerate(messages, 1):
        known = isinstance(message, dict) and (message.get("role") or (written is RESPONSES and message.get("type")))
        if not isinstance(known, str):
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
    return Recording(name, tuple(messages), _answerable(value, remarks), remarks)


def _answerable(value: Mapping[str, Any], remarks: Mapping[str, Remark]) -> tuple[Question, ...]:
    asked = map(_question, (qa for qa in value.get("qa") or () if "answer" in qa))
    return tuple(question for question in asked if question.evidence and remarks.keys() >= {*question.evidence})


def _question(value: Mapping[str, Any]) -> Question:
    text = str(value["question"])
    category = value.get("category", "")
    return Question(
        answer=str(value.get("answer", "")),
        evidence=_ids(value.get("evidence")),
        text=text,
        kind=str(KINDS_OF_LOCOMO.get(category, category)),
        before=str(value.get("before", YES)),
    )


def _ids(evidence: Any) -> tuple[str, ...]:
    """Ids in a list, of which some are several in one string."""
    return tuple(found for listed in evidence or () for found in _TURN_ID.findall(str(listed)) or [str(listed)])


def _batched(recordings: Sequence[Recording], length: int) -> Iterator[Sequence[Recording]]:
    return (recordings[start : start + length] for start in range(0, len(recordings), length))


# Chat Completions as another format: the same conversation, as a client of that format would have held it

OPENING = "Hello."
"""First words of a user where the other one began: Messages begin with the user."""


def converted(recording: Recording, written: ReplayFormat) -> Recording:
    """The recording in another format. Raises `UnreadableRecording` for what cannot be said in it."""
    if recording.format is written:
        return recording
    if recording.format is not CHAT_COMPLETIONS:
        raise UnreadableRecording(f"{recording.name} is of {recording.format.name}, and stays that.")
    leading = next((i for i, m in enumerate(recording.messages) if m["role"] not in INSTRUCTION_ROLES), 0)
    instructions = "\n\n".join(CHAT_COMPLETIONS.reading(message).text for message in recording.messages[:leading])
    convert, member = _CONVERSIONS[written.name]
    try:
        made, places = convert([_read(message) for message in recording.messages[leading:]])
    except (KeyError, TypeError, msgspec.DecodeError) as error:
        raise UnreadableRecording(f"{recording.name} cannot be said in {written.name}: {error}") from error
    first = 1 if instructions else 0
    return replace(
        recording,
        messages=tuple(made),
        remarks={n: Remark(first + places[r.index - leading], r.text) for n, r in recording.remarks.items()},
        format=written,
        beside={**({member: _told(written, instructions)} if instructions else {}), **_tools(made)},
    )


def _told(written: ReplayFormat, instructions: str) -> Any:
    return {"parts": [{"text": instructions}]} if written is GEMINI else instructions


def _read(message: Message) -> Reading:
    for part in dicts(message.get("content")):
        if part.get("type") != "text":
            raise TypeError(f"a part of type {part.get('type')}.")
    return CHAT_COMPLETIONS.reading(message)


def _to_messages(messages: Sequence[Reading]) -> tuple[list[Message], list[int]]:
    """Messages of the elements, and the place of each among them."""
    return _joined(messages, "content", "assistant", _blocks)


def _to_gemini(messages: Sequence[Reading]) -> tuple[list[Message], list[int]]:
    """Contents of the elements, and the place of each among them."""
    names = {call.id: call.name for read in messages for call in read.calls}
    return _joined(messages, "parts", "model", lambda read: _parts(read, names))


def _joined(
    messages: Sequence[Reading], member: str, model: str, write: Callable[[Reading], list[Message]]
) -> tuple[list[Message], list[int]]:
    """Results of one step in one message, and likewise what the assistant says in two."""
    made: list[Message] = []
    places: list[int] = []
    before = ("", False)
    for read in messages:
        if read.role in INSTRUCTION_ROLES:
            raise TypeError("instructions stand behind the beginning.")
        role = model if read.role == "assistant" else "user"
        if not made and role == model:
            made.append({"role": "user", member: write(Reading("user", (OPENING,)))})
        if before == (role, bool(read.answers)) and read.role != "user":
            made[-1][member] += write(read)
        else:
            made.append({"role": role, member: write(read)})
        before = role, bool(read.answers)
        places.append(len(made) - 1)
    return made, places


def _parts(read: Reading, names: Mapping[str, str]) -> list[Message]:
    results = (
        {"functionResponse": {"id": answered, "name": names[answered], "response": {"output": read.text}}}
        for answered in read.answers
    )
    texts = ({"text": text} for text in read.texts if text and not read.answers)
    calls = (
        {"functionCall": {"id": call.id, "name": call.name, "args": msgspec.json.decode(call.arguments or "{}")}}
        for call in read.calls
    )
    return [*results, *texts, *calls]


def _blocks(read: Reading) -> list[Message]:
    results = ({"type": "tool_result", "tool_use_id": answered, "content": read.text} for answered in read.answers)
    texts = ({"type": "text", "text": text} for text in read.texts if text and not read.answers)
    uses = (
        {"type": "tool_use", "id": call.id, "name": call.name, "input": msgspec.json.decode(call.arguments or "{}")}
        for call in read.calls
    )
    return [*results, *texts, *uses]


def _tools(made: Sequence[Message]) -> Mapping[str, Any]:
    """Messages with calls have to declare what they call."""
    blocks = (block for message in made for block in dicts(message.get("content")))
    names = dict.fromkeys(block["name"] for block in blocks if block["type"] == "tool_use")
    return {"tools": [{"name": name, "input_schema": {"type": "object"}} for name in names]} if names else {}


def _to_responses(messages: Sequence[Reading]) -> tuple[list[Message], list[int]]:
    """Items of the elements, and the place of the first item of each."""
    made: list[Message] = []
    places: list[int] = []
    for read in messages:
        places.append(len(made))
        made += _items(read)
    return made, places


def _items(read: Reading) -> list[Message]:
    if read.answers:
        return [{"type": "function_call_output", "call_id": read.answers[0], "output": read.text}]
    kind = "output_text" if read.role == "assistant" else "input_text"
    said = [{"type": kind, "text": text} for text in read.texts if text]
    message = [{"type": "message", "role": read.role, "content": said}] if said else []
    calls = ({"type": "function_call", "call_id": c.id, "name": c.name, "arguments": c.arguments} for c in read.calls)
    return [*message, *calls]


_Convert = Callable[[Sequence[Reading]], tuple[list[Message], list[int]]]
_CONVERSIONS: Mapping[str, tuple[_Convert, str]] = {
    MESSAGES.name: (_to_messages, "system"),
    RESPONSES.name: (_to_responses, "instructions"),
    GEMINI.name: (_to_gemini, "systemInstruction"),
}
