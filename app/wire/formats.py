"""The formats there are. A new one is a folder beside the others, a line here, and samples in `tests/conformance`."""

from __future__ import annotations

from app.wire.chat_completions.format import CHAT_COMPLETIONS
from app.wire.format import WireFormat
from app.wire.responses.format import RESPONSES

FORMATS: tuple[WireFormat, ...] = (CHAT_COMPLETIONS, RESPONSES)
"""The first one is what is spoken where nothing says otherwise."""
