"""Versions: what becomes of a summary after it was made: edited, made anew, undone.

A chunk never changes. An edit is a chunk of the same range with a version more; what it replaces stays as a record, is
deactivated, and so is every fold that was made of it. What is made anew after a deactivation goes on counting.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

from msgspec.structs import replace

from app.core.summary import prompts
from app.core.summary.beside import kept_share
from app.core.tokens.estimate import Count, note_tokens
from app.core.view.chunks import SummaryChunk

EDITED = "edited"
"""The `prompt_version` of a text that somebody wrote."""


def addressed(chunk: SummaryChunk) -> SummaryChunk:
    """The chunk with its id, the content address: of all that makes its bytes in a payload. What stands beside a text
    counts where there is anything, so that the summaries of earlier releases keep their ids."""
    address = blake2b(digest_size=16, person=b"steno-chunk")
    parts = [chunk.series, str(chunk.level), str(chunk.version), chunk.text]
    if beside := prompts.chunk_beside(chunk):
        parts.append(beside)
    for part in parts:
        encoded = part.encode("utf-8", "surrogatepass")
        address.update(len(encoded).to_bytes(8, "big") + encoded)
    address.update(chunk.from_digest + chunk.through_digest)
    return replace(chunk, id=f"chk_{address.hexdigest()}")


def renumbered(chunk: SummaryChunk, version: int) -> SummaryChunk:
    """The chunk as another version of its range."""
    return addressed(replace(chunk, version=version))


def edited(
    chunk: SummaryChunk,
    conversation_id: str,
    count: Count,
    *,
    text: str | None = None,
    values: Sequence[str] | None = None,
    rules: Sequence[str] | None = None,
) -> SummaryChunk:
    """The next version, with these in place of its own; itself where they are no others. `conversation_id`: where it
    was edited."""
    asked = replace(
        chunk,
        text=chunk.text if text is None else text.strip(),
        values=chunk.values if values is None else tuple(values),
        rules=chunk.rules if rules is None else tuple(rules),
    )
    if asked == chunk:
        return chunk
    written = replace(
        asked,
        conversation_id=conversation_id,
        values_kept=kept_share(asked.values, asked.text),
        prompt_version=EDITED,
        tokens=note_tokens(prompts.chunk_text(asked), count),
        created_at=None,
    )
    return renumbered(written, chunk.version + 1)


def last_compaction(sent: Sequence[SummaryChunk], newest_first: Sequence[SummaryChunk]) -> tuple[SummaryChunk, ...]:
    """The chunks that the latest compaction made, oldest first; folds aside, which are nothing without them.

    `sent`: those of the latest payload, in order: their last one is undone first. Where it has none it is the one that
    was stored last. What was made in several parts was made together, and is undone together.
    """
    in_payload, stored = list(filter(_counts, sent)), list(filter(_counts, newest_first))
    active = [*in_payload, *stored]
    if not active:
        return ()
    first = last = in_payload[-1] if in_payload else stored[0]
    made = [first]
    while (before := _beside(active, first, before=True)) is not None:
        first = before
        made.insert(0, first)
    while (after := _beside(active, last, before=False)) is not None:
        last = after
        made.append(last)
    return tuple(made)


def _counts(chunk: SummaryChunk) -> bool:
    return chunk.level == 0 and chunk.deactivated_at is None


def _beside(chunks: Sequence[SummaryChunk], chunk: SummaryChunk, *, before: bool) -> SummaryChunk | None:
    """The part of the same compaction that comes before a chunk, or after it.

    A part that was made anew for a longer history belongs to another compaction than the parts around it.
    """
    for other in chunks:
        first, second = (other, chunk) if before else (chunk, other)
        joins = first.continued and first.through_digest == second.from_digest and first.series == second.series
        if joins and first.history_length == second.history_length and first is not second:
            return other
    return None
