"""Summary chunks: stored, content-addressed summaries that replace messages in a payload; the check of a summariser's
answer (`objection`), and the outcomes of a compaction."""

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
    """Number of the turn, from 1; None for a rule that the previous release stored."""
    text: str


class SummaryChunk(Struct, frozen=True):
    """The summary of the messages after `from_digest` through `through_digest` of one chain.

    A request uses it only if both digests are in the request's own chain (see `identity`), so an edited or
    branched history never gets a summary of other messages.

    `first_index` and `last_index` count messages after the leading instructions, from 0, both inclusive.
    `through_turn` is the number of turns (user messages) that begin up to `last_index`. `carried` holds offsets
    from `first_index` of the messages that stay verbatim directly after the summary. `tokens` is the uncalibrated
    estimate of the summary in a payload, with its wrapper, values and the user's words.
    """

    id: str
    """Content address: the same range, series, level, text, values and user's words have the same id everywhere."""
    conversation_id: str
    """Conversation that it was made for; any conversation of the tenant may use it."""
    series: str
    """Strategy plus focus: a request reads only chunks of its own series."""
    level: int
    """0: made from messages, and from older chunks if it has `children`; n + 1: fold of chunks up to level n."""
    from_digest: bytes
    through_digest: bytes
    last_message_digest: bytes
    """Digest of the last covered message alone, without the chain."""
    first_index: int
    last_index: int
    through_turn: int
    carried: tuple[int, ...]
    text: str
    tokens: int
    model: str
    prompt_version: str
    continued: bool = False
    """True if its compaction made another chunk, or fold, directly after it. The two are used together: if the next
    one applies to a history, its views neither end here nor continue with a chunk of another kind."""
    children: tuple[str, ...] = ()
    """Ids of the chunks that it replaces, in order."""
    values: tuple[str, ...] = ()
    """Exact values in its range, extracted by code, the most useful first."""
    user_words: tuple[UserWords, ...] = ()
    """The user's words in its range, in order: see `compaction/user_words`."""
    user_words_tokens: int = 0
    """Estimate of `user_words` in a payload."""
    values_kept: float | None = None
    """Share of `values` that the text repeats; None without values."""
    history_length: int | None = None
    """Number of all messages of the history that it was made for; None if an earlier release made it."""
    created_at: datetime | None = None
    """Set by the store's clock; None until the chunk is stored."""


class FirstChunk(Struct, frozen=True):
    """Recent chunk that covers a history from the first message."""

    conversation_id: str
    last_index: int
    last_message_digest: bytes
    through_digest: bytes
    history_length: int
    """Number of all messages of the history that it was made for."""
    created_at: int
    """Milliseconds, by the store's clock."""


class ChunkRange(Struct, frozen=True):
    """Range of a planned chunk: the key of its lease."""

    series: str
    from_digest: bytes
    through_digest: bytes


MINIMUM_TOKENS = 20
REPLACED_SHARE = 0.70
"""Maximum size of a summary as a share of the replaced tokens; a larger one saves too little."""
MISCOUNT = 1.25
"""Factor by which Steno's count of an answer may exceed the provider's cap, as the tokenizers differ."""
LONGEST_REFUSAL = 100
"""Maximum tokens of a refusal. A longer text that begins like one quotes an apology in the conversation."""
ECHOED = 80
"""Characters at the start of the instructions that no summary begins with."""
_THOUGHT = "think|thinking|reasoning"
REASONING = re.compile(
    rf"\s*<({_THOUGHT})>.*?(?:</\1>|\Z)|(?:[^<]++|<(?!/?(?:{_THOUGHT})>))*+</(?:{_THOUGHT})>[ \t]*(?:\n|\Z)",
    re.DOTALL | re.IGNORECASE,
)
"""Reasoning before an answer. A server may omit the opening tag, and a cut answer lacks the closing tag."""
REFUSAL = re.compile(
    rf"\W*(?:{'|'.join(chain.from_iterable(read_wordings(__package__, 'refusals.toml')['refusals'].values()))})",
    re.IGNORECASE,
)
CALL = re.compile(r"<\|?(?:tool_calls?|function_calls?|function=|invoke)\b|\[TOOL_CALLS\]", re.IGNORECASE)
"""Start of a tool call that the provider did not parse."""
ERROR = re.compile(
    r'<(?:!doctype html|html)\b|\{\s*"(?:error"\s*:\s*[{"]|(?:type|object)"\s*:\s*"error")', re.IGNORECASE
)
"""Start of an error that a proxy or a provider returned as an answer."""


class Ending(Enum):
    FINISHED = auto()
    """The model ended the answer by itself."""
    CUT_OFF = auto()
    """A length limit ended the answer."""
    REFUSED = auto()
    CALLED = auto()
    """The model called a tool, with or without text."""
    OTHER = auto()


class SummaryAnswer(Struct, frozen=True):
    text: str
    ending: Ending = Ending.FINISHED
    word: str = ""
    """Stop reason for the log: the provider's word, or the usual word."""
    usage: Tokens = field(default_factory=Tokens)
    bill: Bill = UNBILLED
    model: str = ""
    """Model that answered, which may be a fallback model."""
    upstream: str = ""
    """Name of the upstream that answered, as in the settings."""
    format: str = ""
    """Name of the answer's wire format."""


def visible_text(text: str) -> str:
    """Return an answer without the reasoning that some models put before it."""
    found = REASONING.match(text)
    return text[found.end() if found else 0 :].strip()


def objection(
    answer: SummaryAnswer, tokens: int, at_most: int, replaces: int, asked: str, at_least: int = MINIMUM_TOKENS
) -> Reason | None:
    """Return the reason why an answer must not become a chunk, or None.

    All numbers are tokens of the estimate: `tokens` of the visible text, `at_most` of the call's output cap, `replaces`
    of the replaced text. `asked`: the instructions of the call.
    """
    text = visible_text(answer.text)
    refused = tokens <= LONGEST_REFUSAL and REFUSAL.match(text.replace("\u2019", "'")) is not None
    # Short instructions may also occur in a good summary.
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
    """Return True if a compaction failed because Steno rejected the summariser's answers, which cost money."""
    return any(reason.code in OBJECTIONS for reason in why)


class Outcome(Enum):
    MADE = auto()
    """All planned chunks were made."""
    FAILED = auto()
    LEASE_LOST = auto()
    """Another process took the lease during the compaction; its result may be in the store."""
    DELETED = auto()
    """The conversation was deleted."""
    STORE_AWAY = auto()
    TAKES_TOO_LONG = auto()
    """The summary is still being made; the request is sent without it."""
    AWAITED = auto()
    """Another request's compaction ended before this one began; its result may be in the store."""
    IN_BACKGROUND = auto()
    """The summary is made after the request's answer, or is being made; the request is sent without it."""
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
    """True if the range was too large for one summary: a part of it may succeed."""


class Compaction(Struct, frozen=True):
    """Result of an attempted compaction, with the chunks made, the oldest first."""

    made: tuple[SummaryChunk, ...]
    outcome: Outcome = Outcome.MADE
    why: Reasons = ()
    """Reasons for a failure, or for not starting."""
    overflow: bool = False
    """True if a part of the range may succeed, as in `Failure`."""

    @property
    def is_whole(self) -> bool:
        return self.outcome is Outcome.MADE

    @property
    def is_finished(self) -> bool:
        """True if this request started the compaction, and it ended within the request's time, also by a failure."""
        return self.outcome in _FINISHED

    @property
    def reasons(self) -> Reasons:
        if self.why or self.outcome not in _CODES:
            return self.why
        return because(_CODES[self.outcome])
