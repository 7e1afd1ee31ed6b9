"""Reasons why Steno did not compact a request, or why a compaction had less effect than intended.

This list has all reasons in answers (`context.reason`, `x-context-reason`), in the log and in the store. Decisions
depend on the codes; the codes' texts are for output only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum, auto
from typing import Self

from msgspec import Struct


class Code(StrEnum):
    """Code of a reason, with its meaning. docs/rest.md lists both verbatim."""

    meaning: str
    before_detail: str
    """Separator between the code and a detail; empty if the reason has none."""

    def __new__(cls, word: str, meaning: str, before_detail: str = "") -> Self:
        code = str.__new__(cls, word)
        code._value_ = word
        code.meaning = meaning
        code.before_detail = before_detail
        return code

    # No compaction was started.
    COMPACTION_OFF = auto(), "a compaction is due, but the client or the settings forbid it"
    FLOOR_EXCEEDS_LIMIT = (
        auto(),
        "the instructions, tools and last user message alone exceed the limit, so no summary can help",
        ": ",
    )
    NOTHING_TO_SUMMARISE = auto(), "the history has nothing besides the verbatim tail"
    STORAGE = auto(), "the database cannot be reached"
    STOPPING = auto(), "the server is shutting down"
    COMPACTION_INEFFECTIVE = (
        auto(),
        "the latest compactions of this history freed few tokens; the next compaction waits until the history grows",
    )
    COMPACTION_TOO_FREQUENT = (
        auto(),
        "the history hardly grew between its latest compactions; the next compaction waits until the history grows",
    )
    HISTORY_CHANGES_EVERY_TURN = (
        auto(),
        "the client keeps changing messages that were summarised, so a new summary would not apply to its next request",
    )
    PUT_OFF_FOR_COST = (
        auto(),
        "a compaction would cost more now than it saves over the next requests, and the prompt fits without it",
    )
    TOO_MANY_COMPACTIONS = auto(), "the tenant already has the maximum number of running compactions"
    SUMMARY_FAILED_LATELY = (
        auto(),
        "the same compaction failed recently, for the preceding reason; Steno tries it again later",
    )

    # A compaction was started, with less effect than needed.
    LEASE_LOST = auto(), "another process took over the compaction three times"
    CONVERSATION_DELETED = auto(), "the conversation was deleted while its summary was made; the summary is not stored"
    SUMMARIES_NOT_ENOUGH = (
        auto(),
        "three compactions in this request were not enough; the next request continues",
    )
    SUMMARIES_LEFT_OUT = (
        auto(),
        "the summaries leave too little room; Steno sends a shorter history, without summaries and the oldest messages",
    )
    SUMMARY_TAKES_TOO_LONG = auto(), "Steno sent the request without its summary, and stores the summary for later"

    SUMMARY_IN_BACKGROUND = (
        auto(),
        "the request fits well without its summary; Steno makes the summary in the background",
    )
    CLIENT_INSTRUCTIONS_TOO_LONG = (
        auto(),
        (
            "the client's instructions inside messages take more than a tenth of the limit; "
            "Steno summarises or omits the named instructions with their messages"
        ),
        ": ",
    )
    INSTRUCTIONS_SUPERSEDED = (
        auto(),
        (
            "instructions among the messages take more than half of the limit; "
            "of instructions with the same beginning, Steno always keeps only the newest"
        ),
        ": ",
    )
    RECALL_TOO_LONG = auto(), "nothing was recalled: the history has more than 2,000,000 tokens"

    # The summariser gave no answer.
    SUMMARISER_PAUSED = (
        auto(),
        "no allowed summary model worked recently, for the preceding reason; Steno tries a model again soon",
    )
    SUMMARISER_UPSTREAM_UNREACHABLE = auto(), "no connection to the summariser could be made"
    SUMMARISER_UPSTREAM_DISCONNECTED = auto(), "the connection to the summariser broke"
    SUMMARISER_UPSTREAM_TIMEOUT = auto(), "the summariser took too long"
    SUMMARISER_STATUS = auto(), "the summariser answered with this status", "_"
    SUMMARISER_ERROR_FRAME = auto(), "the summariser's answer was an error, although its status was 200"
    SUMMARISER_ANSWER_CUT = auto(), "the summariser's answer was cut off"
    SUMMARISER_ANSWER_UNREADABLE = auto(), "the summariser's answer is no completion"
    SUMMARISER_ANSWER_TOO_LARGE = auto(), "the summariser's answer was too large to read"

    # The summariser's answer is no summary.
    SUMMARY_IS_A_TOOL_CALL = auto(), "the summariser called a tool"
    SUMMARY_NOT_FINISHED = (
        auto(),
        "the summariser stopped early; its reason follows the colon: `length`, `content_filter`, ...",
        ":",
    )
    SUMMARY_EMPTY = auto(), "the summariser's answer has reasoning, but no text"
    SUMMARY_REFUSED = (
        auto(),
        "the summariser refused to write, said that there is nothing to summarise, or repeated its instructions",
    )
    SUMMARY_TOO_SHORT = auto(), "the summary has fewer than 20 tokens"
    SUMMARY_TOO_LONG = auto(), "the summary is longer than its cap"
    SUMMARY_NOT_SMALLER = auto(), "the summary has more than 70 % of the tokens that it would replace"

    PAYLOAD_REFUSED = (
        auto(),
        "the provider refused Steno's payload of this history; Steno changes less now, and in later requests",
        ": ",
    )

    # No payload was valid. The code tells the fault of the last attempt.
    OVER_THE_LIMIT = auto(), "the smallest possible payload still exceeds the limit"
    NOT_COVERED_ONCE = auto(), "a message would have been left out, or sent twice"
    LAST_USER_MESSAGE_CHANGED = auto(), "the last user message would have been sent changed"
    INSTRUCTIONS_CHANGED = auto(), "a system or developer message would have been sent changed"
    CLIENT_INSTRUCTIONS_MISSING = auto(), "the client's instructions inside messages would not have been sent"
    TOOL_PAIR_SPLIT = auto(), "a tool call would have been sent without its result, or a result without its call"
    RESULT_APART = (
        auto(),
        "another message would have stood between a tool call and its result, which must come next",
    )
    BOUND_MESSAGE_PARTED = auto(), "a message would have been separated from the one that it belongs to"
    THOUGHTS_LAST = auto(), "a message would have ended with the model's thinking, which the provider refuses"
    ROLES_NOT_ALTERNATING = (
        auto(),
        "two assistant messages in a row would have gone to a provider that refuses them",
    )
    NOTHING_LEFT = auto(), "the payload would have had no message"
    QUOTED_AND_SENT = auto(), "a quoted message would have been sent in full, too"

    # The request was not examined.
    UNREADABLE = auto(), "Steno cannot read the body (`bypassed`)"
    TOO_MANY_VALUES = auto(), "the body has more than 200,000 values (`bypassed`)"
    TOO_MANY_MESSAGES = auto(), "the body has more than 20,000 messages (`bypassed`)"
    TOO_MANY_MEMBERS = auto(), "the body has more than 2,000 top-level members (`bypassed`)"
    KEY_TOO_LONG = auto(), "a key, with the space around it, has more than 65,536 bytes (`bypassed`)"
    PATH_NOT_COMPACTED = (
        auto(),
        "a conversation on a path that Steno does not compact, such as `/v1/messages/count_tokens` (`bypassed`)",
        ": ",
    )
    SERVER_STATE = auto(), "the provider keeps a part of this history that Steno cannot see (`bypassed`)"
    PROMPT_TEMPLATE = auto(), "the provider adds a stored template, which Steno cannot see, to this prompt (`bypassed`)"
    BACKGROUND = auto(), "the provider answers this request in the background (`bypassed`)"
    NATIVE_COMPACTION = auto(), "the client asks the provider to compact the history, which fits (`bypassed`)"
    CLIENT_COMPACTION = auto(), "the client compacts its history with this request, which fits (`bypassed`)"
    SUMMARY_CALL = auto(), "the request is a summary call of another Steno (`bypassed`)"
    INTERNAL_ERROR = auto(), "Steno failed and forwarded the client's own request; the log says why"


_CODES = [*Code]
PROBLEMS = frozenset(_CODES[_CODES.index(Code.OVER_THE_LIMIT) : _CODES.index(Code.QUOTED_AND_SENT) + 1])
"""Codes of faults in a payload."""


class Reason(Struct, frozen=True):
    code: Code
    detail: str = ""
    """Addition to the code: a status, sizes, or a word from the provider's answer."""

    @property
    def text(self) -> str:
        return f"{self.code}{self.code.before_detail}{self.detail}" if self.detail else str(self.code)


