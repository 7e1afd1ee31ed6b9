"""Values that `wire` and its callers speak of: a request as far as it is read, a message as a format reads it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self

from msgspec import Struct
from msgspec.structs import replace

from app.conversation.messages import Message
from app.conversation.reasons import Code, Reason
from app.formats.echoes import echoed_in
from app.formats.members import RawObject, Unreadable
from app.tokens.declarations import Declarations

Headers = Sequence[tuple[bytes, bytes]]
Named = tuple[str, bytes]
"""A member's name, as errors tell it, and its JSON as received."""


class TooManyMessages(Unreadable):
    """Planning what becomes of each of them would take time that others have to wait for."""

    reason = Code.TOO_MANY_MESSAGES


class BodyBounds(Struct, frozen=True):
    """Bounds of a body that is read: one that passes them goes to the provider as it is."""

    values: int = 200_000
    messages: int = 10_000


BOUNDS = BodyBounds()


class AnswerAsked(Struct, frozen=True):
    """Members of a request about the answer that it wants."""

    stream: bool
    output: int | None
    """Output cap in tokens; None if the request names none."""
    thinking: int = 0
    """Tokens for thinking, which the output cap has to exceed."""
    choices: int = 1
    """Answers asked for; with more than one, nothing may be sent before the provider's begins."""
    wants_usage: bool = True
    """Whether the client asked for the tokens a stream cost, which most formats give unasked."""
    says_whether_usage: bool = True
    """Whether the client says anything about usage; if not, usage in a stream came unasked."""


class Wishes(Struct, frozen=True):
    """Instructions to Steno in a request: how its history is to be compacted."""

    options: Mapping[str, Any]
    """The body's `context` object."""
    focus: str
    """Wishes for the summary of this conversation: `context.instructions`."""
    pins: tuple[int, ...]
    """Indexes into `raw_messages` of what stays verbatim for this request: `context.pin`."""
    threshold: int | None = None
    """Prompt tokens from which on this request wants to be compacted."""


