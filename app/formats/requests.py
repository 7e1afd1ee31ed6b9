"""Requests: what Steno reads of a body in any format, what is asked of Steno in it, and the body that goes on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self

from msgspec import Struct
from msgspec.structs import replace

from app.conversation.reasons import Code, Reason
from app.errors import InvalidRequest
from app.formats.raw_json import RawObject, Unreadable, object_of, objects_in, split_array, text_at
from app.formats.refusals import echoed_in
from app.formats.spec import FormatSpec
from app.tokens.declarations import Declarations, ResponseFormat, Tool

Headers = Sequence[tuple[bytes, bytes]]
Named = tuple[str, bytes]
"""A member's name, as errors tell it, and its JSON as received."""


class TooManyMessages(Unreadable):
    """The request has so many messages that planning it would delay others."""

    reason = Code.TOO_MANY_MESSAGES

    def __init__(self, messages: int, most: int) -> None:
        super().__init__(f"It has {messages} messages; at most {most} are read.")


class BodyBounds(Struct, frozen=True):
    """Bounds of a body that is read: one that passes them goes to the provider as it is."""

    values: int = 200_000
    messages: int = 10_000


BOUNDS = BodyBounds()


class AnswerAsked(Struct, frozen=True):
    stream: bool
    output: int | None
    """Output cap in tokens; None if the request names none."""
    thinking: int = 0
    """Tokens for thinking, which the output cap has to exceed."""
    choices: int = 1
    """Answers asked for; with more than one, nothing may be sent before the provider's begins."""
    wants_usage: bool = True
    """Whether the client asked for a stream's usage, which most formats report by default."""
    says_whether_usage: bool = True
    """Whether the client says anything about usage; if not, usage in a stream came unasked."""


class Wishes(Struct, frozen=True):
    """Instructions to Steno in a request: how its history is to be compacted."""

    options: Mapping[str, Any]
    focus: str
    """Wishes for the summary of this conversation: `context.instructions`."""
    pins: tuple[int, ...]
    """Indexes in `raw_messages` of messages that stay verbatim: `context.pin`."""
    threshold: int | None = None
    """Trigger that this request names, in prompt tokens."""