Reasons = tuple[Reason, ...]
"""Reasons, the cause first, then its consequences. Empty if there is nothing to report."""


def because(code: Code, detail: str = "") -> Reasons:
    return (Reason(code, detail),)


def joined(reasons: Iterable[Reason]) -> str | None:
    """Join distinct reasons in one line; None without reasons. Reasons in `PROBLEMS` come last, after a colon."""
    unique = dict.fromkeys(reasons)
    parts = ([each for each in unique if (each.code in PROBLEMS) is wrong] for wrong in (False, True))
    return ": ".join(", ".join(each.text for each in part) for part in parts if part) or None


# Advice to the operator, for the log.

_ANOTHER_MODEL = "Choose another summary.model, or add summary.fallbacks."
_MORE_OUTPUT = "Raise summary.max_tokens, lower the effort in summary.parameters, or choose another summary.model."
_OWN_FAULT = "This is a fault in Steno: report it with the lines of this request_id."
_REMEDIES: Mapping[Code, str] = {
    Code.FLOOR_EXCEEDS_LIMIT: "Send shorter instructions or fewer tools, or use a model with a larger window.",
    Code.STORAGE: "See to the database; `steno doctor` tries it.",
    Code.TOO_MANY_COMPACTIONS: "Nothing: a tenant may have 16 conversations compacted at once.",
    Code.SUMMARY_TAKES_TOO_LONG: "Choose a faster summary.model, or raise compaction.wait_seconds.",
    Code.SUMMARISER_UPSTREAM_UNREACHABLE: "Check the base URL of summary.upstream, and whether it is running.",
    Code.SUMMARISER_UPSTREAM_TIMEOUT: "Choose a faster summary.model, or raise summary.timeout_seconds.",
    Code.SUMMARISER_ANSWER_CUT: _MORE_OUTPUT,
    Code.SUMMARISER_ANSWER_UNREADABLE: _ANOTHER_MODEL,
    Code.SUMMARISER_ANSWER_TOO_LARGE: _ANOTHER_MODEL,
    Code.SUMMARY_IS_A_TOOL_CALL: _ANOTHER_MODEL,
    Code.SUMMARY_NOT_FINISHED: _MORE_OUTPUT,
    Code.SUMMARY_EMPTY: _MORE_OUTPUT,
    Code.SUMMARY_REFUSED: _ANOTHER_MODEL,
    Code.SUMMARY_TOO_SHORT: _ANOTHER_MODEL,
    Code.SUMMARY_TOO_LONG: _ANOTHER_MODEL,
    Code.SUMMARY_NOT_SMALLER: _ANOTHER_MODEL,
    Code.PAYLOAD_REFUSED: _OWN_FAULT,
    Code.INTERNAL_ERROR: _OWN_FAULT,
}
_STATUSES: Mapping[str, str] = {
    "401": "Check the key that the summariser's upstream is sent.",
    "403": "Check the key that the summariser's upstream is sent, and what it may use.",
    "404": "Check summary.model and the base URL of summary.upstream.",
    "429": "Raise the provider's rate limit, or add summary.fallbacks.",
}
_FAULT = "This is the provider's own trouble: add summary.fallbacks to be independent of it."


def hint_for(why: Reasons) -> str | None:
    """Return the advice for the first reason with advice; None if no reason has advice."""
    return next((remedy for reason in why if (remedy := _remedy(reason)) is not None), None)


def _remedy(reason: Reason) -> str | None:
    if reason.code is Code.SUMMARISER_STATUS:
        return _STATUSES.get(reason.detail, _FAULT if reason.detail.startswith("5") else _ANOTHER_MODEL)
    return _REMEDIES.get(reason.code)
