"""Correction of a summary: a person's text, values or user's words in place of its own, over the same messages."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from app.compaction import prompts
from app.compaction.chunk_builder import addressed
from app.compaction.chunks import SummaryChunk, UserWords
from app.compaction.exact_values import kept_share
from app.compaction.user_words import quote_user_words
from app.conversation.quoting import fence_of
from app.tokens.estimate import Count, note_tokens

EDITED = "edited"
"""The `prompt_version` of a text that a person wrote."""


def corrected(
    chunk: SummaryChunk,
    conversation_id: str,
    count: Count,
    *,
    text: str | None = None,
    values: Sequence[str] | None = None,
    user_words: Sequence[UserWords] | None = None,
) -> SummaryChunk:
    """The chunk with these members in place of its own, under a new id; itself where nothing differs.

    `conversation_id`: the conversation in which it was corrected.
    """
    wanted = replace(
        chunk,
        text=chunk.text if text is None else text.strip(),
        values=chunk.values if values is None else tuple(values),
        user_words=chunk.user_words if user_words is None else tuple(user_words),
    )
    if wanted == chunk:
        return chunk
    fence = fence_of(wanted.through_digest)
    written = replace(
        wanted,
        conversation_id=conversation_id,
        user_words_tokens=count(quote_user_words(wanted.user_words, fence)),
        values_kept=kept_share(wanted.values, wanted.text),
        prompt_version=EDITED,
        tokens=note_tokens(prompts.chunk_text(wanted), count),
        created_at=None,
    )
    return addressed(written)
