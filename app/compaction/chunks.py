"""Summary chunks: the stored, content-addressed summaries that stand in for messages."""

from __future__ import annotations

from datetime import datetime

from msgspec import Struct


class UserWords(Struct, frozen=True):
    """The user's words in one message, letter by letter but for signs where some were left out."""

    turn: int | None
    """Number of the turn, from 1; None for a rule that the previous release kept."""
    text: str


class SummaryChunk(Struct, frozen=True):
    """The summary of the messages after `from_digest` through `through_digest` of one chain.

    It applies to a request exactly when both digests are in that request's own chain (see `identity`), so an
    edited or branched history never receives a summary that was not made from its own messages.

    `first_index` and `last_index` count messages after the leading instructions, from 0, both inclusive;
    `through_turn` is the number of turns (user messages) that have begun by then. `carried` holds offsets from
    `first_index` of the messages that stay verbatim directly after the summary. `tokens` is the uncalibrated
    estimate of the summary as it stands in a payload: wrapper, values and the user's words included.
    """

    id: str
    """Content address: the same range, series, level, text, values and user's words have the same id everywhere."""
    conversation_id: str
    """The conversation that made it; any conversation of the tenant may use it."""
    series: str
    """Strategy plus focus: a request reads only chunks of its own series."""
    level: int
    """0: made from messages, and from the children that it takes in; n + 1: a fold of chunks of which the highest has
    level n."""
    from_digest: bytes
    through_digest: bytes
    last_message_digest: bytes
    """The unchained digest of the last covered message."""
    first_index: int
    last_index: int
    through_turn: int
    carried: tuple[int, ...]
    text: str
    tokens: int
    model: str
    prompt_version: str
    continued: bool = False
    """Another chunk of the same compaction follows, or another fold. They are used together: where one that begins at
    this one's end applies, too, a view does not end here nor go on with a chunk of another kind."""
    children: tuple[str, ...] = ()
    """Ids of the chunks that it stands for, in order."""
    values: tuple[str, ...] = ()
    """Exact values of its range, made by code: most useful first."""
    user_words: tuple[UserWords, ...] = ()
    """The user's words in its range, in order: see `summary.user_words`."""
    user_words_tokens: int = 0
    """Estimate of these, as they stand in a payload."""
    values_kept: float | None = None
    """Share of `values` that the text holds as well; None where there are none."""
    history_length: int | None = None
    """Messages of the history it was made for, those it does not cover too; None for one of an earlier release."""
    created_at: datetime | None = None
    """Set by the store's clock; None until the chunk is stored."""


class FirstChunk(Struct, frozen=True):
    """A recent chunk that begins at the root: where it ends, by its last message and by the whole history before."""

    conversation_id: str
    last_index: int
    last_message_digest: bytes
    through_digest: bytes
    history_length: int
    """Messages of the history it was made for."""
    created_at: int
    """Milliseconds, by the store's clock."""


class ChunkRange(Struct, frozen=True):
    """Range that a chunk in the making will cover: the key of its lease."""

    series: str
    from_digest: bytes
    through_digest: bytes
