"""Titles: conversations are known by the first words that their user said, where messages are kept."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial

from app.core.history.blocks import without_blocks
from app.core.history.own_words import words_of
from app.inspector.said import Formats, formats_of
from app.proxy.services import Services
from app.rest.handoff import message_in
from app.store import StoredMessage
from app.store.message_rows import find_questions

LONGEST = 80
"""Characters of a title."""
LONGEST_MESSAGE = 200_000
"""Characters of a message that is looked at for one."""
MOST_MESSAGES = 3
"""Number of the user's first messages; the first that holds words of his own gives the title."""


async def titles_of(services: Services, tenant: str, conversation_ids: Iterable[str]) -> Mapping[str, str]:
    """Titles by conversation; those are missing of which no words of the user are kept. Raises `StoreUnavailable`."""
    titles: dict[str, str] = {}
    if not services.keeps_messages:
        return titles
    formats, untitled = formats_of(services), list(conversation_ids)
    for number in range(MOST_MESSAGES):
        if untitled:
            found = await services.store.rest(find_questions, tenant, untitled, number, LONGEST_MESSAGE)
            titles |= await services.work.do(tenant, partial(_titled, found, formats))
            untitled = [id_ for id_ in untitled if id_ not in titles]
    return titles


def _titled(found: Mapping[str, StoredMessage], formats: Formats) -> dict[str, str]:
    return {id_: title for id_, message in found.items() if (title := title_in(message, formats))}


def title_in(stored: StoredMessage, formats: Formats) -> str:
    """Title of a message: the beginning of what the user himself wrote, in one line; empty where he wrote nothing."""
    if (message := message_in(stored.sent, formats.get(stored.format))) is None:
        return ""
    words = " ".join(" ".join(words_of(without_blocks(message))).split())
    return words if len(words) <= LONGEST else f"{_whole_words(words[:LONGEST])}\N{HORIZONTAL ELLIPSIS}"


def _whole_words(text: str) -> str:
    """Text without its last word, which may be cut; a single word is cut."""
    return text.rpartition(" ")[0].rstrip(" ,;:-") or text
