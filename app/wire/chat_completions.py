"""Chat Completions: a request's bytes to core messages and back, and the answers' bytes with our members."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any

import msgspec

from app.core.history.identity import Identity
from app.core.history.messages import Media, Message, ToolCall
from app.core.limits.budget import MOST_TOKENS
from app.core.reasons import Code
from app.core.summary import prompts
from app.core.tokens.declarations import Declarations
from app.core.view.view import Altered, Carried, Conversation, Note, Pinned, Pruned, Summary, Verbatim, View
from app.errors import InvalidRequest
from app.wire.declarations import MEMBERS, read_declarations
from app.wire.echoes import echoes
from app.wire.media import read_media
from app.wire.members import RawObject, TooManyValues, Unreadable, holds_more_values, split_array

Json = Mapping[str, Any]

OWN_MEMBERS = ("context", "context_management", "conversation_id")
"""Steno's own request members: cut out before forwarding, because a provider refuses what it does not know."""
OPTIONS = ("compaction", "instructions", "pin", "preset", "trigger")
"""Members of the body's `context` object."""
EXTENSIONS = ("web_search_options", "plugins", "documents", "transforms", "truncate_prompt_tokens")
"""Members by which a provider puts text of its own into the prompt, or leaves some out."""
LEAST_THRESHOLD = 1
LONGEST_FOCUS = 4_000
LONGEST_OPTIONS = 131_072
"""Bytes of the `context` object: ten thousand pins and the longest focus have room."""
LONGEST_COMPARED = 1 << 20
"""Bytes of a request that are compared with an error; nothing is learnt of one that is longer."""
LONGEST_MODEL = 300
"""Characters of a model's name."""

VOLATILE_KEYS = frozenset({"cache_control", "annotations", "prefix", "partial"})
"""Keys that move between turns without changing what a message means: left out of digests."""

MOST_ARGUMENT_VALUES = 200_000
"""What holds more is no call's arguments, and counts as text."""

REASONING_MODELS = re.compile(r"(^|/)(o\d|gpt-5)")


class TooManyMessages(Unreadable):
    """Planning what becomes of each of them would take time that others have to wait for."""

    reason = Code.TOO_MANY_MESSAGES


@dataclass(frozen=True, slots=True)
class Bounds:
    """How large a body may be that is read: one that passes them goes to the provider as it is."""

    values: int = 200_000
    messages: int = 10_000


BOUNDS = Bounds()


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A chat request as far as Steno reads it; the bytes stay the client's."""

    source: RawObject
    model: str
    stream: bool
    choices: int
    """`n`: with more than one, nothing may be sent before the answer begins."""
    output: int | None
    """Tokens asked for, None if the request does not say."""
    raw_messages: tuple[bytes, ...]
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
    names: tuple[tuple[str, bytes], ...]
    """The members that may name the conversation, the first choice first, with their JSON as received."""
    wants_usage: bool
    """Whether the client asked for the tokens a stream cost."""
    says_whether_usage: bool
    """Whether the client says anything about it: what comes then is not what comes unasked."""
    has_tools: bool
    forbids_tools: bool
    """Whether the model may not call what is declared."""

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
        """Whether a number that an error tells may be the client's own. Also if that cannot be told."""
        if len(self.source.text) > LONGEST_COMPARED:
            return True
        try:
            written = msgspec.json.encode(msgspec.json.decode(self.source.text)).decode()
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return True
        return echoes(error, number, written)

    def declarations(self) -> Declarations:
        return read_declarations(self.source)

    @property
    def untouched(self) -> bytes:
        """The client's bytes, less Steno's own members."""
        if not any(name in self.source for name in OWN_MEMBERS):
            return self.source.text
        return self.source.spliced(remove=OWN_MEMBERS)

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


