"""The formats there are. A new one is a folder beside the others, a line here, and samples in `tests/conformance`."""

from __future__ import annotations

from app.formats.chat_completions.format import CHAT_COMPLETIONS
from app.formats.format import WireFormat
from app.formats.gemini.format import GEMINI
from app.formats.messages.format import MESSAGES
from app.formats.responses.format import RESPONSES

FORMATS: tuple[WireFormat, ...] = (CHAT_COMPLETIONS, MESSAGES, RESPONSES, GEMINI)
"""The first one is what is spoken where nothing says otherwise."""


def mark_of(format_: WireFormat) -> str:
    """Mark that sets apart what is digested and learnt in a format. The first one has none: it was there before
    marks."""
    return "" if format_ is FORMATS[0] else format_.name
