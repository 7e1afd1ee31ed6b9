"""Chat Completions, OpenAI's first API for conversations. Most other providers offer this API, too. This module has the
format's table, messages, answers and requests."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from time import time
from typing import Any

import msgspec

from app.compaction.view import Altered, Conversation, View
from app.conversation.messages import Kind, Media, Message, ToolCall
from app.formats.answers import AnswerEditor
from app.formats.compaction_events import EarlyFrames
from app.formats.format import WireFormat
from app.formats.media import openai_media
from app.formats.raw_json import (
    Path,
    RawObject,
    Unreadable,
    Where,
    as_text,
    decoded_object,
    joined_members,
    object_of,
    objects_in,
    spliced,
    split_array,
    text_at,
)
from app.formats.reader import Draft, canonical_content, meant_by, of_user, stated, written_alike
from app.formats.rendering import Breakpoints, Parts, Place, joined, kept_breakpoint, placed
from app.formats.requests import OWN_MEMBERS, WireRequest, elements_of, response_format_of, tool_of, unread
from app.formats.spec import CACHE_CONTROL, PROMPT_CACHE_BREAKPOINT, Ending, FormatSpec, SummarySpec
from app.formats.sse import KEEP_ALIVE, event, last_end
from app.tokens.estimate import Declarations

Json = Mapping[str, Any]

# Table

_CHOICE: Path = ("choices", Where("index", (0, None)))
_MESSAGES: tuple[Path, ...] = ((*_CHOICE, "delta"), (*_CHOICE, "message"))
"""Paths of the first choice's message, in a streamed frame and in an unstreamed answer."""

SPEC = FormatSpec(
    name="chat_completions",
    page="https://platform.openai.com/docs/api-reference/chat",
    path=b"/v1/chat/completions",
    history="messages",
    user_message=lambda text: {"role": "user", "content": text},
    output_members=("max_completion_tokens", "max_tokens"),
    declaring_members=("tools", "functions", "tool_choice", "function_call", "response_format"),
    tool_members=("tools", "functions"),
    cached_members=("tools", "functions", "parallel_tool_calls"),
    schema_members=("response_format",),
    # Members of OpenAI, OpenRouter, Cohere and vLLM.
    extending_members=("web_search_options", "plugins", "documents", "transforms", "truncate_prompt_tokens"),
    client_tools=frozenset({"function", "custom"}),
    # A message of the role `function` answers a legacy `function_call`, without an id.
    roles={
        **dict.fromkeys(("system", "developer"), Kind.INSTRUCTIONS),
        "user": Kind.USER,
        "assistant": Kind.ASSISTANT,
        **dict.fromkeys(("tool", "function"), Kind.RESULT),
    },
    volatile_members=frozenset(
        {
            *(CACHE_CONTROL, PROMPT_CACHE_BREAKPOINT, "annotations", "prefix", "partial"),
            *("reasoning_content", "reasoning", "reasoning_details", "thinking_blocks"),
        }
    ),
    usage_option=re.compile(rb"stream_options|include_usage"),
    whole=_MESSAGES,
    # Some providers send reasoning as parts of another type.
    texts=tuple((*at, "content", *part) for at in _MESSAGES for part in ((), (Where("type", ("text", None)), "text"))),
    calls=tuple((*at, name) for at in _MESSAGES for name in ("tool_calls", "function_call")),
    refusals=tuple((*at, "refusal") for at in _MESSAGES),
    reasons=((*_CHOICE, "finish_reason"),),
    done_ends=True,
    # A complete answer counts as finished, even without a finish reason.
    endings={
        **dict.fromkeys(("", "stop", "end_turn", "eos"), Ending.FINISHED),
        "length": Ending.CUT_OFF,
        **dict.fromkeys(("refusal", "content_filter"), Ending.REFUSED),
    },
    summary=SummarySpec(
        quoting=lambda instructions, transcript: {
            "messages": [{"role": "system", "content": instructions}, {"role": "user", "content": transcript}]
        },
        forbidding=(("tools", "tool_choice", "none"), ("functions", "function_call", "none")),
        own_members=frozenset(
            {"model", "messages", "max_tokens", "max_completion_tokens", "n", "stream", "stream_options"}
            | {"tools", "tool_choice", "functions", "function_call", "parallel_tool_calls"}
        ),
        optional=("reasoning_effort", "stream_options", "stream"),
        caps=("max_tokens", "max_completion_tokens"),
        restrained=lambda _: {"reasoning_effort": "low"},
        always_sent={"stream": True, "stream_options": {"include_usage": True}},
    ),
)


