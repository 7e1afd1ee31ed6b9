"""The formats there are, by name and by path."""

from __future__ import annotations

from lab.formats.chat_completions import ChatCompletions
from lab.formats.format import ReplayFormat
from lab.formats.gemini import Gemini
from lab.formats.messages import Messages
from lab.formats.responses import Responses

CHAT_COMPLETIONS, MESSAGES, RESPONSES, GEMINI = ChatCompletions(), Messages(), Responses(), Gemini()
FORMATS: dict[str, ReplayFormat] = {each.name: each for each in (CHAT_COMPLETIONS, MESSAGES, RESPONSES, GEMINI)}


def format_at(target: str) -> ReplayFormat:
    """The one whose requests are posted there; the first for paths of none."""
    path = target.partition("?")[0]
    return next((each for each in FORMATS.values() if each.is_posted(path)), CHAT_COMPLETIONS)
