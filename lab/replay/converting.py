"""Chat Completions as another format: the same conversation, as a client of that format would have held it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from lab.formats.format import ReplayFormat, dicts
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
    instructions = "\n\n".join(_text(message.get("content")) for message in recording.messages[:leading])
    convert, member = _CONVERSIONS[written.name]
    try:
        made, places = convert(recording.messages[leading:])
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


def _to_messages(messages: Sequence[Message]) -> tuple[list[Message], list[int]]:
    """Messages of the elements, and the place of each among them."""
    made: list[Message] = []
    places: list[int] = []
    for message in messages:
        role, blocks = message["role"], _blocks(message)
        if role in INSTRUCTION_ROLES:
            raise TypeError("instructions stand behind the beginning.")
        spoken = "assistant" if role == "assistant" else "user"
        if not made and spoken == "assistant":
            made.append({"role": "user", "content": OPENING})
        # Results of one step are one message; so is what the assistant says in two.
        goes_on = bool(made) and isinstance(made[-1]["content"], list) and _kind(made[-1]) == (spoken, role == "tool")
        if goes_on and role != "user":
            made[-1]["content"] += blocks
        else:
            made.append({"role": spoken, "content": blocks})
        places.append(len(made) - 1)
    return made, places


def _kind(message: Message) -> tuple[str, bool]:
    return message["role"], message["content"][-1]["type"] == "tool_result"


def _blocks(message: Message) -> list[Message]:
    if message["role"] == "tool":
        result = {"type": "tool_result", "tool_use_id": message["tool_call_id"]}
        return [{**result, "content": _text(message["content"])}]
    uses = [
        {
            "type": "tool_use",
            "id": call["id"],
            "name": call["function"]["name"],
            "input": msgspec.json.decode(call["function"]["arguments"] or "{}"),
        }
        for call in message.get("tool_calls") or ()
    ]
    return [*({"type": "text", "text": text} for text in _texts(message.get("content"))), *uses]


def _tools(made: Sequence[Message]) -> Mapping[str, Any]:
    """Messages with calls have to declare what they call."""
    blocks = (block for message in made for block in dicts(message.get("content")))
    names = dict.fromkeys(block["name"] for block in blocks if block["type"] == "tool_use")
    return {"tools": [{"name": name, "input_schema": {"type": "object"}} for name in names]} if names else {}


def _to_responses(messages: Sequence[Message]) -> tuple[list[Message], list[int]]:
    """Items of the elements, and the place of the first item of each."""
    made: list[Message] = []
    places: list[int] = []
    for message in messages:
        places.append(len(made))
        made += _items(message)
    return made, places


def _items(message: Message) -> list[Message]:
    role = message["role"]
    if role == "tool":
        result = {"type": "function_call_output", "call_id": message["tool_call_id"]}
        return [{**result, "output": _text(message["content"])}]
    kind = "output_text" if role == "assistant" else "input_text"
    said = [{"type": kind, "text": text} for text in _texts(message.get("content"))]
    calls = [
        {"type": "function_call", "call_id": call["id"], **call["function"]} for call in message.get("tool_calls") or ()
    ]
    return [*([{"type": "message", "role": role, "content": said}] if said else []), *calls]


def _text_in(part: Message) -> str:
    if part.get("type") != "text":
        raise TypeError(f"a part of type {part.get('type')}.")
    return str(part["text"])


def _texts(content: Any) -> list[str]:
    """Texts of a content, without empty ones."""
    return [text for text in ([content] if isinstance(content, str) else map(_text_in, dicts(content))) if text]


def _text(content: Any) -> str:
    return "\n".join(_texts(content))


_Convert = Callable[[Sequence[Message]], tuple[list[Message], list[int]]]
_CONVERSIONS: Mapping[str, tuple[_Convert, str]] = {
    MESSAGES.name: (_to_messages, "system"),
    RESPONSES.name: (_to_responses, "instructions"),
}
