"""Chat Completions as another format: the same conversation, as a client of that format would have held it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from lab.formats.format import Reading, ReplayFormat, dicts
from lab.formats.known import CHAT_COMPLETIONS, GEMINI, MESSAGES, RESPONSES
from lab.formats.sent import INSTRUCTION_ROLES
from lab.replay.recordings import Message, Recording, Remark, UnreadableRecording

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
