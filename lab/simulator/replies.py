"""Texts that the model says, in whatever format they are written."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from app.compaction.prompts import LATER_NOTE
from app.tokens.estimate import Count
from lab.simulator.extract import quoted_lines, summarise
from lab.simulator.script import Fault

EPOCH = 1_767_225_600
THOUGHT = "Let me think about what is asked here."
_NUMBERED = re.compile(r"Answer (\d+):")
_EARLIER_NOTES = re.compile(r"^\[.*\]\n<(\w+ \w+)>\n(?:.*\n)*?</\1>$", re.MULTILINE)
"""Notes that Steno put into a conversation: a heading, and the text between two tags."""
_WORD_END = re.compile(r"\s|$")


def default_reply(messages: Sequence[Any]) -> str:
    """Reply that names the turn, also where a summary stands for earlier ones, and the end of the last user message."""
    texts = ["\n".join(texts_of(message)) for message in messages if message["role"] == "assistant"]
    numbered = next((match for text in reversed(texts) if (match := _NUMBERED.match(text))), None)
    users = [message for message in messages if message["role"] == "user"]
    turn = int(numbered[1]) + 1 if numbered else max(1, len(users))
    words = " ".join(texts_of(users[-1])).split()[-3:] if users else []
    return f"Answer {turn}: about {' '.join(words) or 'nothing in particular'}."


def summary_of(messages: Sequence[Any], max_words: int, max_tokens: int | None, count: Count) -> str:
    """Notes on the transcript in the only message, or on the conversation before it, within the caller's limit.

    Earlier notes in a conversation are left out if the last message asks for the messages after them.
    """
    texts = ["\n".join(texts_of(message)) for message in messages if message["role"] not in ("system", "developer")]
    *conversation, order = texts or [""]
    if not conversation:
        source = quoted_lines(order)
    elif LATER_NOTE in order:
        source = _EARLIER_NOTES.sub("", "\n".join(conversation))
    else:
        source = "\n".join(conversation)
    allowed = max_words if max_tokens is None else min(max_words, int(0.5 * max_tokens))
    notes = summarise(source, allowed) if source else ""
    while max_tokens is not None and (tokens := count(notes)) > max_tokens:
        allowed = min(allowed - 1, allowed * max_tokens // tokens)
        notes = summarise(source, allowed) if allowed else ""
    return notes


def spoken(fault: Fault, text: str, max_tokens: int | None, count: Count) -> tuple[str | None, bool]:
    """The text as the fault wants it and within the caller's token limit, and whether that cut it."""
    if fault.tool_calls and fault.text is None:
        return None, False
    whole = text if fault.words is None else _of_length(text, fault.words)
    said = whole if max_tokens is None else cut_to_tokens(whole, max_tokens, count)
    return said, said != whole


def cut_to_tokens(text: str, max_tokens: int, count: Count) -> str:
    """The longest beginning, in whole words, of at most so many tokens."""
    if count(text) <= max_tokens:
        return text
    ends = [0, *(match.start() for match in _WORD_END.finditer(text))]
    low, high = 0, len(ends) - 1
    while low < high:
        middle = (low + high + 1) // 2
        if count(text[: ends[middle]]) <= max_tokens:
            low = middle
        else:
            high = middle - 1
    return text[: ends[low]]


def pieces(text: str, size: int) -> Iterator[str]:
    """Pieces of a text that the frames of a stream carry."""
    return (text[start : start + size] for start in range(0, len(text), size))


def texts_of(message: Mapping[str, Any]) -> list[str]:
    """The texts of a message's content."""
    content = message.get("content")
    if isinstance(content, str):
        return [content]
    return [part["text"] for part in content or () if part.get("type") == "text"]


def _of_length(text: str, words: int) -> str:
    given = text.split(" ")
    return " ".join([*given[:words], *(f"word{number}" for number in range(len(given) + 1, words + 1))])
