"""Types of what Steno adds to answers and streams, for clients in Python.

    if context := context_of(answer):
        print(context["status"], context["tokens"]["saved"])

Copy this file beside your program.
"""

from typing import Literal, NotRequired, TypedDict

Status = Literal["full", "summarized", "trimmed"]


class Tokens(TypedDict):
    """Estimates, in the provider's tokens."""

    estimated: int
    forwarded: int
    saved: int
    window: int


class Recalled(TypedDict):
    """Numbers of the quoted messages and of their tokens."""

    messages: int
    tokens: int


class Context(TypedDict):
    """The `context` of an answer, or of the last chunk or event of a stream."""

    conversation_id: str
    status: Status
    actions: list[str]
    tokens: Tokens
    chunks: list[str]
    reason: str | None
    messages: NotRequired[dict[str, int]]
    recalled: NotRequired[Recalled]


class Summarizing(TypedDict):
    """Number of messages that are being summarised."""

    summarizing: int


class EarlyTokens(TypedDict):
    """The tokens that are known before a compaction."""

    estimated: int
    window: int


class CompactionStarted(TypedDict):
    """The event that opens a compaction on a stream."""

    type: Literal["compaction_started"]
    id: str
    conversation_id: str
    messages: Summarizing
    tokens: EarlyTokens


class CompactionEnded(Context):
    """The event that closes a compaction, with the same `id`."""

    type: Literal["compaction_completed", "compaction_failed"]
    id: str


CompactionEvent = CompactionStarted | CompactionEnded


def context_of(answer: object) -> Context | None:
    """Read the `context` of an answer, chunk or event of OpenAI's or Anthropic's SDK."""
    return getattr(answer, "context", None)


def compaction_of(event: object) -> CompactionEvent | None:
    """Read the compaction's event on a chunk or event of OpenAI's or Anthropic's SDK."""
    return getattr(event, "compaction", None)