# Messages

VOLATILE_PARTS = ("thinking", "reasoning")
"""Types of parts that clients drop after a turn."""


def read_message(raw: bytes, ignore: Sequence[re.Pattern[str]] = ()) -> Draft:
    """Parse a message. Raises `Unreadable`."""
    message = decoded_object(raw)
    role = message.get("role")
    if not isinstance(role, str):
        raise Unreadable("A message has no role.")
    content, kind = message.get("content"), SPEC.roles.get(role, Kind.OTHER)
    if isinstance(content, str) and len(message) == 2 and kind is not Kind.RESULT:  # Fast path for most messages.
        kind, confidence = of_user(kind, (content,))
        return Draft(
            Message(kind, role, (content,), raw, b"", result_confidence=confidence), canonical(message, ignore)
        )
    texts, media, thoughts = _content(content)
    kind, confidence = of_user(kind, texts, plain=not media)
    refusal = text_at(message, "refusal")
    read = Message(
        kind=kind,
        role=role,
        texts=(*texts, refusal) if refusal else texts,
        raw=raw,
        digest=b"",
        name=text_at(message, "name"),
        calls=_calls(message),
        answers=(text_at(message, "tool_call_id"),) if kind is Kind.RESULT else (),
        media=media,
        thoughts=thoughts,
        result_confidence=confidence,
    )
    return Draft(read, canonical(message, ignore))


def canonical(message: Json, ignore: Sequence[re.Pattern[str]] = ()) -> bytes:
    """Return equal bytes for messages with the same meaning.

    A string equals one text part. Null and empty members equal missing ones. Arguments are compared by value. Unknown
    keys stay in the bytes. `ignore` removes volatile text, such as a date that a client injects.
    """
    if not ignore and len(message) == 2 and message.get("role") and isinstance(text := message.get("content"), str):
        return written_alike(message if text else {"role": message["role"]})
    lasting = ((key, value) for key, value in message.items() if key not in SPEC.volatile_members)
    return written_alike(stated({key: _canonical_value(key, value, ignore) for key, value in lasting}))


def _canonical_value(key: str, value: Any, ignore: Sequence[re.Pattern[str]]) -> Any:
    match key, value:
        case "content", _:
            if isinstance(value, list):
                value = [part for part in value if object_of(part).get("type") not in VOLATILE_PARTS]
            return canonical_content(value, SPEC.volatile_members, ("text",), ignore)
        case "tool_calls", list():
            return [_canonical_call(call) for call in value]
        case "function_call", dict():
            return _canonical_function(value)
        case "audio", {"id": str(audio)}:
            return audio
        case _:
            return value


def _canonical_call(call: Any) -> Any:
    if not isinstance(call, dict):
        return call
    kept = {key: value for key, value in call.items() if key != "index" and key not in SPEC.volatile_members}
    if isinstance(function := call.get("function"), dict):
        kept["function"] = _canonical_function(function)
    return kept


def _canonical_function(function: Json) -> Any:
    arguments = function.get("arguments")
    return {**function, "arguments": meant_by(arguments) if isinstance(arguments, str) else arguments}


def is_text(part: Any) -> bool:
    return (
        isinstance(part, dict)
        and part.get("type") in ("text", "input_text", None)
        and isinstance(part.get("text"), str)
    )


def _content(content: Any) -> tuple[tuple[str, ...], tuple[Media, ...], tuple[str, ...]]:
    """Return the texts, media and thoughts of a message's `content`. Refusals are the last texts."""
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
            case dict() if is_text(part):
                texts.append(part["text"])
            case {"type": "refusal", "refusal": str(refusal)}:
                refusals.append(refusal)
            case {"type": str(kind)} if kind in VOLATILE_PARTS:
                thoughts += _thoughts(part.get(kind, part.get("text")))
            case dict():
                media.append(read_media(part))
    return (*texts, *refusals), tuple(media), tuple(thoughts)


def _thoughts(held: Any) -> list[str]:
    """Return the texts of a thinking part. `held`: a text, as Anthropic writes it, or text parts, as Mistral does."""
    if isinstance(held, str):
        return [held]
    return [part["text"] for part in held if is_text(part)] if isinstance(held, list) else []


