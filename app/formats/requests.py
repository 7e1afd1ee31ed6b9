"""Requests: the members of a body that Steno reads, the client's options for Steno, and the forwarded body."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self

from msgspec import Struct
from msgspec.structs import replace

from app.conversation.reasons import Code, Reason
from app.errors import InvalidRequest
from app.formats.raw_json import RawObject, Unreadable, object_of, objects_in, split_array, text_at
from app.formats.spec import FormatSpec
from app.tokens.estimate import Declarations, ResponseFormat, Tool

Headers = Sequence[tuple[bytes, bytes]]
Named = tuple[str, bytes]
"""Name of a member as shown in errors, and its JSON as received."""


class TooManyMessages(Unreadable):
    """Raised for so many messages that planning would delay other requests."""

    reason = Code.TOO_MANY_MESSAGES

    def __init__(self, messages: int, most: int) -> None:
        super().__init__(f"It has {messages} messages; at most {most} are read.")


class BodyBounds(Struct, frozen=True):
    """Maximum numbers of JSON values and messages in a body that Steno parses. A larger body is forwarded unchanged."""

    values: int = 200_000
    messages: int = 20_000


BOUNDS = BodyBounds()
OWN_MEMBERS = ("context", "conversation_id")
"""Members that clients send for Steno. Steno does not forward them, because providers refuse unknown members."""


class AnswerAsked(Struct, frozen=True):
    stream: bool
    output: int | None
    """Output cap in tokens; None if the request has none."""
    thinking: int = 0
    """Thinking budget in tokens; the output cap must be larger."""
    choices: int = 1
    """Number of requested answers. If it is above 1, Steno sends no frames before the provider's first frame."""
    wants_usage: bool = True
    """Whether the client wants to receive usage in a stream. In most formats, every stream reports usage."""
    says_whether_usage: bool = True
    """Whether the request has options for usage in a stream."""


class Wishes(Struct, frozen=True):
    """Options for Steno in a request: how to compact its history."""

    options: Mapping[str, Any] = {}
    focus: str = ""
    """Client's instructions for the summary, from `context.instructions`."""
    pins: tuple[int, ...] = ()
    """Messages that stay verbatim, from `context.pin`, as indexes in `raw_messages`."""
    threshold: int | None = None
    """Compaction trigger of this request, in prompt tokens."""