def read_request(body: bytes, bounds: Bounds = BOUNDS) -> ChatRequest:
    """Raises `Unreadable` for anything a provider should judge instead, and `InvalidRequest` for what is ours.

    What may be large is looked at here, so that it is done beside the event loop where the body is.
    """
    if holds_more_values(body, bounds.values):  # Before anything is decoded: each value takes many times its bytes.
        raise TooManyValues(f"It holds more than {bounds.values} values. Send fewer, or raise limits.values.")
    source = RawObject(body)
    messages = source.raw("messages")
    if messages is None:
        raise Unreadable("The request has no messages.")
    model = source.value("model")
    if not isinstance(model, str) or len(model) > LONGEST_MODEL:
        raise Unreadable("The request names no model.")
    output = source.value("max_completion_tokens") or source.value("max_tokens")
    choices = source.value("n")
    options = _options(source)
    raw_messages = tuple(split_array(messages))
    if len(raw_messages) > bounds.messages:
        raise TooManyMessages(
            f"It has {len(raw_messages)} messages. Send at most {bounds.messages}, or raise limits.messages."
        )
    stream_options = source.value("stream_options")
    return ChatRequest(
        source=source,
        model=model,
        stream=source.value("stream") is True,
        choices=choices if isinstance(choices, int) else 1,
        output=output if isinstance(output, int) and output > 0 else None,
        raw_messages=raw_messages,
        declared=b"".join(b"%b:%b," % (name.encode(), raw) for name in MEMBERS if (raw := source.raw(name))),
        options=options,
        threshold=_threshold(source.value("context_management")),
        focus=read_focus(options.get("instructions")),
        pins=_pins(options.get("pin"), len(raw_messages)),
        names=tuple(_names(source)),
        wants_usage=isinstance(stream_options, dict) and stream_options.get("include_usage") is True,
        says_whether_usage=source.raw("stream_options") not in (None, b"null", b"{}"),
        has_tools=any(source.raw(name) not in (None, b"null", b"[]") for name in ("tools", "functions")),
        forbids_tools="none" in (source.value("tool_choice"), source.value("function_call")),
    )


def model_in(body: bytes) -> str:
    """The model that a body names which is not read any further; empty if that cannot be told."""
    try:
        model = msgspec.json.decode(body, type=_Named).model
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""
    return model if len(model) <= LONGEST_MODEL else ""


class _Named(msgspec.Struct):
    """Other members are skipped, whatever they hold."""

    model: str = ""


def _names(source: RawObject) -> Iterator[tuple[str, bytes]]:
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


def _options(source: RawObject) -> Json:
    """Raises `InvalidRequest` for a member that would be ignored, such as one that is mistyped."""
    known = f"known: {', '.join(OPTIONS)}"
    given = source.raw("context")
    if given is None or given == b"null":
        return {}
    if len(given) > LONGEST_OPTIONS:
        raise InvalidRequest(f"context has {len(given)} bytes; at most {LONGEST_OPTIONS} are read.", "context")
    options = source.value("context")
    if not isinstance(options, dict):
        raise InvalidRequest(f"context must be an object with options; {known}.", "context")
    for name in options:
        if name not in OPTIONS:
            raise InvalidRequest(f"context has no option {name!r:.100}; {known}.", f"context.{name:.100}")
    if options.get("compaction") not in (None, True, False):
        raise InvalidRequest("context.compaction must be true or false.", "context.compaction")
    return options


def _threshold(management: object) -> int | None:
    for entry in management if isinstance(management, list) else ():
        if isinstance(entry, dict) and entry.get("type") == "compaction" and "compact_threshold" in entry:
            value = entry["compact_threshold"]
            if not isinstance(value, int) or isinstance(value, bool) or value < LEAST_THRESHOLD:
                told = f"a whole number of tokens, at least {LEAST_THRESHOLD}; it is {value!r:.100}"
                raise InvalidRequest(f"compact_threshold must be {told}.", "context_management")
            return min(value, MOST_TOKENS)  # However large, it is over every window.
    return None


def read_focus(instructions: object, param: str = "context.instructions") -> str:
    """Raises `InvalidRequest`, which names the member as `param`."""
    if instructions is None:
        return ""
    if not isinstance(instructions, str) or len(instructions) > LONGEST_FOCUS:
        raise InvalidRequest(f"{param} must be a text of at most {LONGEST_FOCUS} characters.", param)
    return instructions.strip()


