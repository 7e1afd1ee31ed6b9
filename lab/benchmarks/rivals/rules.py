"""Rules by which others fit a history into the window, as plain functions over its messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from lab.formats.sent import INSTRUCTION_ROLES
from lab.replay.recordings import Message

LATEST_MESSAGES = 20
LATEST_RESULTS = 10
FULL_RATIO = 0.92
"""Share of the window at which a client such as Claude Code summarises all there is."""
RESERVE_RATIO = 0.05
"""Share of the window that is left for the answer."""
CLEARED = "[Old tool result content cleared]"
ORDER = (
    "Summarise the conversation so far, so that the work can go on from your summary alone: what was asked for, what"
    " was done and found, with all files, names and values, what failed, and what comes next."
)
GOES_ON = "This conversation goes on from an earlier one that was too long. Its summary:"


@dataclass(slots=True)
class Desk:
    """Tools and memory of a rule, for one conversation."""

    window: int
    tokens: Callable[[Sequence[Message]], int]
    """Tokens of a prompt."""
    summarise: Callable[[Sequence[Message]], str | None]
    """Asks the provider; None where it refuses."""
    summary: str = ""
    summarised: int = 0
    """How many messages the summary stands for."""


Rule = Callable[[Sequence[Message], Desk], Sequence[Message]]


def never(history: Sequence[Message], _: Desk) -> Sequence[Message]:
    """Send all of it."""
    return history


def keep_last(history: Sequence[Message], _: Desk) -> Sequence[Message]:
    """Instructions and the latest messages, without results whose calls are gone."""
    start = _instructions(history)
    return [*history[:start], *_repaired(history[max(start, len(history) - LATEST_MESSAGES) :])]


def drop_oldest(history: Sequence[Message], desk: Desk) -> Sequence[Message]:
    """Leave out the oldest messages until the window has room for the others."""
    start = first = _instructions(history)
    limit = desk.window * (1 - RESERVE_RATIO)
    left = desk.tokens(history)
    while left > limit and first < len(history) - 1:
        left -= desk.tokens(history[first : first + 1])
        first += 1
    return [*history[:start], *_repaired(history[first:])]


def mask_results(history: Sequence[Message], _: Desk) -> Sequence[Message]:
    """All of it, the results of tools without their content except for the latest."""
    results = [place for place, message in enumerate(history) if message["role"] == "tool"]
    old = frozenset(results[:-LATEST_RESULTS])
    return [{**message, "content": CLEARED} if place in old else message for place, message in enumerate(history)]


def summarise_all(history: Sequence[Message], desk: Desk) -> Sequence[Message]:
    """One summary in the place of everything once the window is nearly full, except for what the user says now. The
    summariser is shown as much as the window has room for."""
    payload = _after_summary(history, desk)
    if desk.tokens(payload) > FULL_RATIO * desk.window:
        stop = len(history) - (history[-1]["role"] == "user")
        order = {"role": "user", "content": ORDER}
        text = desk.summarise(drop_oldest([*payload[: len(payload) - (len(history) - stop)], order], desk))
        if text is not None:
            desk.summary, desk.summarised = text, stop
            return _after_summary(history, desk)
    return payload


RULES: Mapping[str, Rule] = {
    "never": never,
    "keep-last": keep_last,
    "drop-oldest": drop_oldest,
    "full-summary": summarise_all,
    "mask-results": mask_results,
}


def _after_summary(history: Sequence[Message], desk: Desk) -> list[Message]:
    if not desk.summary:
        return list(history)
    told = {"role": "user", "content": f"{GOES_ON}\n\n{desk.summary}"}
    return [*history[: _instructions(history)], told, *history[desk.summarised :]]


def _instructions(history: Sequence[Message]) -> int:
    spoken = (place for place, message in enumerate(history) if message["role"] not in INSTRUCTION_ROLES)
    return next(spoken, len(history))


def _repaired(messages: Sequence[Message]) -> list[Message]:
    """Messages from the first that needs none before it."""
    first = next((place for place, message in enumerate(messages) if message["role"] != "tool"), len(messages))
    return list(messages[first:])
