"""Summary chunks, which replace messages in a payload; outcomes of a compaction."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import Enum, auto

from msgspec import Struct

from app.conversation.reasons import Code, Reasons, because


class UserWords(Struct, frozen=True):
    """Quotation from one user message. `[...]` marks each omission."""

    turn: int | None
    """Number of the turn, from 1; None for an entry that an earlier release stored."""
    text: str


class SummaryChunk(Struct, frozen=True):
    """Summary of a range of messages.

    `from_digest` is the digest of the history before the range, `through_digest` of the history to the range's end
    (see `identity`). A request uses a chunk only if its history has both digests, so an edited or branched history
    never gets a summary of other messages. `first_index` and `last_index` are the positions of the range's first and
    last message. Positions count from 0 at the first message after the leading instructions.

    `through_turn` is the number of turns that begin up to `last_index`. `carried` holds the messages that stay verbatim
    after the summary, as offsets from `first_index`. `tokens` is the uncalibrated estimate of the summary in a payload,
    with its heading, exact values and user's words.
    """

    id: str
    """Digest of range, series, level, text, values and user's words."""
    conversation_id: str
    """Conversation for which the chunk was made; any conversation of the tenant may use it."""
    series: str
    """Strategy, and a digest of the focus if there is one. A request reads only chunks of its own series."""
    level: int
    """0 for a summary of messages, even if it also replaces older chunks; n + 1 for a fold of chunks up to level n."""
    from_digest: bytes
    through_digest: bytes
    last_message_digest: bytes
    """Digest of the range's last message alone."""
    first_index: int
    last_index: int
    through_turn: int
    carried: tuple[int, ...]
    text: str
    tokens: int
    model: str
    prompt_version: str
    continued: bool = False
    """True if the same compaction also made the next chunk. If the history has a next chunk of the same kind (fold or
    no fold), a view uses this chunk only together with such a next chunk."""
    children: tuple[str, ...] = ()
    """Ids of the chunks that this chunk replaces, in order."""
    values: tuple[str, ...] = ()
    """Lines with exact values from the range, extracted by code, the most useful first."""
    user_words: tuple[UserWords, ...] = ()
    """The user's words in the range, in order: see the module `user_words`."""
    user_words_tokens: int = 0
    """Estimated tokens of `user_words` in a payload."""
    values_kept: float | None = None
    """Share of `values` that the text repeats; None without values."""
    history_length: int | None = None
    """Number of messages of the history when the chunk was made; None in chunks of earlier releases."""
    created_at: datetime | None = None
    """Time by the store's clock; None until the chunk is stored."""


class FirstChunk(Struct, frozen=True):
    """Properties of a recent chunk that begins at the first message of a history."""

    conversation_id: str
    last_index: int
    last_message_digest: bytes
    through_digest: bytes
    history_length: int
    """Number of messages of the history when the chunk was made."""
    created_at: int
    """Milliseconds since 1970, by the store's clock."""


class ChunkRange(Struct, frozen=True):
    """Range of the messages of a planned compaction. The compaction's lease has this range as its key."""

    series: str
    from_digest: bytes
    through_digest: bytes


class Outcome(Enum):
    MADE = auto()
    """All planned chunks were made."""
    FAILED = auto()
    LEASE_LOST = auto()
    """The lease expired or another process took it. Chunks of that process may be in the store."""
    DELETED = auto()
    STORE_AWAY = auto()
    TAKES_TOO_LONG = auto()
    """The summary is still being made; the request is sent without it."""
    AWAITED = auto()
    """Another request's compaction has ended. Its chunks may be in the store."""
    IN_BACKGROUND = auto()
    """A background compaction will make the summary; the request is sent without it."""
    NOTHING_TO_SUMMARISE = auto()
    NOT_BEGUN = auto()


_FINISHED = frozenset({Outcome.MADE, Outcome.FAILED, Outcome.LEASE_LOST, Outcome.DELETED, Outcome.STORE_AWAY})
_CODES: Mapping[Outcome, Code] = {
    Outcome.LEASE_LOST: Code.LEASE_LOST,
    Outcome.DELETED: Code.CONVERSATION_DELETED,
    Outcome.STORE_AWAY: Code.STORAGE,
    Outcome.TAKES_TOO_LONG: Code.SUMMARY_TAKES_TOO_LONG,
    Outcome.IN_BACKGROUND: Code.SUMMARY_IN_BACKGROUND,
    Outcome.NOTHING_TO_SUMMARISE: Code.NOTHING_TO_SUMMARISE,
}
"""Reason for each outcome that needs no details."""


class Failure(Struct, frozen=True):
    """Summary call without an answer, or with a rejected answer."""

    why: Reasons
    overflow: bool = False
    """True if the range was too large for one summary, but a summary of a part may succeed."""


class Compaction(Struct, frozen=True):
    made: tuple[SummaryChunk, ...]
    """New chunks, the oldest first."""
    outcome: Outcome = Outcome.MADE
    why: Reasons = ()
    """Reasons why the compaction failed or did not start."""
    overflow: bool = False
    """True if a range was too large for one summary: see `Failure.overflow`."""

    @property
    def is_whole(self) -> bool:
        return self.outcome is Outcome.MADE

    @property
    def is_finished(self) -> bool:
        """True if the compaction ran to its end, with success or failure."""
        return self.outcome in _FINISHED

    @property
    def reasons(self) -> Reasons:
        if self.why or self.outcome not in _CODES:
            return self.why
        return because(_CODES[self.outcome])