def _calls(message: Json) -> tuple[ToolCall, ...]:
    found = list(map(_call, objects_in(message.get("tool_calls"))))
    if isinstance(legacy := message.get("function_call"), dict):
        found.append(_call({"id": "", "function": legacy}))
    return tuple(found)


def _call(call: Json) -> ToolCall:
    function = object_of(call.get("function") or call.get("custom"))
    arguments = as_text(function.get("arguments", function.get("input")))
    return ToolCall(str(call.get("id") or ""), str(function.get("name") or ""), arguments)


def is_media(part: Any) -> bool:
    return isinstance(part, dict) and not is_text(part) and part.get("type") not in ("refusal", *VOLATILE_PARTS)


MEDIA = {"image_url": "image", "input_image": "image", "input_audio": "audio", "file": "file"}


def read_media(part: Mapping[str, Any]) -> Media:
    type_ = text_at(part, "type")
    kind = MEDIA.get(type_, type_)
    held = part.get("image_url" if kind == "image" else type_)
    members = held if isinstance(held, dict) else {"url": held, "detail": part.get("detail")}
    size = sum(len(value) for value in members.values() if isinstance(value, str))
    return openai_media(kind, members, text_at(members, "url"), size)


def _text_type(message: Json) -> str | None:
    return None if message.get("role") == "function" else "text"


BREAKPOINTS = Breakpoints(
    (CACHE_CONTROL, PROMPT_CACHE_BREAKPOINT), frozenset({"text", "image_url", "input_audio", "file"}), _text_type
)


def render(conversation: Conversation, view: View, alternate: bool = False) -> list[bytes]:
    """Return the payload's raw messages in order; verbatim messages keep their bytes.

    `alternate`: the provider refuses two user messages in a row. Join those that are adjacent only in the payload.
    """
    payload = placed(conversation, view, SPEC.user_message, _left)
    return joined(payload, "text") if alternate else [each.raw for each in payload]


def _texts(part: dict[str, Any]) -> Iterator[Place]:
    if is_text(part):
        yield part, "text"


def _in_words(part: dict[str, Any], words: Iterator[str]) -> dict[str, Any]:
    if not is_media(part) or (word := next(words, None)) is None:
        return part
    return {"type": "text", "text": word, **kept_breakpoint(part)}


_PARTS = Parts(_texts, _in_words, lambda part: part if part["text"] else None)


def _left(raw: bytes, part: Altered) -> bytes:
    left = _PARTS.altered(raw, part.texts, part.media) or spliced(raw, {"content": b"[]"})
    return left if part.calls is None else spliced(left, *_with_calls(decoded_object(raw), part.calls))


def _with_calls(message: Json, calls: Sequence[tuple[int, str]]) -> tuple[Mapping[str, bytes], tuple[str, ...]]:
    """Return members to replace, and members to remove, so that only `calls` remain. An empty list is removed."""
    held = [call for call in message.get("tool_calls") or () if isinstance(call, dict)]
    left = [_with_arguments(held[position], arguments) for position, arguments in calls if position < len(held)]
    if left:
        return {"tool_calls": msgspec.json.encode(left)}, ()
    if isinstance(legacy := message.get("function_call"), dict) and calls:
        return {"function_call": msgspec.json.encode({**legacy, "arguments": calls[0][1]})}, ()
    return {}, ("tool_calls",)


def _with_arguments(call: Json, arguments: str) -> Json:
    for kind, member in (("function", "arguments"), ("custom", "input")):
        if isinstance(inner := call.get(kind), dict):
            return {**call, kind: {**inner, member: arguments}}
    return call


# Answers

_FINISH = re.compile(rb'"finish_reason"\s*:\s*[^n\s]')
_USAGE = re.compile(rb'"usage"\s*:\s*[^n\s]')
_SEARCHES = re.compile(r"-search-(?:preview|api)")
"""Pattern of models that search the web once for each answer. The provider charges for the search."""


