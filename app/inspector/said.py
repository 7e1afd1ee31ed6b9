"""Stored messages for people: their texts, calls and what else they hold, whatever their format."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from app.api.handoff import message_in
from app.conversation.messages import Kind, Message
from app.formats.format import WireFormat
from app.proxy.services import Services
from app.store import StoredMessage

Formats = Mapping[str, WireFormat]
"""Wire formats by name."""
LONGEST = 20_000
"""Characters of one message that a page shows."""
GLANCE = 320
"""Characters of a message that are shown at first."""
WORDS: Mapping[str, str] = {
    Kind.INSTRUCTIONS.name.lower(): "instructions",
    Kind.USER.name.lower(): "user",
    Kind.CLIENT.name.lower(): "user's program",
    Kind.ASSISTANT.name.lower(): "assistant",
    Kind.RESULT.name.lower(): "tool result",
    Kind.OTHER.name.lower(): "other",
}


class Said(Struct, frozen=True):
    kind: str
    """Kind of the message, in a word."""
    text: str
    """Text as far as it is shown."""
    calls: tuple[str, ...] = ()
    """Names of the tools that the message calls."""
    beside: str = ""
    """Names of the parts that are no text."""
    left: int = 0
    """Number of characters that are not shown."""

    @property
    def glance(self) -> str:
        """Beginning of the text; empty where that is all of it."""
        return self.text[:GLANCE].rstrip() if len(self.text) > GLANCE or self.text.count("\n") > 5 else ""


def formats_of(services: Services) -> Formats:
    return {each.name: each for each in services.formats}


def said_in(stored: StoredMessage, formats: Formats) -> Said:
    """Message as a page shows it; one that cannot be read any more is shown as its JSON."""
    if (message := message_in(stored.sent, formats.get(stored.format))) is None:
        return _cut(WORDS["other"], stored.sent)
    return _cut(
        WORDS[message.kind.name.lower()],
        _text_of(message),
        tuple(call.name for call in message.calls),
        _beside(message),
    )


def _cut(kind: str, text: str, calls: tuple[str, ...] = (), beside: str = "") -> Said:
    return Said(kind, text[:LONGEST], calls, beside, max(0, len(text) - LONGEST))


def _text_of(message: Message) -> str:
    said = [text for text in message.texts if text]
    said += [f"{call.name}({call.arguments})" for call in message.calls]
    return "\n".join(said)


def _beside(message: Message) -> str:
    held = []
    if message.media:
        held.append("1 attachment" if len(message.media) == 1 else f"{len(message.media)} attachments")
    if message.thoughts or message.encrypted:
        held.append("reasoning")
    return ", ".join(held)
