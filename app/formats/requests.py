"""Requests: what Steno reads of a body in any format, what is asked of Steno in it, and the body that goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Self, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from app.conversation.reasons import Code, Reason
from app.errors import InvalidRequest
from app.formats.raw_json import (
    RawObject,
    TooManyValues,
    Unreadable,
    holds_more_values,
    object_of,
    split_array,
    text_at,
)
from app.formats.reader import Beginning, Beginnings
from app.formats.refusals import echoed_in
from app.tokens.declarations import Declarations, ResponseFormat, Tool
from app.tokens.rules import LONGEST_MODEL

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


R = TypeVar("R", bound=WireRequest)


def source_of(body: bytes, bounds: BodyBounds, beginnings: Beginnings | None) -> tuple[RawObject, Beginning | None]:
    """The body's members, and the beginning that it was found to have. Raises `Unreadable`."""
    known = beginnings.find(body) if beginnings is not None else None
    start, marks = (known.stop, known.marks) if known is not None else (0, 0)
    # Before anything is decoded: each value takes many times its bytes.
    if holds_more_values(body, bounds.values, start, marks):
        raise TooManyValues(f"It holds more than {bounds.values} values.")
    return (RawObject(body) if known is None else known.read_rest(body)), known


def model_of(source: RawObject) -> str:
    """The model that a body names. Raises `Unreadable` where it names none."""
    model = source.value("model")
    if not isinstance(model, str) or len(model) > LONGEST_MODEL:
        raise Unreadable("The request names no model.")
    return model


def check_number(messages: int, bounds: BodyBounds, named: str = "messages") -> None:
    """Raises `TooManyMessages` for more than the bounds allow."""
    if messages > bounds.messages:
        raise TooManyMessages(f"It has {messages} {named}; at most {bounds.messages} are read.")


def is_given(source: RawObject, name: str) -> bool:
    """Whether a member holds anything: it is there, and neither null nor an empty list."""
    return source.raw(name) not in (None, b"null", b"[]")


def has_known_tools(source: RawObject, is_known: Callable[[object], bool]) -> bool:
    """Whether all tools can be read, and cost what is known."""
    tools = source.value("tools")
    if tools is None:
        return source.raw("tools") in (None, b"null")
    return not isinstance(tools, list) or all(map(is_known, tools))


def is_function(tool: object) -> bool:
    """Whether a tool is one that the client runs, in OpenAI's formats; what is no object counts as such."""
    return not isinstance(tool, dict) or tool.get("type") in ("function", "custom")


class Body(NamedTuple):
    """A body, as far as it is read alike in every format."""

    source: RawObject
    model: str
    options: Mapping[str, Any]
    beside: tuple[bytes, ...]
    """Raw messages that stand beside the history and lead it."""
    elements: tuple[bytes, ...]
    """The history as the client counts it."""


def request_of(
    kind: type[R],
    body: Body,
    raw_messages: tuple[bytes, ...] | None = None,
    place_of: Callable[[int], int] | None = None,
    *,
    answer: Mapping[str, Any] | None = None,
    threshold: int | None = None,
    **said: Any,
) -> R:
    """A request with all that is read alike in every format; `said` is what is not, and `answer` of the answer.

    `raw_messages` and the place among them of each element, where these are not one for one.
    """
    source, model, options, beside, elements = body
    output: object = None
    for name in kind.OUTPUT_MEMBERS:
        output = output or source.value(name)
    output = output if isinstance(output, int) and output > 0 else None
    focus, pins = read_focus(options.get("instructions")), read_pins(options.get("pin"), len(elements))
    if pins:
        pins = tuple(sorted(set(map(place_of or len(beside).__add__, pins))))
    if "forbids_tools" not in said:
        said["forbids_tools"] = source.value("tool_choice") == "none"
    return kind(
        source=source,
        raw_messages=raw_messages or (*beside, *elements),
        model=model,
        declared=b"".join(
            [b"%b:%b," % (name.encode(), raw) for name in kind.DECLARING_MEMBERS if (raw := source.raw(name))]
        ),
        names=tuple(kind.names_in(source)),
        has_tools=any(is_given(source, name) for name in kind.TOOL_MEMBERS if name in source),
        answer=AnswerAsked(source.value("stream") is True, output, **(answer or {})),
        wishes=Wishes(options, focus, pins, threshold),
        **said,
    )


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
    """The objects of an array, each with its text."""
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
    """A tool whose schema is the member `parameters`."""
    return Tool(text_at(held, "name"), text_at(held, "description"), object_of(held.get(parameters)))


def response_format_of(held: Mapping[str, Any]) -> ResponseFormat:
    """The format of an answer that has to follow a schema."""
    return ResponseFormat(text_at(held, "name"), text_at(held, "description"), object_of(held.get("schema")))
