"""Requests and messages of Chat Completions: read and render them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from app.compaction.view import Altered, Conversation, View
from app.conversation.messages import Kind, Media, Message, ToolCall
from app.formats.chat_completions.answers import CompletionEditor
from app.formats.format import WireFormat
from app.formats.media import openai_media
from app.formats.raw_json import RawObject, Unreadable, as_text, decoded_object, object_of, objects_in, spliced, text_at
from app.formats.reader import Draft, canonical_content, meant_by, of_user, stated, written_alike
from app.formats.rendering import (
    Breakpoints,
    Parts,
    Place,
    joined,
    kept_breakpoint,
    placed,
)
from app.formats.requests import OWN_MEMBERS, WireRequest, elements_of, response_format_of, tool_of, unread
from app.formats.spec import CACHE_CONTROL, PROMPT_CACHE_BREAKPOINT
from app.formats.spec import CHAT_COMPLETIONS as SPEC
from app.tokens.estimate import Declarations

Json = Mapping[str, Any]

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
    keys count. `ignore` removes volatile text, such as a date that a client injects.
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
    """Return the texts (followed by refusals), media and thoughts of a content."""
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
    """Return the texts of a thinking part: a text (Anthropic) or a list of parts (Mistral)."""
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

    `alternate` joins user messages that became adjacent, for a provider that refuses two in a row.
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
    """Return members to replace and to remove, so that only `calls` remain. Providers refuse an empty `tool_calls`."""
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


class ChatRequest(WireRequest, frozen=True):
    """A chat request, which always contains the whole history."""

    SPEC = SPEC

    @classmethod
    def members_in(cls, source: RawObject, elements: Sequence[bytes]) -> dict[str, Any]:  # noqa: ARG003
        choices, stream_options = source.value("n"), source.value("stream_options")
        return {
            "answer": {
                "choices": choices if isinstance(choices, int) else 1,
                "wants_usage": object_of(stream_options).get("include_usage") is True,
                "says_whether_usage": source.raw("stream_options") not in (None, b"null", b"{}"),
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