class WireRequest(Struct, frozen=True):
    """A client's request: its bytes, and the members that Steno reads.

    A format overrides `members_in`, and the methods whose behaviour its `FormatSpec` cannot express.
    """

    SPEC: ClassVar[FormatSpec]

    source: RawObject
    raw_messages: tuple[bytes, ...]
    """Slices of the body: the instructions, if the format has a separate member for them, then the history.
    `WireFormat.message` parses a slice, and `with_messages` writes a body from slices."""
    model: str
    declared: bytes
    """JSON of the `declaring_members` as received. It is the cache key of their token count."""
    names: tuple[Named, ...]
    """Members that may hold the conversation id, in order of preference."""
    has_tools: bool
    forbids_tools: bool
    answer: AnswerAsked
    wishes: Wishes
    hands_off: Reason | None = None
    """Reason to forward the request unchanged. For example, the provider stores or compacts the history."""
    thinking: str = ""
    """Thinking mode, if the provider signs thinking. In mode `enabled` the provider refuses a history whose current
    turn lacks some of its thinking."""

    @classmethod
    def names_in(cls, source: RawObject) -> Iterator[Named]:
        """Yield the members that may hold the conversation id, in order of preference."""
        if (raw := source.raw("conversation_id")) is not None:
            yield "conversation_id", raw
        if (raw := source.raw("metadata")) is None:
            return
        try:
            metadata = RawObject(raw)
        except Unreadable:  # The provider decides on the body.
            return
        for name in ("conversation_id", "session_id"):
            if (raw := metadata.raw(name)) is not None:
                yield f"metadata.{name}", raw

    @classmethod
    def asked_at(cls, source: RawObject, target: bytes) -> tuple[object, bool]:  # noqa: ARG003 - most formats have both in the body
        return source.value("model"), source.value("stream") is True

    @classmethod
    def output_in(cls, source: RawObject) -> int | None:
        names, parents = cls.SPEC.output_members, cls.SPEC.output_parents
        if parents:
            objects = [object_of(source.value(name)) for name in parents]
            held = [each.get(name) for each in objects for name in names]
        else:
            held = [source.value(name) for name in names if name in source.raws]
        first = next(filter(None, held), None)
        return first if isinstance(first, int) and first > 0 else None

    @classmethod
    def elements_in(cls, source: RawObject) -> tuple[bytes, ...]:
        """Return the elements of the client's history. Raises `Unreadable`."""
        return tuple(source.elements(cls.SPEC.history)) if cls.SPEC.history in source.raws else ()

    @classmethod
    def split(cls, source: RawObject, elements: tuple[bytes, ...]) -> tuple[tuple[bytes, ...], tuple[bytes, ...]]:  # noqa: ARG003 - many formats have no such member
        """Return two groups of raw messages: those from other members than the history, and those from the history."""
        return (), elements

    @classmethod
    def members_in(cls, source: RawObject, elements: Sequence[bytes]) -> dict[str, Any]:
        """Return the values that each format reads in its own way, by attribute name of the request object."""
        raise NotImplementedError

    @property
    def body(self) -> bytes:
        return self.source.text

    @property
    def untouched(self) -> bytes:
        """The client's body without the members for Steno."""
        if self.source.raws.keys().isdisjoint(OWN_MEMBERS):
            return self.source.text
        return self.source.spliced(remove=OWN_MEMBERS)

    def declarations(self) -> Declarations:
        """Parse the `declaring_members`. Drop values of the wrong type."""
        raise NotImplementedError

    @property
    def cached(self) -> dict[str, bytes]:
        return {name: raw for name in self.SPEC.cached_members if (raw := self.source.raw(name)) is not None}

    @property
    def is_typical(self) -> bool:
        """Whether Steno can count the prompt's tokens reliably. It cannot if the request has tools that the provider
        runs, a response schema, or a member that makes the provider add or remove text."""
        spec, source = self.SPEC, self.source
        if any(b"json_schema" in (source.raw(name) or b"") for name in spec.schema_members):
            return False
        if any(is_given(source, name) for name in spec.extending_members):
            return False
        tools = source.value("tools")
        if not isinstance(tools, list):
            return tools is not None or source.raw("tools") in (None, b"null")
        return all(tool.get("type") in spec.client_tools for tool in objects_in(tools))

    @property
    def cache_key(self) -> Named | None:
        """Member with the key of the prompt cache. Some clients put their conversation id into the key."""
        member = self.SPEC.cache_key_member
        raw = self.source.raw(member)
        return None if raw is None else (member, raw)

    @classmethod
    def beside(cls, raw: bytes) -> bytes | None:
        """Return the raw message if it is a member outside of the history, with key and value; else None."""
        return raw if cls.SPEC.beside is not None and cls.SPEC.beside.match(raw) else None

    @classmethod
    def array(cls, raw_messages: Sequence[bytes]) -> bytes:
        return b"[%b]" % b",".join(raw_messages)

    @classmethod
    def history_of(cls, raw_messages: Sequence[bytes]) -> bytes:
        """Return the JSON members, without braces, that contain these raw messages."""
        leading = [member for raw in raw_messages if (member := cls.beside(raw)) is not None]
        history = b'"%b":%b' % (cls.SPEC.history.encode(), cls.array(raw_messages[len(leading) :]))
        return b",".join((*leading, history))

    def with_messages(self, raw_messages: Iterable[bytes], ask_usage: bool = False) -> bytes:  # noqa: ARG002 - most streams report it anyway
        """Return the client's body with the given messages as its history, and without Steno's own members.

        All other bytes stay the same. `ask_usage`: also request usage from a stream that does not report it by default.
        """
        history = self.array([raw for raw in raw_messages if self.beside(raw) is None])
        return self.source.spliced({self.SPEC.history: history}, OWN_MEMBERS)

    def with_output_cap(self, body: bytes, tokens: int) -> bytes:
        def lowered(held: RawObject) -> bytes:
            given = {name: held.value(name) for name in self.SPEC.output_members}
            higher = (name for name, value in given.items() if isinstance(value, int) and value > tokens)
            return held.spliced(dict.fromkeys(higher, b"%d" % tokens))

        source = RawObject(body)
        if not self.SPEC.output_parents:
            return lowered(source)
        raws = {name: raw for name in self.SPEC.output_parents if (raw := source.raw(name) or b"").startswith(b"{")}
        return source.spliced({name: lowered(RawObject(raw)) for name, raw in raws.items()})

    def with_thinking_off(self, body: bytes) -> bytes:
        return RawObject(body).spliced({"thinking": b'{"type":"disabled"}'}) if self.thinking else body

    def asking(self, *, threshold: int | None = None, focus: str = "") -> Self:
        return replace(self, wishes=replace(self.wishes, threshold=threshold, focus=focus or self.wishes.focus))


