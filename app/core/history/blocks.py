"""Blocks: what the program puts into messages in its user's name, such as the rules of his project.

Programs have one role for what their users say and for what they say themselves, and mark the latter. Some of it holds
for the whole conversation; some only reminds the model of something for a moment. Neither is anything that the user
asks. A mark counts at the beginning of a message only, or behind what else the program put there: further on it may
stand in a document.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache

from msgspec import Struct

from app.core.history.messages import Kind, Message
from app.core.history.passed_on import TYPED


class Mark(Struct, frozen=True):
    """How a kind of block begins and ends."""

    begins: str
    """Text at the beginning; it names the kind, too. Where its lines end there may be more blanks, or none."""
    ends: str = ""
    """Text at the end; empty where the block goes on to the end of the text that it stands in."""
    members: tuple[str, ...] = ()
    """Tags of what a later block of the kind names only where it changed."""


MARKS = (
    # Claude Code
    Mark(
        "<system-reminder>\nAs you answer the user's questions, you can use the following context:",
        "</system-reminder>",
    ),
    # Codex
    Mark("# AGENTS.md instructions", "</INSTRUCTIONS>"),
    Mark("<user_instructions>", "</user_instructions>"),
    Mark(
        "<environment_context>",
        "</environment_context>",
        (
            "<cwd>",
            "<shell>",
            "<approval_policy>",
            "<sandbox_mode>",
            "<network_access>",
            "<writable_roots>",
            "<subagents>",
        ),
    ),
    # Cursor
    Mark("<rules>", "</rules>"),
    Mark("<user_info>", "</user_info>"),
    Mark("<project_layout>", "</project_layout>"),
    # GitHub Copilot
    Mark("<instructions>", "</instructions>"),
    Mark("<environment_info>", "</environment_info>"),
    Mark("<workspace_info>", "</workspace_info>"),
    # Gemini CLI and what was made of it
    Mark("<session_context>", "</session_context>"),
    Mark("This is the Gemini CLI. We are setting up the context for our chat."),
    Mark("This is the Qwen Code. We are setting up the context for our chat."),
)
"""Blocks that hold for a whole conversation, the more important first."""

REMINDERS = (
    Mark("<system-reminder>", "</system-reminder>"),
    Mark("<system_reminder>", "</system_reminder>"),
)
"""Blocks that hold for a moment."""


class Block(Struct, frozen=True):
    """Text that the program put into a message for good, letter by letter."""

    mark: Mark
    index: int
    """Position of its message."""
    place: int
    """Position of its text among those of the message."""
    text: str

    @property
    def kinds(self) -> Iterator[tuple[Mark, str]]:
        """Parts of older blocks that it takes the place of: each member that it names, and all else."""
        return ((self.mark, tag) for tag in ("", *self.mark.members) if tag in self.text)


def is_programs(texts: Sequence[str]) -> bool:
    """Whether the texts of a message are blocks and reminders, and nothing else."""
    said = [text for text in texts if text.strip()]
    return bool(said) and all(not _rest(text).strip() for text in said)


def without_blocks(message: Message) -> tuple[str, ...]:
    """Texts that the sender of a message wrote, without what his program put there."""
    return without_blocks_in(message.own_texts)


def without_blocks_in(texts: Sequence[str]) -> tuple[str, ...]:
    """The texts of a message behind what his program puts before each, as far as there is anything."""
    return tuple(text for text in map(_rest, texts) if text.strip())


def blocks_in(message: Message, index: int) -> list[Block]:
    """Blocks of a message that hold for the whole conversation, in order."""
    if message.kind not in _IN_USERS_NAME and not message.beside:
        return []
    found: list[Block] = []
    passed_on = {*message.passed_on, *message.result_places}
    for place, text in enumerate(message.texts):
        if place in passed_on:
            continue
        end = 0
        for mark, start, end in _leading(text):
            if mark not in REMINDERS:
                found.append(Block(mark, index, place, text[start:end]))
        if text[end:].strip():  # From here on it is the user who speaks, or somebody whom he quotes.
            break
    return found


_IN_USERS_NAME = frozenset({Kind.USER, Kind.CLIENT})


_SAID = re.compile(r"\S")
_TYPED = re.compile(rf"\s*+{TYPED}\s*+", re.DOTALL | re.IGNORECASE)


def typed_in(text: str) -> str | None:
    """The words in a reminder that says what the user typed while the assistant worked; None if it is none."""
    typed = _TYPED.fullmatch(text)
    return typed["words"] if typed else None


def _rest(text: str) -> str:
    """A text behind the blocks that it begins with."""
    typed = typed_in(text)
    if typed is not None:
        return typed
    return text[max((end for _, _, end in _leading(text)), default=0) :]


def _leading(text: str) -> Iterator[tuple[Mark, int, int]]:
    """The blocks that a text begins with, one behind the other: the mark, start and end of each, with the blanks around
    it."""
    if _TYPED.fullmatch(text):
        return
    marks, pattern = _written()
    end = 0
    while match := pattern.match(text, end):
        mark = marks[(match.lastindex or 1) - 1]
        close = text.find(mark.ends, match.end()) if mark.ends else len(text)
        if close < 0:
            return
        said = _SAID.search(text, close + len(mark.ends))
        start, end = end, said.start() if said else len(text)
        yield mark, start, end


@cache
def _written() -> tuple[Sequence[Mark], re.Pattern[str]]:
    """The marks, and a pattern with a group for each. The longer ones first: a shorter one may be how one begins."""
    marks = sorted((*MARKS, *REMINDERS), key=lambda mark: -len(mark.begins))
    lines = ([re.escape(line.strip()) for line in mark.begins.splitlines()] for mark in marks)
    groups = "|".join(rf"({blanks})" for blanks in map(r"\s*".join, lines))
    return marks, re.compile(rf"\s*(?:{groups})")