def _pins(pin: object, messages: int) -> tuple[int, ...]:
    indexes = [] if pin is None else pin
    if not isinstance(indexes, list):
        raise InvalidRequest("context.pin must be a list of indexes into messages.", "context.pin")
    for index in indexes:
        if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < messages:
            raise InvalidRequest(
                f"context.pin holds {index!r:.100}; the request has {messages} messages, whose indexes are whole"
                " numbers from 0.",
                "context.pin",
            )
    return tuple(sorted(set(indexes)))


class MessageReader:
    """Raw messages to core messages; what was read before is not read or digested again."""

    def __init__(self, identity: Identity, ignore: Sequence[str] = (), cache_bytes: int = 32 << 20) -> None:
        self._identity = identity
        self._ignore = tuple(re.compile(pattern) for pattern in ignore)
        self._cache: OrderedDict[bytes, Message] = OrderedDict()
        self._cached_bytes = 0
        self._cache_bytes = cache_bytes
        self._lock = Lock()  # Long histories are read in worker threads.

    def unread_bytes(self, raw_messages: Iterable[bytes]) -> int:
        """Size of the messages that would have to be read."""
        return sum(len(raw) for raw in raw_messages if raw not in self._cache)

    def read(self, raw_messages: Sequence[bytes]) -> tuple[Message, ...]:
        """Raises `Unreadable` where an element is no message."""
        cache = self._cache
        with self._lock:
            held = [cache.get(raw) for raw in raw_messages]
            for raw, message in zip(raw_messages, held, strict=True):
                if message is not None:
                    cache.move_to_end(raw)
        return tuple(
            message or self._remember(self._decode(raw)) for raw, message in zip(raw_messages, held, strict=True)
        )

    def _remember(self, message: Message) -> Message:
        """The message, or an equal one that another thread was faster to keep."""
        with self._lock:
            if (held := self._cache.get(message.raw)) is not None:
                return held
            self._cache[message.raw] = message
            self._cached_bytes += len(message.raw)
            while self._cached_bytes > self._cache_bytes and len(self._cache) > 1:
                self._cached_bytes -= len(self._cache.popitem(last=False)[0])
        return message

    def _decode(self, raw: bytes) -> Message:
        message = _decoded(raw)
        role = message.get("role")
        if not isinstance(role, str):
            raise Unreadable("A message has no role.")
        texts, media, thoughts = _content(message.get("content"))
        calls = _calls(message)
        name = message.get("name")
        name = name if isinstance(name, str) else ""
        refusal = message.get("refusal")
        texts = (*texts, refusal) if isinstance(refusal, str) and refusal else texts
        answers = message.get("tool_call_id")
        return Message(
            role=role,
            texts=texts,
            raw=raw,
            digest=self._identity.digest(b"message", canonical(message, self._ignore)),
            name=name,
            calls=calls,
            answers=answers if isinstance(answers, str) else "",
            media=media,
            thoughts=thoughts,
        )


def canonical(message: Json, ignore: Sequence[re.Pattern[str]] = ()) -> bytes:
    """The bytes that stand for what a message means.

    A string and one text part are the same; so are null, missing and empty; arguments count by value. Unknown keys
    count. `ignore` removes volatile text, such as a date a client injects.
    """
    kept = {key: _canonical_value(key, value, ignore) for key, value in message.items() if key not in VOLATILE_KEYS}
    return msgspec.json.encode({k: v for k, v in kept.items() if v not in (None, "", [], {})}, order="deterministic")


def _canonical_value(key: str, value: Any, ignore: Sequence[re.Pattern[str]]) -> Any:
    match key, value:
        case "content", str():
            return _without(value, ignore)
        case "content", [{"type": "text", "text": str(text)} as part] if (
            not set(part) - {"type", "text"} - VOLATILE_KEYS
        ):
            return _without(text, ignore)
        case "content", list():
            return [_canonical_part(part, ignore) for part in value]
        case "tool_calls", list():
            return [_canonical_call(call) for call in value]
        case "function_call", dict():
            return _canonical_function(value)
        case "audio", {"id": str(audio)}:
            return audio
        case _:
            return value


