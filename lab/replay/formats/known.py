"""The formats there are, by name and by path."""

from __future__ import annotations

from lab.replay.formats.chat_completions import ChatCompletions
from lab.replay.formats.format import ReplayFormat
from lab.replay.formats.messages import Messages
from lab.replay.formats.responses import Responses

CHAT_COMPLETIONS, MESSAGES, RESPONSES = ChatCompletions(), Messages(), Responses()
FORMATS: dict[str, ReplayFormat] = {each.name: each for each in (CHAT_COMPLETIONS, MESSAGES, RESPONSES)}


def format_at(target: str) -> ReplayFormat:
    """The one whose requests are posted there; the first for paths of none."""
    path = target.partition("?")[0]
    return next((each for each in FORMATS.values() if each.path == path), CHAT_COMPLETIONS)
