"""Texts that the model says, in whatever format they are written, its summaries among them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.compaction.prompts import LATER_NOTE
from app.tokens.estimate import Count
from lab.simulator.script import Fault

EPOCH = 1_767_225_600
PIECE = 16
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
    return text[: ends[largest(len(ends) - 1, lambda words: count(text[: ends[words]]) <= max_tokens)]]


def largest(most: int, holds: Callable[[int], bool]) -> int:
    """The largest number up to `most` for which something holds, if it holds for all that are smaller."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if holds(middle):
            low = middle
        else:
            high = middle - 1
    return low


def pieces(text: str) -> Iterator[str]:
    """Pieces of a text that the frames of a stream carry."""
    return (text[start : start + PIECE] for start in range(0, len(text), PIECE))


def texts_of(message: Mapping[str, Any]) -> list[str]:
    content = message.get("content")
    if isinstance(content, str):
        return [content]
    return [part["text"] for part in content or () if part.get("type") == "text"]


def _of_length(text: str, words: int) -> str:
    given = text.split(" ")
    return " ".join([*given[:words], *(f"word{number}" for number in range(len(given) + 1, words + 1))])


# An extractive summariser: first sentences and identifiers, so that a test can check which facts survive

LEAST_WIDTH = 4
"""Words of a sentence that still say something."""
GOAL_SHARE = 4
"""One word in so many is for how a text begins, where not even all identifiers fit: a summary tells the goal first."""

_SENTENCE_END = re.compile(r"(?<=[.!?])\s")
_CANDIDATE = re.compile(r"[^\W_](?:[\w.@:+/#-]{0,62}[^\W_])?")
_EMAIL = re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+")
_DATE = re.compile(r"\d{4}-\d\d-\d\d(?:T[\d:.]+Z?)?")
_LONG_NUMBER = re.compile(r"\d{4,}")
_TAG = re.compile(r"<[^<>]+>")
_DIGIT, _LETTER = re.compile(r"\d"), re.compile(r"[A-Za-z]")


def identifiers(text: str) -> list[str]:
    """Tokens that look like identifiers, each once, in order: codes, ids, long numbers, e-mail addresses, ISO dates."""
    return list(dict.fromkeys(token for token in _CANDIDATE.findall(text) if _is_identifier(token)))


def quoted_lines(text: str) -> str:
    """The lines between the first line that is a tag and the last one; the whole text if it has no two of them."""
    lines = text.splitlines()
    tags = [index for index, line in enumerate(lines) if _TAG.fullmatch(line.strip())]
    return "\n".join(lines[tags[0] : tags[-1]]) if len(tags) > 1 else text


def summarise(text: str, max_words: int) -> str:
    """Per line its first sentence and its identifiers: at most `max_words` words, and never more than half of the text.

    Lines that are tags say nothing.

    If that is too much the sentences shrink, all to one width; where that would leave single words, some sentences go,
    from all over the text; identifiers go only when they alone are too many, and then from all over the text.
    """
    notes = _notes(text)
    allowed = max(1, min(max_words, len(text.split()) // 2))
    width = _widest(notes, allowed)
    if width >= LEAST_WIDTH or width == max((len(note.sentence) for note in notes), default=0) > 0:
        return _joined(note.at(width) for note in notes)
    named = [word for note in notes for word in note.at(0)]
    if (sentences := (allowed - len(named)) // LEAST_WIDTH) > 0:
        kept = {note * len(notes) // sentences for note in range(sentences)}
        return _joined(note.at(LEAST_WIDTH if index in kept else 0) for index, note in enumerate(notes))
    goal, rest = named[: allowed // GOAL_SHARE], named[allowed // GOAL_SHARE :]
    kept_names = min(allowed - len(goal), len(rest))
    return " ".join([*goal, *(rest[index * len(rest) // kept_names] for index in range(kept_names))])


def _joined(lines: Iterable[Sequence[str]]) -> str:
    return "\n".join(" ".join(words) for words in lines if words)


@dataclass(frozen=True, slots=True)
class _Note:
    sentence: Sequence[str]
    identifiers: Sequence[str]
    """Identifiers that no earlier line had."""

    def at(self, width: int) -> list[str]:
        kept = self.sentence[:width]
        shown = " ".join(kept)
        return [*kept, *(identifier for identifier in self.identifiers if identifier not in shown)]


def _notes(text: str) -> list[_Note]:
    seen: set[str] = set()
    notes = []
    for line in map(str.strip, text.splitlines()):
        if not line or _TAG.fullmatch(line):
            continue
        new = [identifier for identifier in identifiers(line) if identifier not in seen]
        seen.update(new)
        notes.append(_Note(_SENTENCE_END.split(line, maxsplit=1)[0].split(), new))
    return notes


def _widest(notes: Sequence[_Note], allowed: int) -> int:
    """Largest number of words that each sentence may keep for all notes to fit."""
    longest = max((len(note.sentence) for note in notes), default=0)
    return largest(longest, lambda width: sum(len(note.at(width)) for note in notes) <= allowed)


def _is_identifier(token: str) -> bool:
    if _EMAIL.fullmatch(token) or _DATE.fullmatch(token) or _LONG_NUMBER.fullmatch(token):
        return True
    return bool(_DIGIT.search(token) and _LETTER.search(token))