def _canonical_part(part: Any, ignore: Sequence[re.Pattern[str]]) -> Any:
    if not isinstance(part, dict):
        return part
    kept = {key: value for key, value in part.items() if key not in VOLATILE_KEYS}
    if isinstance(kept.get("text"), str):
        kept["text"] = _without(kept["text"], ignore)
    return kept


def _canonical_call(call: Any) -> Any:
    if not isinstance(call, dict):
        return call
    kept = {key: value for key, value in call.items() if key != "index"}
    if isinstance(function := call.get("function"), dict):
        kept["function"] = _canonical_function(function)
    return kept


def _canonical_function(function: Json) -> Any:
    arguments = function.get("arguments")
    return {**function, "arguments": _canonical_arguments(arguments) if isinstance(arguments, str) else arguments}


def _canonical_arguments(arguments: str) -> msgspec.Raw | str:
    """JSON inside a string, as its values; written again at once: one call's values are held at a time."""
    try:
        raw = arguments.encode()
        if holds_more_values(raw, MOST_ARGUMENT_VALUES):
            return arguments
        return msgspec.Raw(msgspec.json.encode(msgspec.json.decode(raw), order="deterministic"))
    except (ValueError, RecursionError):
        return arguments


def _without(text: str, ignore: Sequence[re.Pattern[str]]) -> str:
    for pattern in ignore:
        text = pattern.sub("", text)
    return text


def render(conversation: Conversation, view: View, alternate: bool = False) -> list[bytes]:
    """The payload's raw messages in order; what is verbatim keeps its bytes.

    `alternate`: for a provider that refuses two user messages in a row, each summary and each carried message is merged
    with the user message beside it, whose text stays whole.
    """
    messages = conversation.transcript.messages
    payload = [message.raw for message in conversation.instructions]
    notes: set[int] = set()
    carried: set[int] = set()
    for part in view.parts:
        match part:
            case Summary(chunk):
                notes.add(len(payload))
                payload.append(msgspec.json.encode({"role": "user", "content": prompts.chunk_text(chunk)}))
            case Note(_, text):
                notes.add(len(payload))
                payload.append(msgspec.json.encode({"role": "user", "content": text}))
            case Verbatim(start, stop):
                payload += [message.raw for message in messages[start:stop]]
            case Pinned(start, stop):
                carried.update(range(len(payload), len(payload) + stop - start))
                payload += [message.raw for message in messages[start:stop]]
            case Pruned():
                pass
            case Carried(index):
                carried.add(len(payload))
                payload.append(messages[index].raw)
            case Altered(index, texts):
                payload.append(_altered(messages[index].raw, texts, part.calls))
    return _alternating(payload, notes, notes | carried) if alternate else payload


def _alternating(payload: Sequence[bytes], notes: Container[int], placed: Container[int]) -> list[bytes]:
    """`placed`: where messages stand that were not neighbours in the client's own history."""
    merged: list[bytes] = []
    for index, raw in enumerate(payload):
        new_neighbours = index in placed or index - 1 in placed
        if merged and new_neighbours and _is_user(merged[-1]) and _is_user(raw):
            content = msgspec.json.encode([*_parts(merged[-1]), *_parts(raw)])
            # The message that is no note keeps its other members.
            kept = merged[-1] if index in notes else raw
            merged[-1] = _spliced(kept, {"content": content})
        else:
            merged.append(raw)
    return merged


def _is_user(raw: bytes) -> bool:
    return _decoded(raw).get("role") == "user"


def _parts(raw: bytes) -> list[Any]:
    content = _decoded(raw).get("content")
    return content if isinstance(content, list) else [{"type": "text", "text": content or ""}]


def _altered(raw: bytes, texts: Sequence[str], calls: Sequence[tuple[int, str]] | None) -> bytes:
    """A message with its texts replaced in order, and its calls by those that are left; the rest keeps its bytes."""
    message = _decoded(raw)
    replaced: dict[str, Any] = {}
    content = message.get("content")
    remaining = iter(texts)
    if isinstance(content, str):
        replaced["content"] = next(remaining)
    elif isinstance(content, list):
        replaced["content"] = [left for part in content if (left := _part_left(part, remaining)) is not None]
    encoded = {name: msgspec.json.encode(value) for name, value in replaced.items() if value != content}
    return _spliced(raw, encoded) if calls is None else _spliced(raw, *_with_calls(message, calls, encoded))