@dataclass(slots=True)
class CompactionEvents(EarlyFrames):
    """Steno's frames in Chat Completions.

    Each member has one type in all frames and in `context`, because LangChain.js merges a stream's frames and fails if
    a member changes its type.
    """

    head: dict[str, object] = field(init=False)
    """Id, time (in Unix seconds) and model of Steno's frames. The editor writes them into the provider's frames."""

    def __post_init__(self) -> None:
        self.head = {"id": f"chatcmpl-{secrets.token_hex(12)}", "created": int(time()), "model": self.model}

    def keep_alive(self) -> bytes:
        return KEEP_ALIVE if self.shape == "comment" else event(self._chunk({}))

    def frame(self, kind: str, details: Mapping[str, Any], members: bytes = b"") -> bytes:
        if self.shape == "comment":
            return super(CompactionEvents, self).frame(kind, details)
        # `None`, because an empty text would remain in a message with tool calls only.
        delta = {"role": "assistant", "content": None} if kind == "compaction_started" else {}
        return event(b"%b,%b}" % (self._chunk(delta)[:-1], self.told(kind, details, members)))

    def _chunk(self, delta: Mapping[str, str | None]) -> bytes:
        return msgspec.json.encode(
            {
                "id": self.head["id"],
                "object": "chat.completion.chunk",
                **self.head,
                "choices": [{"index": 0, "delta": delta, "finish_reason": None}],
            }
        )


@dataclass(slots=True)
class CompletionEditor(AnswerEditor):
    """Editor of answers.

    Steno parses and edits only a few frames of a stream. All other frames keep their bytes.
    1. The first frame gets `context_status`.
    2. The first frame that finishes a choice gets `context_status` and `context`: many clients stop reading there.
    3. If Steno began the stream, every later frame gets the id, time and model that Steno sent, and loses the
       provider's role. Clients fail on a second role, time or model, and drop frames with another id.

    An unstreamed answer gets both members at its end. Unreadable answers pass unchanged.
    """

    SPEC = SPEC
    EARLY = CompactionEvents
    NOTABLE = re.compile(rb'"(?:finish_reason|usage)"\s*+:\s*+[^n\s]|"error"|\[DONE\]')
    CONTENT = re.compile(
        rb'"(?:content|reasoning_content|reasoning|refusal|text|arguments)"\s*+:\s*+(?:"[^"]|[\[{]\s*+[^\]}\s])'
        rb'|"(?:tool_calls|function_call|audio)"\s*+:\s*+[\[{]\s*+[^\]}\s]'
    )

    finished: set[int] = field(default_factory=set, init=False)
    """Indexes of the choices that have a finish reason."""

    @property
    def choices(self) -> int:
        return self.request.answer.choices if self.request else 1

    @property
    def complete(self) -> bool:
        """Whether the answer has ended: with finish reasons, `[DONE]` or an error."""
        return len(self.finished) >= self.choices or self.ended or self.failed

    @property
    def continues(self) -> bool:
        """Whether Steno began the client's answer with a data frame of its own."""
        return self.early is not None and self.early.shape == "chunk"

    def quiet(self, frames: bytes, start: int) -> int:
        if not self.begun or self.continues or self.hides_usage:
            return start
        stop = len(frames)
        if _may_be_notable(frames, start) and (notable := self.NOTABLE.search(frames, start)):
            stop = last_end(frames, start, notable.start())
        self._look_for_content(frames, start, stop)
        return stop

    def _passes(self, text: bytes) -> bool:
        if text.startswith(b"[DONE]"):
            self.ended = True
            return True
        tells_usage = (b'"usage"' in text) if self.hides_usage else _USAGE.search(text)
        told = self.begun and not self.continues
        return told and not tells_usage and b'"error"' not in text and _FINISH.search(text) is None

    def _edited(self, said: RawObject) -> bytes:
        if "error" in said and said.value("error"):
            self._fail(said.text)
            return said.text
        self._take(said)
        hides = self.hides_usage and "usage" in said
        if hides and not said.value("choices"):
            return b""
        replaced, added = self._headed(said)
        finished = (choice for choice in objects_in(said.value("choices")) if choice.get("finish_reason"))
        finishes = {index for choice in finished if isinstance(index := choice.get("index", 0), int)}
        # The first chunk gets the status. The first chunk that finishes a choice gets all members.
        members = self.context.report if finishes and not self.finished else b"" if self.begun else self.context.status
        self.begun = True
        if len(self.finished) < self.choices:  # The set is limited: a provider may send any number of choices.
            self.finished |= finishes
        if replaced or added or hides:
            said = RawObject(said.spliced(replaced, ("usage",) if hides else (), added))
        return said.with_status(members) if members else said.text

    def _take(self, said: RawObject) -> list[object]:
        reasons = super(CompletionEditor, self)._take(said)
        self.searches = int(_SEARCHES.search(self.model) is not None)
        return reasons

    def _headed(self, chunk: RawObject) -> tuple[dict[str, bytes], bytes]:
        """Return changes that set Steno's id, time and model in a frame: values to replace, and members to add."""
        if not self.continues or not isinstance(self.early, CompactionEvents):
            return {}, b""
        head = {name: msgspec.json.encode(value) for name, value in self.early.head.items()}
        replaced = {name: value for name, value in head.items() if name in chunk}
        missing = {name: value for name, value in head.items() if name not in chunk and "choices" in chunk}
        if (choices := chunk.raw("choices")) is not None and b'"role"' in choices:
            replaced["choices"] = _without_role(choices)
        return replaced, joined_members(missing)


