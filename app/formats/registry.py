"""All formats. A new format needs a folder in `app/formats`, an entry here, and samples in `tests/conformance`."""

from __future__ import annotations

from app.formats.chat_completions.format import CHAT_COMPLETIONS
from app.formats.format import WireFormat
from app.formats.gemini.format import GEMINI
from app.formats.messages.format import MESSAGES
from app.formats.responses.format import RESPONSES

FORMATS: tuple[WireFormat, ...] = (CHAT_COMPLETIONS, MESSAGES, RESPONSES, GEMINI)
"""Chat Completions is the default and comes first."""


def mark_of(format_: WireFormat) -> str:
    """Return the mark that keeps digests and learnt values of formats apart. The first format has none: it is older
    than marks."""
    return "" if format_ is FORMATS[0] else format_.name
