"""Requests: a Chat Completions body as far as Steno reads it, and the body that goes on in its place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, ClassVar

from msgspec import Struct
from msgspec.structs import replace

from app.core.limits.budget import MOST_TOKENS
from app.core.tokens.declarations import Declarations
from app.core.tokens.rules import LONGEST_MODEL
from app.errors import InvalidRequest
from app.wire.beginnings import Beginnings
from app.wire.bodies import declared_in, source_of
from app.wire.chat_completions.declarations import MEMBERS, read_declarations
from app.wire.echoes import echoed_in
from app.wire.format import BOUNDS, BodyBounds, Named, TooManyMessages
from app.wire.members import RawObject, Unreadable
from app.wire.options import read_focus, read_names, read_options, read_pins

Json = Mapping[str, Any]

NAME = "chat_completions"
PATH = b"/v1/chat/completions"
OWN_MEMBERS = ("context", "context_management", "conversation_id")
"""Steno's own request members: cut out before forwarding, because a provider refuses what it does not know."""
EXTENSIONS = ("web_search_options", "plugins", "documents", "transforms", "truncate_prompt_tokens")
"""Members by which a provider puts text of its own into the prompt, or leaves some out."""
CACHED_MEMBERS = ("tools", "functions", "parallel_tool_calls")
"""What stands before the messages in a prompt, so that the provider's cache depends on it."""
LEAST_THRESHOLD = 1


class ChatRequest(Struct, frozen=True):
    """A chat request as far as Steno reads it; the bytes stay the client's."""

    hands_off: ClassVar[None] = None
    """The whole history comes with each request, and nobody else compacts it."""
    asks: ClassVar[None] = None
    referred: ClassVar[None] = None

    source: RawObject
    raw_messages: tuple[bytes, ...]
    model: str
    stream: bool
    choices: int
    """`n`: with more than one, nothing may be sent before the answer begins."""
    output: int | None
    """Tokens asked for, None if the request does not say."""
    declared: bytes
    """The members beside `messages` that cost prompt tokens, as received."""
    options: Json
    """The body's `context` object."""
    threshold: int | None
    """Prompt tokens from which on this request wants to be compacted: OpenAI's `compact_threshold`."""
    focus: str
    """What the summariser is to look after in this conversation: `context.instructions`."""
    pins: tuple[int, ...]
    """Indexes into `raw_messages` of what stays verbatim for this request: `context.pin`."""
    names: tuple[Named, ...]
    """The members that may name the conversation, the first choice first, with their JSON as received."""
    wants_usage: bool
    """Whether the client asked for the tokens a stream cost."""
    says_whether_usage: bool
    """Whether the client says anything about it: what comes then is not what comes unasked."""
    has_tools: bool
    forbids_tools: bool
    """Whether the model may not call what is declared."""
    names_own: bool
    """Whether there are members of Steno's own."""
    alike: object

    @property
    def body(self) -> bytes:
        return self.source.text

    @property
    def cached(self) -> dict[str, bytes]:
        return {name: raw for name in CACHED_MEMBERS if (raw := self.source.raw(name)) is not None}

    @property
    def cache_key(self) -> Named | None:
        return self._named("prompt_cache_key")

    @property
    def end_user(self) -> Named | None:
        return self._named("user")

    def _named(self, member: str) -> Named | None:
        raw = self.source.raw(member)
        return None if raw is None else (member, raw)

    def asking(self, *, threshold: int | None = None, focus: str | None = None) -> ChatRequest:
        return replace(
            self,
            threshold=self.threshold if threshold is None else threshold,
            focus=self.focus if focus is None else focus,
            alike=None,
        )

    @property
    def ties(self) -> bool:
        return False

    @property
    def is_typical(self) -> bool:
        """Whether what the prompt costs is known: not with text that the provider adds or takes away.

        A schema is text to some providers and costs nothing at others; what cannot be read is only guessed.
        """
        tools = self.source.value("tools")
        unread = tools is None and self.source.raw("tools") not in (None, b"null")
        hosted = any(
            isinstance(tool, dict) and tool.get("type") not in ("function", "custom")
            for tool in (tools if isinstance(tools, list) else ())
        )
        schema = b"json_schema" in (self.source.raw("response_format") or b"")
        extended = any(name in self.source for name in EXTENSIONS) or "search" in self.model
        return not (unread or hosted or schema or extended)

    def echoed_in(self, error: str, number: int) -> bool:
        return echoed_in(error, number, self.source.text)

    def declarations(self) -> Declarations:
        return read_declarations(self.source)

    @property
    def untouched(self) -> bytes:
        """The client's bytes, less Steno's own members."""
        return self.source.spliced(remove=OWN_MEMBERS) if self.names_own else self.source.text

    def with_messages(self, raw_messages: Iterable[bytes], ask_usage: bool = False) -> bytes:
        """The request with other messages; every other member keeps its bytes and its place.

        `ask_usage`: a stream is asked to end with what it cost.
        """
        replaced = {"messages": b"[" + b",".join(raw_messages) + b"]"}
        if not ask_usage:
            return self.source.spliced(replaced, OWN_MEMBERS)
        options = self.source.raw("stream_options") or b"null"
        try:
            given = RawObject(options if options.startswith(b"{") else b"{}")
        except Unreadable:  # Such as a key that stands twice: the provider judges it.
            return self.source.spliced(replaced, OWN_MEMBERS)
        asking = given.spliced(remove=("include_usage",), add=b'"include_usage":true')
        if "stream_options" in self.source:
            return self.source.spliced({**replaced, "stream_options": asking}, OWN_MEMBERS)
        return self.source.spliced(replaced, OWN_MEMBERS, b'"stream_options":' + asking)


