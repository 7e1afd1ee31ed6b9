"""Summary chunks: the stored, content-addressed summaries that stand in for messages; the answers that may become one
(`objection`), and the results of a compaction."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from enum import Enum, auto
from itertools import chain

from msgspec import Struct, field

from app.conversation.quoting import word
from app.conversation.reasons import Code, Reason, Reasons, because
from app.conversation.wordings import read_wordings
from app.tokens.usage import UNBILLED, Bill, Tokens


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
    """0: made from messages, and from the children that it takes in; n + 1: a fold of chunks up to level n."""
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
    """The user's words in its range, in order: see `compaction/user_words`."""
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


MINIMUM_TOKENS = 20
REPLACED_SHARE = 0.70
"""Share of what it replaces over which a summary saves too little to lose the original for."""
MISCOUNT = 1.25
"""Factor by which we may count more where the provider cut an answer off at so many tokens: another tokenizer."""
LONGEST_REFUSAL = 100
"""Characters of the longest refusal. A longer text that begins like one quotes an apology in the conversation."""
ECHOED = 80
"""Characters of what the summariser was asked that no summary begins with."""
_THOUGHT = "think|thinking|reasoning"
REASONING = re.compile(
    rf"\s*<({_THOUGHT})>.*?(?:</\1>|\Z)|(?:[^<]++|<(?!/?(?:{_THOUGHT})>))*+</(?:{_THOUGHT})>[ \t]*(?:\n|\Z)",
    re.DOTALL | re.IGNORECASE,
)
"""Reasoning before an answer. A server may leave out its first tag, and who was cut off the last one."""
REFUSAL = re.compile(
    rf"\W*(?:{'|'.join(chain.from_iterable(read_wordings(__package__, 'refusals.toml')['refusals'].values()))})",
    re.IGNORECASE,
)
CALL = re.compile(r"<\|?(?:tool_calls?|function_calls?|function=|invoke)\b|\[TOOL_CALLS\]", re.IGNORECASE)
"""Form of a call that the provider did not parse."""
ERROR = re.compile(
    r'<(?:!doctype html|html)\b|\{\s*"(?:error"\s*:\s*[{"]|(?:type|object)"\s*:\s*"error")', re.IGNORECASE
)
"""How an error begins that a proxy or a provider wrote in the place of an answer."""


class Ending(Enum):
    FINISHED = auto()
    """The model ended it by itself."""
    CUT_OFF = auto()
    """Room ran out before the end."""
    REFUSED = auto()
    CALLED = auto()
    """The model calls a tool, in place of text or beside it."""
    OTHER = auto()


class SummaryAnswer(Struct, frozen=True):
    text: str
    ending: Ending = Ending.FINISHED
    word: str = ""
    """The reason to end, for people: as the provider calls it, or as its like is usually called."""
    usage: Tokens = field(default_factory=Tokens)
    """Tokens that the call took."""
    bill: Bill = UNBILLED
    model: str = ""
    """The model that answered, which may be the one asked last."""
    upstream: str = ""
    """Name of the upstream that answered, as the settings call it."""
    format: str = ""
    """The name of the wire format in which it did."""


def visible_text(text: str) -> str:
    """The answer without the reasoning that some models put before it."""
    found = REASONING.match(text)
    return text[found.end() if found else 0 :].strip()


def objection(
    answer: SummaryAnswer, tokens: int, at_most: int, replaces: int, asked: str, at_least: int = MINIMUM_TOKENS
) -> Reason | None:
    """Why an answer may not become a chunk, or None.

    `tokens` estimates its visible text, `replaces` estimates what it would stand for, by the same measure. `at_most`
    is the cap the provider was given, `asked` the instructions.
    """
    text = visible_text(answer.text)
    refused = tokens <= LONGEST_REFUSAL and REFUSAL.match(text.replace("\u2019", "'")) is not None
    # Instructions of a few words may well stand in a summary, too.
    echoed = len(asked) >= ECHOED and asked[:ECHOED] in text[: 2 * ECHOED]
    checks = (
        (answer.ending is Ending.CALLED or CALL.match(text) is not None, Reason(Code.SUMMARY_IS_A_TOOL_CALL)),
        (answer.ending is not Ending.FINISHED, Reason(Code.SUMMARY_NOT_FINISHED, word(answer.word))),
        (not text, Reason(Code.SUMMARY_EMPTY)),
        (ERROR.match(text) is not None, Reason(Code.SUMMARISER_ERROR_FRAME)),
        (refused or echoed, Reason(Code.SUMMARY_REFUSED)),
        (tokens < at_least, Reason(Code.SUMMARY_TOO_SHORT)),
        (tokens > MISCOUNT * at_most, Reason(Code.SUMMARY_TOO_LONG)),
        (tokens > REPLACED_SHARE * replaces, Reason(Code.SUMMARY_NOT_SMALLER)),
    )
    return next((reason for failed, reason in checks if failed), None)


OBJECTIONS = frozenset(
    {
        Code.SUMMARY_IS_A_TOOL_CALL,
        Code.SUMMARY_NOT_FINISHED,
        Code.SUMMARY_EMPTY,
        Code.SUMMARY_REFUSED,
        Code.SUMMARY_TOO_SHORT,
        Code.SUMMARY_TOO_LONG,
        Code.SUMMARY_NOT_SMALLER,
    }
)


def was_refused(why: Reasons) -> bool:
    """Whether a compaction failed by answers, which were paid for and could not be kept."""
    return any(reason.code in OBJECTIONS for reason in why)


class Outcome(Enum):
    MADE = auto()
    """All that was planned."""
    FAILED = auto()
    LEASE_LOST = auto()
    """Another holder took the lease while the compaction was made: that one's result is worth looking for."""
    DELETED = auto()
    """The conversation is gone."""
    STORE_AWAY = auto()
    TAKES_TOO_LONG = auto()
    """The summary is still being made; the request goes on without."""
    AWAITED = auto()
    """Another request's compaction ended before this one began: its result is worth looking for."""
    IN_BACKGROUND = auto()
    """The summary is made after the request's answer, or being made already; the request goes on without."""
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
"""Reason for each outcome that needs no more words."""


class Failure(Struct, frozen=True):
    """No answer could be had, or none that may be kept."""

    why: Reasons
    overflow: bool = False
    """The range was too large for one summary: a part of it may do."""


class Compaction(Struct, frozen=True):
    """Compaction that was tried: the chunks that were made, oldest first, and whether that is all of them."""

    made: tuple[SummaryChunk, ...]
    outcome: Outcome = Outcome.MADE
    why: Reasons = ()
    """Reasons for what failed, or was not begun."""
    overflow: bool = False
    """True if a part of the range may do, as in `Failure`."""

    @property
    def is_whole(self) -> bool:
        return self.outcome is Outcome.MADE

    @property
    def is_finished(self) -> bool:
        """True if this request began it, and it came to an end within the request's time, with or without success."""
        return self.outcome in _FINISHED

    @property
    def reasons(self) -> Reasons:
        if self.why or self.outcome not in _CODES:
            return self.why
        return because(_CODES[self.outcome])
