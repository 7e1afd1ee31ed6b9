"""Chat Completions as another format: the same conversation, as a client of that format would have held it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from lab.formats.format import Reading, ReplayFormat, dicts
from lab.formats.known import CHAT_COMPLETIONS, MESSAGES, RESPONSES
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
        beside={**({member: instructions} if instructions else {}), **_tools(made)},
    )


def _read(message: Message) -> Reading:
    for part in dicts(message.get("content")):
        if part.get("type") != "text":
            raise TypeError(f"a part of type {part.get('type')}.")
    return CHAT_COMPLETIONS.reading(message)


def _to_messages(messages: Sequence[Reading]) -> tuple[list[Message], list[int]]:
    """Messages of the elements, and the place of each among them."""
    made: list[Message] = []
    places: list[int] = []
    for read in messages:
        if read.role in INSTRUCTION_ROLES:
            raise TypeError("instructions stand behind the beginning.")
        spoken = "assistant" if read.role == "assistant" else "user"
        if not made and spoken == "assistant":
            made.append({"role": "user", "content": OPENING})
        # Results of one step are one message; so is what the assistant says in two.
        last: Message = made[-1] if made else {"content": ""}
        goes_on = isinstance(last["content"], list) and _kind(last) == (spoken, bool(read.answers))
        if goes_on and read.role != "user":
            last["content"] += _blocks(read)
        else:
            made.append({"role": spoken, "content": _blocks(read)})
        places.append(len(made) - 1)
    return made, places


def _kind(message: Message) -> tuple[str, bool]:
    return message["role"], message["content"][-1]["type"] == "tool_result"


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
}