class WireRequest(Struct, frozen=True):
    """A request as far as Steno reads it; the bytes stay the client's. What may be slow is done where it is read.

    A format says what is different: which members are meant, and what they say.
    """

    OWN_MEMBERS: ClassVar[tuple[str, ...]] = ("context", "conversation_id")
    """Steno's own request members: cut out before forwarding, because a provider refuses what it does not know."""
    HISTORY: ClassVar[str] = "messages"
    """The member that holds the history."""
    OUTPUT_MEMBERS: ClassVar[tuple[str, ...]] = ("max_tokens",)
    """Members that bound the answer; the first that is given counts."""
    DECLARING_MEMBERS: ClassVar[tuple[str, ...]]
    """Members beside the messages that cost prompt tokens."""
    TOOL_MEMBERS: ClassVar[tuple[str, ...]] = ("tools",)
    """Members that declare tools."""
    CACHED_MEMBERS: ClassVar[tuple[str, ...]] = ("tools",)
    """Members that stand before the messages in a prompt, so that the provider's cache depends on them."""

    source: RawObject
    raw_messages: tuple[bytes, ...]
    """The history as slices, the instructions first: where they stand beside the messages, as slices of that member.
    `WireFormat.message` reads each, `with_messages` takes them back."""
    model: str
    declared: bytes
    """The `DECLARING_MEMBERS` as received: counts are cached by them."""
    names: tuple[Named, ...]
    """The members that may name the conversation to Steno, the first choice first, with their JSON as received."""
    has_tools: bool
    forbids_tools: bool
    """Whether the model may not call what is declared."""
    answer: AnswerAsked
    wishes: Wishes
    hands_off: Reason | None = None
    """Reason to pass it on as it came although it could be read: somebody else keeps its history, or compacts it."""

    @staticmethod
    def names_in(source: RawObject) -> Iterator[Named]:
        """The members that may name the conversation, the first choice first, with their JSON as received."""
        if (raw := source.raw("conversation_id")) is not None:
            yield "conversation_id", raw
        if "metadata" not in source:
            return
        try:
            metadata = RawObject(source.raw("metadata") or b"{}")
        except Unreadable:  # It is the provider's.
            return
        for name in ("conversation_id", "session_id"):
            if (raw := metadata.raw(name)) is not None:
                yield f"metadata.{name}", raw

    @property
    def body(self) -> bytes:
        """The body as received."""
        return self.source.text

    @property
    def untouched(self) -> bytes:
        """The client's bytes, less Steno's own members."""
        if not any(name in self.source for name in self.OWN_MEMBERS):
            return self.source.text
        return self.source.spliced(remove=self.OWN_MEMBERS)

    def declarations(self) -> Declarations:
        """The declarations in `declared`."""
        raise NotImplementedError

    @property
    def cached(self) -> dict[str, bytes]:
        """The members before the messages in a prompt, on which the provider's cache depends."""
        return {name: raw for name in self.CACHED_MEMBERS if (raw := self.source.raw(name)) is not None}

    @property
    def thinks(self) -> bool:
        """Whether the answer may hold thinking that its provider signs."""
        return False

    @property
    def demands_thinking(self) -> bool:
        """Whether the provider refuses a turn under way without the thinking that it began with."""
        return False

    def with_thinking_off(self, body: bytes) -> bytes:
        """A body of this request, by which the model is not to think."""
        return body

    @property
    def is_typical(self) -> bool:
        """Whether the costs of the prompt are known: not with what the provider adds to it or takes away."""
        raise NotImplementedError

    @property
    def cache_key(self) -> Named | None:
        """The member that shows the provider's cache which requests are alike: some clients send their conversation's
        id."""
        return self.named("prompt_cache_key")

    def named(self, member: str) -> Named | None:
        """A member with its name, if it is there."""
        raw = self.source.raw(member)
        return None if raw is None else (member, raw)

    def echoed_in(self, error: str, number: int) -> bool:
        """Whether a number that an error gives may be the client's own; True also if that cannot be known."""
        return echoed_in(error, number, self.source.text)

    def with_messages(self, raw_messages: Iterable[bytes], ask_usage: bool = False) -> bytes:  # noqa: ARG002 - most streams tell it unasked
        """The body with other messages; every other member keeps its bytes and its place, Steno's own are left out.

        `ask_usage`: a stream is asked to tell what it cost, where it would not unasked.
        """
        return self.source.spliced({self.HISTORY: b"[%b]" % b",".join(raw_messages)}, self.OWN_MEMBERS)

    def with_output_cap(self, body: bytes, tokens: int) -> bytes:
        """A body of this request, with its output cap lowered to so many tokens."""
        source = RawObject(body)
        given = {name: source.value(name) for name in self.OUTPUT_MEMBERS if name in source}
        higher = (name for name, value in given.items() if isinstance(value, int) and value > tokens)
        return source.spliced(dict.fromkeys(higher, b"%d" % tokens))

    @property
    def task_budget(self) -> int | None:
        """Tokens that the model may still spend on its task, as the client says; None where it does not."""
        return None

    def with_task_budget(self, body: bytes, tokens: int) -> bytes:  # noqa: ARG002 - most formats have none
        """A body of this request, with another task budget."""
        return body

    def asking(self, *, threshold: int | None = None, focus: str = "") -> Self:
        """The request as if it had asked for that, too."""
        wishes = self.wishes
        asked = replace(wishes, threshold=threshold or wishes.threshold, focus=focus or wishes.focus)
        return replace(self, wishes=asked)


class Draft(Struct, frozen=True):
    """A message as a format reads it, without its digest."""

    message: Message
    canonical: bytes
    """Bytes of which its digest is made: equal for all spellings of the same meaning, without what moves between
    turns."""


Decode = Callable[[bytes, Sequence[re.Pattern[str]]], Draft]
"""Reads a raw message, and leaves volatile text that the patterns find out of what it means.

Raises `Unreadable` where it is none.
"""


class ContextMembers(Struct, frozen=True):
    """Members that an answer gets about its context: JSON members without their braces, the same in every format."""

    status: bytes = b""
    """Members sent early: `context_status`."""
    report: bytes = b""
    """Members at the end, or in an answer that is whole: `context_status` and the `context` object."""


UNTOLD = ContextMembers()