class WireRequest(Struct, frozen=True):
    """A client's request: its bytes, and the members that Steno reads. Slow work is done while it is read.

    A format overrides `members_in`, and methods for what its `FormatSpec` cannot express.
    """

    SPEC: ClassVar[FormatSpec]

    source: RawObject
    raw_messages: tuple[bytes, ...]
    """The history as slices, the instructions first: where they stand beside the messages, as slices of that member.
    `WireFormat.message` reads each, `with_messages` takes them back."""
    model: str
    declared: bytes
    """The `declaring_members` as received: counts are cached by them."""
    names: tuple[Named, ...]
    """The members that may name the conversation to Steno, the first choice first, with their JSON as received."""
    has_tools: bool
    forbids_tools: bool
    """Whether the model may not call what is declared."""
    answer: AnswerAsked
    wishes: Wishes
    hands_off: Reason | None = None
    """Reason to forward it unchanged: the provider keeps its history, or compacts it."""
    thinking: str = ""
    """Thinking mode, if the provider signs thinking. With `enabled` it refuses the current turn without its earlier
    thinking."""
    task_budget: int | None = None
    """Tokens that the model may still spend on its task, as the client says; None where it does not."""

    @classmethod
    def names_in(cls, source: RawObject) -> Iterator[Named]:
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

    @classmethod
    def asked_at(cls, source: RawObject, target: bytes) -> tuple[object, bool]:  # noqa: ARG003 - in most formats the body says it
        return source.value("model"), source.value("stream") is True

    @classmethod
    def output_in(cls, source: RawObject) -> object:
        given = (output for name in cls.SPEC.output_members if (output := source.value(name)))
        return next(given, None)

    @classmethod
    def elements_in(cls, source: RawObject) -> tuple[bytes, ...]:
        """The history as the client counts it, each element with its bytes. Raises `Unreadable`."""
        return tuple(source.elements(cls.SPEC.history)) if cls.SPEC.history in source else ()

    @classmethod
    def split(cls, source: RawObject, elements: tuple[bytes, ...]) -> tuple[tuple[bytes, ...], tuple[bytes, ...]]:  # noqa: ARG003 - in many formats nothing stands beside the history
        """The raw messages that stand beside the history and lead it, and those in it."""
        return (), elements

    @classmethod
    def members_in(cls, source: RawObject, elements: Sequence[bytes]) -> dict[str, Any]:  # noqa: ARG003 - in some formats there are none
        """The attributes of a request that only this format has, by their names."""
        return {}

    @property
    def body(self) -> bytes:
        return self.source.text

    @property
    def untouched(self) -> bytes:
        """The client's bytes, less Steno's own members."""
        if not any(name in self.source for name in self.SPEC.own_members):
            return self.source.text
        return self.source.spliced(remove=self.SPEC.own_members)

    def declarations(self) -> Declarations:
        """The declarations in `declared`; values of the wrong type are left out."""
        raise NotImplementedError

    @property
    def cached(self) -> dict[str, bytes]:
        return {name: raw for name in self.SPEC.cached_members if (raw := self.source.raw(name)) is not None}

    @property
    def is_typical(self) -> bool:
        """Whether the prompt's tokens can be counted: no response schema, no text that the provider adds or removes,
        and only tools that the client runs."""
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
        """The key of the provider's prompt cache, such as `prompt_cache_key`: some clients send their conversation's id
        in it."""
        member = self.SPEC.cache_key_member
        raw = self.source.raw(member)
        return None if raw is None else (member, raw)

    def echoed_in(self, error: str, number: int) -> bool:
        """Whether an error may quote this number from the request; True if unknown."""
        return echoed_in(error, number, self.source.text)

    @classmethod
    def beside(cls, raw: bytes) -> bytes | None:
        """The raw message if it is a member beside the history, with its key; None if it is in the history."""
        return raw if cls.SPEC.beside is not None and cls.SPEC.beside.match(raw) else None

    @classmethod
    def array(cls, raw_messages: Sequence[bytes]) -> bytes:
        return b"[%b]" % b",".join(raw_messages)

    @classmethod
    def history_of(cls, raw_messages: Sequence[bytes]) -> bytes:
        """The members of a request, without braces, that hold these raw messages."""
        leading = [member for raw in raw_messages if (member := cls.beside(raw)) is not None]
        history = b'"%b":%b' % (cls.SPEC.history.encode(), cls.array(raw_messages[len(leading) :]))
        return b",".join((*leading, history))

    def with_messages(self, raw_messages: Iterable[bytes], ask_usage: bool = False) -> bytes:  # noqa: ARG002 - most streams tell it unasked
        """The body with other messages; every other member keeps its bytes and its place, Steno's own are left out.

        `ask_usage`: ask a stream for its usage if it reports none by default.
        """
        history = self.array([raw for raw in raw_messages if self.beside(raw) is None])
        return self.source.spliced({self.SPEC.history: history}, self.SPEC.own_members)

    def with_output_cap(self, body: bytes, tokens: int) -> bytes:
        source = RawObject(body)
        given = {name: source.value(name) for name in self.SPEC.output_members if name in source}
        higher = (name for name, value in given.items() if isinstance(value, int) and value > tokens)
        return source.spliced(dict.fromkeys(higher, b"%d" % tokens))

    def with_thinking_off(self, body: bytes) -> bytes:
        return RawObject(body).spliced({"thinking": b'{"type":"disabled"}'}) if self.thinking else body

    def with_task_budget(self, body: bytes, tokens: int) -> bytes:
        raise NotImplementedError

    def asking(self, *, threshold: int | None = None, focus: str = "") -> Self:
        wishes = self.wishes
        asked = replace(wishes, threshold=threshold or wishes.threshold, focus=focus or wishes.focus)
        return replace(self, wishes=asked)


def is_given(source: RawObject, name: str) -> bool:
    """Whether a member holds anything: it is there, and neither null nor an empty list."""
    return source.raw(name) not in (None, b"null", b"[]")


OPTIONS = ("compaction", "instructions", "pin", "preset", "recall")
SWITCHES = ("compaction", "recall")
"""Members of the `context` object; those of `SWITCHES` are true or false."""
LONGEST_FOCUS = 4_000
LONGEST_OPTIONS = 131_072
"""Bytes of the `context` object: ten thousand pins and the longest focus have room."""


def read_options(source: RawObject) -> Mapping[str, Any]:
    """A body's `context` object. Raises `InvalidRequest` for a member that would be ignored, such as a mistyped one."""
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
    """Raises `InvalidRequest`, which names the member as `param`."""
    if instructions is None:
        return ""
    if not isinstance(instructions, str) or len(instructions) > LONGEST_FOCUS:
        raise InvalidRequest(f"{param} must be a text of at most {LONGEST_FOCUS} characters.", param)
    return instructions.strip()


def read_pins(pin: object, messages: int) -> tuple[int, ...]:
    """Indexes into the request's messages, of which there are so many. Raises `InvalidRequest`."""
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
"""Beginning of the references that releases up to 2026-11 gave to clients as compactions."""


def check_compaction(item: Mapping[str, Any], history: str) -> None:
    """Raises `InvalidRequest` for a compaction that holds a reference of Steno's. `history`: the
    member it stands in."""
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
    """Members that cannot be decoded, for a number beyond all bounds, as their text: too much rather than nothing."""
    raws = (source.raw(name) for name in members if source.value(name) is None)
    return [raw.decode("utf-8", "replace") for raw in raws if raw is not None and raw != b"null"]


def tool_of(held: Mapping[str, Any], parameters: str = "parameters") -> Tool:
    return Tool(text_at(held, "name"), text_at(held, "description"), object_of(held.get(parameters)))


def response_format_of(held: Mapping[str, Any]) -> ResponseFormat:
    return ResponseFormat(text_at(held, "name"), text_at(held, "description"), object_of(held.get("schema")))
