"""Why the latest payload looks as it does, in words and numbers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from app.core.reasons import Code
from app.inspector.formats import short, whole
from app.inspector.sawtooth import Tooth
from app.store import StoredConversation

Tone = Literal["plain", "over", "done", "bad"]
_WORD = re.compile(r"[a-z_]+")
_BY_WORD = {str(code): code for code in Code}
_ACTIONS = {
    "masked": "answered tool results were cut to their head and tail",
    "summarized": "summaries stand for the oldest messages",
    "pinned": "copies of pinned messages were added",
    "trimmed": "large tool results were trimmed",
    "cleared": "old tool results were cleared",
    "faded": "old messages were faded",
    "shortened": "large texts were shortened",
    "truncated": "texts were truncated",
    "pruned": "the oldest messages were left out",
    "stub": "a line says that messages were left out",
    "repaired": "calls and results were made to match",
    "recalled": "passages that fit the last message were quoted",
    "thinking_removed": "thoughts that were signed over another prompt were left out",
    "thinking_dropped": "the provider was asked to leave such thoughts out",
}


class Step(NamedTuple):
    title: str
    text: str
    tone: Tone = "plain"


def steps_of(conversation: StoredConversation, parts: Sequence[Mapping[str, Any]], latest: Tooth | None) -> list[Step]:
    """From what came to what went out, in order."""
    return [step for step in _steps(conversation, parts, latest) if step is not None]


def _steps(
    conversation: StoredConversation, parts: Sequence[Mapping[str, Any]], latest: Tooth | None
) -> Iterator[Step | None]:
    before, after = conversation.tokens_before, conversation.tokens_after
    yield Step("Came", f"{whole(before)} tokens by Steno's estimate: {whole(conversation.messages)} messages.")
    yield _trigger(before, latest)
    if latest is not None and latest.actions:
        told = "; ".join(_ACTIONS.get(action, action) for action in latest.actions)
        yield Step("Done", f"{told[:1].upper()}{told[1:]}.", "done")
    yield _stands_for(parts)
    if conversation.reason:
        yield Step("Not done", f"{conversation.reason}.", "bad")
    spared = before - after
    less = f", {whole(spared)} fewer" if spared > 0 else ""
    yield Step("Went out", f"{whole(after)} tokens{less}. The window has {whole(conversation.window)}.")


def _trigger(before: int, latest: Tooth | None) -> Step | None:
    if latest is None or latest.trigger is None:
        return None
    room = f" of the {whole(latest.limit)} that the prompt may use" if latest.limit is not None else ""
    if before > latest.trigger:
        over = whole(before - latest.trigger)
        return Step("Over the trigger", f"It fires above {whole(latest.trigger)}{room}: {over} too many.", "over")
    return Step("Under the trigger", f"It fires above {whole(latest.trigger)}{room}: nothing had to be done.")


def _stands_for(parts: Sequence[Mapping[str, Any]]) -> Step | None:
    chunks = [part for part in parts if part["kind"] == "summarized"]
    if not chunks:
        return None
    covered = sum(part["last_index"] - part["first_index"] + 1 for part in chunks)
    tokens = sum(part["tokens"] for part in chunks)
    number = "1 summary stands" if len(chunks) == 1 else f"{len(chunks)} summaries stand"
    return Step("Chosen", f"{number} for {whole(covered)} messages, in {short(tokens)} tokens.", "done")


def meanings(reason: str | None) -> list[tuple[str, str]]:
    """The reasons' words in a line of them, each with what it means."""
    words = dict.fromkeys(_WORD.findall(reason or ""))
    return [(word, _BY_WORD[word].meaning) for word in words if word in _BY_WORD]