def is_given(source: RawObject, name: str) -> bool:
    """Return whether a member is present, and neither null nor an empty list."""
    return source.raw(name) not in (None, b"null", b"[]")


OPTIONS = ("compaction", "instructions", "pin", "preset", "recall")
SWITCHES = ("compaction", "recall")
"""Options of the `context` object that are true or false."""
LONGEST_FOCUS = 4_000
LONGEST_OPTIONS = 131_072
"""Maximum bytes of the `context` object: enough for ten thousand pins and the longest focus."""


def read_options(source: RawObject) -> Mapping[str, Any]:
    """Return a body's `context` object. Raises `InvalidRequest` for an unknown option, which may be mistyped."""
    given = source.raw("context")
    if given is None or given == b"null":
        return {}
    known = f"known: {', '.join(OPTIONS)}"
    if len(given) > LONGEST_OPTIONS:
        raise InvalidRequest(f"context has {len(given)} bytes; at most {LONGEST_OPTIONS} are read.", "context")
    options = source.value("context")
    if not isinstance(options, dict):
        raise InvalidRequest(f"context must be an object with options; {known}.", "context")
    for name in options:
        if name not in OPTIONS:
            raise InvalidRequest(f"context has no option {name!r:.100}; {known}.", f"context.{name:.100}")
    for name in SWITCHES:
        if not isinstance(options.get(name, True), bool | None):
            raise InvalidRequest(f"context.{name} must be true or false.", f"context.{name}")
    return options


def read_focus(instructions: object, param: str = "context.instructions") -> str:
    """Return the checked instructions for the summary. Raises `InvalidRequest`, which names the member by `param`."""
    if instructions is None:
        return ""
    if not isinstance(instructions, str) or len(instructions) > LONGEST_FOCUS:
        raise InvalidRequest(f"{param} must be a text of at most {LONGEST_FOCUS} characters.", param)
    return instructions.strip()


def read_pins(pin: object, messages: int) -> tuple[int, ...]:
    """Return the pinned indexes in ascending order. Raises `InvalidRequest`. `messages`: number of messages."""
    if pin is None:
        return ()
    if not isinstance(pin, list):
        raise InvalidRequest("context.pin must be a list of indexes into messages.", "context.pin")
    for index in pin:
        if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < messages:
            raise InvalidRequest(
                f"context.pin holds {index!r:.100}; the request has {messages} messages, whose indexes are whole"
                " numbers from 0.",
                "context.pin",
            )
    return tuple(sorted(set(pin)))


OWN_REFERENCE = "stn1."
"""Prefix of references that releases up to 2026-11 gave to clients. Each reference names a compaction."""


def check_compaction(item: Mapping[str, Any], history: str) -> None:
    """Raise `InvalidRequest` if the item is a compaction by an earlier Steno. `history`: name of the history member."""
    sealed = (item.get(member) for member in ("encrypted_content", "signature"))
    if any(isinstance(text, str) and text.startswith(OWN_REFERENCE) for text in sealed):
        raise InvalidRequest(
            "The history holds a compaction that an earlier release of Steno made, and this one cannot read. Resend the"
            " messages that it stands for in its place, or begin a new conversation.",
            history,
        )


def elements_of(source: RawObject, name: str) -> list[tuple[dict[str, Any], str]]:
    raw, value = source.raw(name), source.value(name)
    if raw is None or not isinstance(value, list):
        return []
    pairs = zip(value, split_array(raw), strict=True)
    return [(item, text.decode()) for item, text in pairs if isinstance(item, dict)]


def unread(source: RawObject, members: Iterable[str]) -> list[str]:
    """Return the JSON of members that Steno cannot decode, for example huge numbers. The caller counts their tokens."""
    raws = (source.raw(name) for name in members if source.value(name) is None)
    return [raw.decode("utf-8", "replace") for raw in raws if raw is not None and raw != b"null"]


def tool_of(held: Mapping[str, Any], parameters: str = "parameters") -> Tool:
    return Tool(text_at(held, "name"), text_at(held, "description"), object_of(held.get(parameters)))


def response_format_of(held: Mapping[str, Any]) -> ResponseFormat:
    return ResponseFormat(text_at(held, "name"), text_at(held, "description"), object_of(held.get("schema")))
