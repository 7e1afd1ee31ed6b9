"""Runs of coding agents that speak a text protocol, with calls in its place.

In the text protocol an answer holds one block of shell commands, and the user's next message is what came of it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec

from lab.formats.known import CHAT_COMPLETIONS
from lab.replay.recordings import Message, Recording
from lab.simulator.counting import texts_in

_BLOCK = re.compile(r"```(?:bash|sh|shell)\s*\n(.*?)\n?```", re.DOTALL)


def with_calls(recording: Recording) -> Recording:
    """A recording whose text protocol is turned into calls of one tool; itself where it has calls already."""
    messages = recording.messages
    if any(message.get("tool_calls") for message in messages):
        return recording
    made: list[Message] = []
    for place, message in enumerate(messages):
        command = _command(messages, place)
        if command is not None:
            function = {"name": "bash", "arguments": msgspec.json.encode({"command": command}).decode()}
            call = {"id": f"call_{place}", "type": "function", "function": function}
            thought = _BLOCK.sub("", str(message["content"])).strip()
            made.append({"role": "assistant", "content": thought, "tool_calls": [call]})
        elif place and _command(messages, place - 1) is not None:
            made.append({"role": "tool", "tool_call_id": f"call_{place - 1}", "content": message["content"]})
        else:
            made.append(message)
    return replace(recording, messages=tuple(made))


def said(message: Message) -> str:
    """Everything a message says, the arguments of its calls as text."""
    read = CHAT_COMPLETIONS.reading(message)
    asked = (text for call in read.calls for text in texts_in(_decoded(call.arguments)) if text)
    return "\n".join((*read.texts, *(call.name for call in read.calls), *asked))


def _command(messages: Sequence[Message], place: int) -> str | None:
    """Command that an answer of the text protocol has; None for any other message."""
    answered = place + 1 < len(messages) and messages[place + 1]["role"] == "user"
    message = messages[place]
    if not answered or message["role"] != "assistant" or message.get("tool_calls"):
        return None
    blocks = _BLOCK.findall(str(message["content"]))
    return str(blocks[0]) if len(blocks) == 1 else None


def _decoded(arguments: str) -> Any:
    try:
        return msgspec.json.decode(arguments)
    except msgspec.DecodeError:
        return arguments