def _part_left(part: Any, texts: Iterator[str]) -> Any:
    """A part of a content with what is left of its text; None where that is nothing: some providers refuse it empty."""
    if not _is_text(part):
        return part
    text = next(texts)
    return {**part, "text": text} if text or not part["text"] else None


def _spliced(raw: bytes, replaced: Mapping[str, bytes], removed: Collection[str] = ()) -> bytes:
    """A message with some members replaced or removed."""
    try:
        return RawObject(raw).spliced(replaced, removed)
    except Unreadable:  # A key that stands twice, for one: as it was read, with the last of them.
        left = {name: value for name, value in _decoded(raw).items() if name not in removed}
        return msgspec.json.encode(left | {name: msgspec.Raw(value) for name, value in replaced.items()})


def _with_calls(
    message: Json, calls: Sequence[tuple[int, str]], replaced: Mapping[str, bytes]
) -> tuple[Mapping[str, bytes], tuple[str, ...]]:
    """What to replace and what to remove. Providers refuse an empty list of calls."""
    held = [call for call in message.get("tool_calls") or () if isinstance(call, dict)]
    left = [_with_arguments(held[position], arguments) for position, arguments in calls if position < len(held)]
    if left:
        return {**replaced, "tool_calls": msgspec.json.encode(left)}, ()
    if isinstance(legacy := message.get("function_call"), dict) and calls:
        return {**replaced, "function_call": msgspec.json.encode({**legacy, "arguments": calls[0][1]})}, ()
    return replaced, ("tool_calls",)


def _with_arguments(call: Json, arguments: str) -> Json:
    for kind, member in (("function", "arguments"), ("custom", "input")):
        if isinstance(inner := call.get(kind), dict):
            return {**call, kind: {**inner, member: arguments}}
    return call


def _decoded(raw: bytes) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Unreadable(str(error)) from error
    if not isinstance(value, dict):
        raise Unreadable("A message is no object.")
    return value


def _is_text(part: Any) -> bool:
    return (
        isinstance(part, dict)
        and part.get("type") in ("text", "input_text", None)
        and isinstance(part.get("text"), str)
    )


def _content(content: Any) -> tuple[tuple[str, ...], tuple[Media, ...], tuple[str, ...]]:
    """Texts, with those of parts that are refusals behind them; media; thoughts."""
    if isinstance(content, str):
        return (content,), (), ()
    if not isinstance(content, list):
        return (), (), ()
    texts: list[str] = []
    refusals: list[str] = []
    media: list[Media] = []
    thoughts: list[str] = []
    for part in content:
        match part:
            case dict() if _is_text(part):
                texts.append(part["text"])
            case {"type": "refusal", "refusal": str(refusal)}:
                refusals.append(refusal)
            case {"type": "thinking" | "reasoning" as kind}:
                thoughts += _thoughts(part.get(kind, part.get("text")))
            case dict():
                media.append(read_media(part))
    return (*texts, *refusals), tuple(media), tuple(thoughts)


def _thoughts(held: Any) -> list[str]:
    """Anthropic's form, a text, or Mistral's, a list of parts."""
    if isinstance(held, str):
        return [held]
    return [part["text"] for part in held if _is_text(part)] if isinstance(held, list) else []


def _calls(message: Json) -> tuple[ToolCall, ...]:
    calls = message.get("tool_calls")
    found = [_call(call) for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []
    if isinstance(legacy := message.get("function_call"), dict):
        found.append(replace(_call({"id": "", "function": legacy}), legacy=True))
    return tuple(found)


def _call(call: Json) -> ToolCall:
    function = call.get("function") or call.get("custom")
    function = function if isinstance(function, dict) else {}
    arguments = function.get("arguments", function.get("input"))
    return ToolCall(
        str(call.get("id") or ""), str(function.get("name") or ""), arguments if isinstance(arguments, str) else ""
    )