def _may_be_notable(frames: bytes, start: int) -> bool:
    """Return whether `NOTABLE` may match. Counting substrings is five times as fast as searching with this pattern."""
    if frames.find(b'"error"', start) != -1 or frames.find(b"[DONE]", start) != -1:
        return True
    for name in (b"finish_reason", b"usage"):
        count = frames.count(name, start)
        if count and count not in (frames.count(name + b'":null', start), frames.count(name + b'": null', start)):
            return True
    return False


def _without_role(choices: bytes) -> bytes:
    """Remove the role from the delta of choice 0; other bytes stay the same."""
    try:
        elements = split_array(choices)
    except Unreadable:
        return choices
    for place, raw in enumerate(elements):
        with suppress(Unreadable):
            choice = RawObject(raw)
            if choice.value("index") == 0 and (delta := choice.raw("delta")) is not None:
                elements[place] = choice.spliced({"delta": RawObject(delta).spliced(remove=("role",))})
    return b"[" + b",".join(elements) + b"]"


# Requests


class ChatRequest(WireRequest, frozen=True):
    """A chat request, which always contains the whole history."""

    SPEC = SPEC

    @classmethod
    def members_in(cls, source: RawObject, elements: Sequence[bytes]) -> dict[str, Any]:  # noqa: ARG003
        choices, says_usage = source.value("n"), source.raw("stream_options") not in (None, b"null", b"{}")
        return {
            "answer": {
                "choices": choices if isinstance(choices, int) else 1,
                "wants_usage": says_usage and object_of(source.value("stream_options")).get("include_usage") is True,
                "says_whether_usage": says_usage,
            },
            "forbids_tools": "none" in (source.value("tool_choice"), source.value("function_call")),
        }

    @property
    def is_typical(self) -> bool:
        return "search" not in self.model and super().is_typical

    def declarations(self) -> Declarations:
        source = self.source
        tools, functions = elements_of(source, "tools"), elements_of(source, "functions")
        choice, answer = source.value("tool_choice") or source.value("function_call"), source.value("response_format")
        named = object_of(choice)  # In `tool_choice` the name is inside `function`.
        schema = object_of(answer).get("json_schema") if object_of(answer).get("type") == "json_schema" else None
        wrapped = [tool["function"] for tool, _ in tools if "function" in tool]
        return Declarations(
            tools=tuple(tool_of(object_of(each)) for each in (*wrapped, *(function for function, _ in functions))),
            legacy=bool(functions),
            choice=choice if isinstance(choice, str) else "",
            forced=text_at(object_of(named.get("function", named)), "name"),
            response_format=response_format_of(schema) if isinstance(schema, dict) else None,
            others=(*(text for tool, text in tools if "function" not in tool), *unread(source, SPEC.declaring_members)),
        )

    def with_messages(self, raw_messages: Iterable[bytes], ask_usage: bool = False) -> bytes:
        if not ask_usage:
            return super().with_messages(raw_messages)
        replaced = {"messages": b"[%b]" % b",".join(raw_messages)}
        options = self.source.raw("stream_options") or b"null"
        try:
            given = RawObject(options if options.startswith(b"{") else b"{}")
        except Unreadable:  # For example, a key is repeated. The provider decides on the body.
            return self.source.spliced(replaced, OWN_MEMBERS)
        asking = given.spliced(remove=("include_usage",), add=b'"include_usage":true')
        if "stream_options" in self.source:
            return self.source.spliced({**replaced, "stream_options": asking}, OWN_MEMBERS)
        return self.source.spliced(replaced, OWN_MEMBERS, b'"stream_options":' + asking)


CHAT_COMPLETIONS = WireFormat(SPEC, ChatRequest, CompletionEditor, read_message, render, BREAKPOINTS)
