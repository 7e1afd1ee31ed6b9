"""Runs of coding agents: what they called, saw, changed and failed at, also where they speak a text protocol.

In the text protocol an answer holds one block of shell commands, and the user's next message is what came of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import msgspec

from lab.formats.format import dicts
from lab.formats.known import CHAT_COMPLETIONS
from lab.replay.recordings import Message, Recording
from lab.replay.survival import values_in
from lab.simulator.counting import texts_in

SHELL = "bash"
LEAST_LINES = 3
"""Lines of a result that shows a file."""
LONGEST_SIGN = 100
"""Characters of a command, or of an error's line, by which it is known again."""

_BLOCK = re.compile(r"```(?:bash|sh|shell)\s*\n(.*?)\n?```", re.DOTALL)
_WRITTEN = re.compile(r"(?<![<\d&-])>{1,2}\s*([~\w./-]*\w\.[A-Za-z]\w*)|\btee\s+(?:-a\s+)?([~\w./-]*\w\.[A-Za-z]\w*)")
_IN_PLACE = re.compile(r"\bsed\b[^|;&\n]*\s-i|\.write\(|write_text\(|\bgit apply\b|\bpatch\s+-")
_SHOWN = re.compile(
    r"(?:^|&&|;|\|\|)\s*(?:cat|sed -n|head|tail|nl|less|more|git (?:diff|show|log))\b(?![^\n]*<<)", re.MULTILINE
)
_WRITING, _READING = re.compile(r"(?i)write|edit|replace|patch|create"), re.compile(r"(?i)read|view|open")
_FAILED = re.compile(r"(?i)(?:return ?code|exit(?:ed with)?(?: status| code)?)\W{1,3}[1-9]|Traceback \(most recent")
_ERROR = re.compile(r"\b\w*(?:Error|Exception|Warning)\b|\bFAILED\b|\bfatal:|\berror:|No such file|not found")
_NAMED = re.compile(r"\b(?:def|class|function|func|fn|interface|struct|type)\s+(\w+)")


@dataclass(frozen=True)
class Step:
    """One call, and what came of it."""

    place: int
    """Index of the message that calls."""
    answered: int
    """Index of the message with the result."""
    tool: str
    command: str
    """Everything that was asked of the tool, as text."""
    result: str

    @cached_property
    def files(self) -> frozenset[str]:
        """Files that it names, by the ends of their paths."""
        return frozenset(_ending(value.text) for value in values_in(self.command) if value.kind == "files")

    @cached_property
    def changes(self) -> frozenset[str]:
        """Files that it writes."""
        if self.tool != SHELL:
            return self.files if _WRITING.search(self.tool) else frozenset()
        written = {_ending(one or other) for one, other in _WRITTEN.findall(self.command)}
        return frozenset(written) | (self.files if _IN_PLACE.search(self.command) else frozenset())

    @cached_property
    def shown(self) -> str:
        """Text of its files: the result of reading, or what it writes as a whole; empty where it shows none."""
        if "<<" in self.command and _WRITTEN.search(self.command):
            return self.command
        return self.result if self._reads and self.result.count("\n") >= LEAST_LINES else ""

    @cached_property
    def failed(self) -> bool:
        """False also where a file or a difference was read, which may say anything."""
        return not self._reads and _FAILED.search(self.result) is not None

    @cached_property
    def error(self) -> str | None:
        """Last line that says what failed; None where nothing did, or none is known to say it."""
        lines = [line.strip() for line in self.result.splitlines() if self.failed and _ERROR.search(line)]
        return lines[-1][:LONGEST_SIGN] if lines else None

    @cached_property
    def _reads(self) -> bool:
        reads = _SHOWN.search(self.command) if self.tool == SHELL else _READING.search(self.tool)
        return reads is not None


@dataclass(frozen=True, slots=True)
class View:
    """Last sight of a file."""

    file: str
    text: str

    def is_known_from(self, payload: str) -> bool:
        """Whether a payload names the file and has the view: all of it, or half of the names that it defines; where it
        defines none, any line of it."""
        if self.text in payload:
            return True
        if self.file.rpartition("/")[2] not in payload:
            return False
        names = set(_NAMED.findall(self.text))
        if names:
            return 2 * sum(name in payload for name in names) >= len(names)
        lines = (line.strip() for line in self.text.splitlines())
        return any(line in payload for line in lines if len(line) > len(self.file))


def with_calls(recording: Recording) -> Recording:
    """A recording whose text protocol is turned into calls of one tool; itself where it has calls already."""
    messages = recording.messages
    if any(message.get("tool_calls") for message in messages):
        return recording
    made: list[Message] = []
    for place, message in enumerate(messages):
        command = _command(messages, place)
        if command is not None:
            function = {"name": SHELL, "arguments": msgspec.json.encode({"command": command}).decode()}
            call = {"id": f"call_{place}", "type": "function", "function": function}
            thought = _BLOCK.sub("", str(message["content"])).strip()
            made.append({"role": "assistant", "content": thought, "tool_calls": [call]})
        elif place and _command(messages, place - 1) is not None:
            made.append({"role": "tool", "tool_call_id": f"call_{place - 1}", "content": message["content"]})
        else:
            made.append(message)
    return replace(recording, messages=tuple(made))


def steps_of(messages: Sequence[Message]) -> Iterator[Step]:
    """All calls that are answered, in order."""
    results = {message.get("tool_call_id"): place for place, message in enumerate(messages)}
    for place, message in enumerate(messages):
        for call in dicts(message.get("tool_calls")):
            if (answered := results.get(call["id"])) is not None:
                function: Mapping[str, Any] = call["function"]
                given = _decoded(function["arguments"])
                tool = SHELL if isinstance(given, dict) and given.keys() & {"command", "cmd"} else function["name"]
                asked = "\n".join(filter(None, texts_in(given)))
                yield Step(place, answered, tool, asked, said(messages[answered]))
        command = _command(messages, place)
        if command is not None:
            yield Step(place, place + 1, SHELL, command, said(messages[place + 1]))


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


def _ending(path: str) -> str:
    """The last two parts of a path: it may be written from the root or from where the agent is."""
    return "/".join(path.split("/")[-2:])