_beside = attrgetter(*ChatRequest.__struct_fields__[2:])
"""All that a request says beside its messages. `replace` takes ten times as long."""


def read_request(body: bytes, bounds: BodyBounds = BOUNDS, beginnings: Beginnings | None = None) -> ChatRequest:
    """Raises `Unreadable` for anything a provider should judge instead, and `InvalidRequest` for what is ours.

    What may be large is looked at here, so that it is done beside the event loop where the body is.
    """
    if beginnings is not None and (found := beginnings.envelopes.find(body, "messages", bounds.values)) is not None:
        like, source, elements = found
        return ChatRequest(source, _bounded(elements, bounds), *_beside(like))
    source, known = source_of(body, bounds, beginnings)
    if "messages" not in source:
        raise Unreadable("The request has no messages.")
    model = source.value("model")
    if not isinstance(model, str) or len(model) > LONGEST_MODEL:
        raise Unreadable("The request names no model.")
    options = read_options(source)
    raw_messages = _bounded(source.elements("messages"), bounds)
    if beginnings is not None:
        beginnings.keep(source, "messages", raw_messages, known)
    output = source.value("max_completion_tokens") or source.value("max_tokens")
    choices = source.value("n")
    stream_options = source.value("stream_options")
    request = ChatRequest(
        source=source,
        model=model,
        stream=source.value("stream") is True,
        choices=choices if isinstance(choices, int) else 1,
        output=output if isinstance(output, int) and output > 0 else None,
        raw_messages=raw_messages,
        declared=declared_in(source, MEMBERS),
        options=options,
        threshold=_threshold(source.value("context_management")),
        focus=read_focus(options.get("instructions")),
        pins=read_pins(options.get("pin"), len(raw_messages)),
        names=tuple(read_names(source)),
        wants_usage=isinstance(stream_options, dict) and stream_options.get("include_usage") is True,
        says_whether_usage=source.raw("stream_options") not in (None, b"null", b"{}"),
        has_tools=any(source.raw(name) not in (None, b"null", b"[]") for name in ("tools", "functions")),
        forbids_tools="none" in (source.value("tool_choice"), source.value("function_call")),
        names_own=any(name in source for name in OWN_MEMBERS),
        alike=object(),
    )
    if beginnings is not None and not request.pins:  # Those count the messages.
        beginnings.envelopes.keep(source, "messages", lambda rest: ChatRequest(rest, (), *_beside(request)))
    return request


def _bounded(elements: Sequence[bytes], bounds: BodyBounds) -> tuple[bytes, ...]:
    if len(elements) > bounds.messages:
        raise TooManyMessages(
            f"It has {len(elements)} messages. Send at most {bounds.messages}, or raise limits.messages."
        )
    return tuple(elements)


def _threshold(management: object) -> int | None:
    for entry in management if isinstance(management, list) else ():
        if isinstance(entry, dict) and entry.get("type") == "compaction" and "compact_threshold" in entry:
            value = entry["compact_threshold"]
            if not isinstance(value, int) or isinstance(value, bool) or value < LEAST_THRESHOLD:
                expected = f"a whole number of tokens, at least {LEAST_THRESHOLD}; it is {value!r:.100}"
                raise InvalidRequest(f"compact_threshold must be {expected}.", "context_management")
            return min(value, MOST_TOKENS)  # However large, it is over every window.
    return None
