"""Gemini's `generateContent`, Google's API for conversations: table, contents, answers, requests and token costs.

The path names the model and whether to stream. On Steno's own routes the body names both. A request with
`cachedContent` contains only the contents after the cached ones. docs/estimates.md says how the costs were measured.

A content is a message: it has a role and parts, and each part holds one text, call, result or file. A user's content
holds the results. A result names its call's tool, and since Gemini 3 the call's id. Without ids, results answer the
calls in order. Steno reads the `systemInstruction` as a content of the role `system`.

Gemini accepts two contents of one role in a row, but a call only after a user's content. So Steno inserts a user's text
before a model's content in two cases: the content is the payload's first, or Steno omitted all contents between two
contents of the model. A signature is a member of the part that it signs.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import count
from typing import Any
from urllib.parse import unquote_to_bytes

import msgspec
from msgspec.structs import replace

from app.compaction.view import Altered, Conversation, View
from app.conversation.client_context import is_client_text
from app.conversation.messages import Kind, Media, Message, ToolCall
from app.conversation.reasons import Code, Reason
from app.conversation.tool_results import ResultConfidence
from app.errors import StenoError
from app.formats.answers import AnswerEditor
from app.formats.compaction_events import EarlyFrames
from app.formats.format import WireFormat
from app.formats.media import file_of, pixels, seconds
from app.formats.raw_json import (
    RawObject,
    Unreadable,
    Where,
    as_text,
    decoded_object,
    holds_more_values,
    json_text,
    object_of,
    objects_in,
    split_array,
    text_at,
)
from app.formats.reader import Draft, canonical_part, of_user, stated, written_alike
from app.formats.refusals import provider_error
from app.formats.rendering import OPENER, Placed, edited, joined, placed
from app.formats.requests import Headers, WireRequest, tool_of, unread
from app.formats.spec import Ending, FormatSpec, SummarySpec
from app.formats.sse import MOST_VALUES, event
from app.tokens.counting_rules import CountingRules, Encrypted, OneByOne, Pages, Tiles, rules_for
from app.tokens.estimate import Declarations

Json = Mapping[str, Any]

# Table

ADDRESS = re.compile(rb"/v1(?:alpha|beta\d*)?/(?:projects/.+/)?models/(?P<model>[^/:]+):(?P<method>[A-Za-z]+)")
"""Pattern of paths with a model and a method. The method decides whether the answer is streamed. At Vertex, a project
and a publisher precede the model."""
_PARTS = ("candidates", "content", "parts")
_THINKING = re.compile(r"gemini-(?:2\.5|[3-9])")


def _restrained(model: str) -> dict[str, object]:
    """Return the options that limit thinking: up to Gemini 2.5 a budget in tokens, from Gemini 3 on a level."""
    return {"thinkingConfig": {"thinkingBudget": 512} if "gemini-2" in model else {"thinkingLevel": "low"}}


SPEC = FormatSpec(
    name="gemini",
    page="https://ai.google.dev/api/generate-content",
    address=ADDRESS,
    methods=frozenset({b"generateContent", b"streamGenerateContent"}),
    early_is_content=True,
    path=b"/v1beta/models/{model}:generateContent",
    other_paths=(b"/v1alpha", b"/v1beta", b"/v1beta1", b"/v1/projects", b"/upload/v1", b"/upload/v1beta"),
    largest_body=20_000_000,
    history="contents",
    user_message=lambda text: {"role": "user", "parts": [{"text": text}]},
    output_members=("maxOutputTokens", "max_output_tokens"),
    output_parents=("generationConfig", "generation_config"),
    declaring_members=("tools", "toolConfig", "tool_config"),
    cached_members=("tools",),
    cache_key_member="",
    schema_members=(),
    extending_members=("cachedContent", "cached_content", "continuationToken", "continuation_token"),
    client_tools=frozenset({None}),
    roles={"system": Kind.INSTRUCTIONS, "user": Kind.USER, "model": Kind.ASSISTANT, "function": Kind.RESULT},
    # Providers need signatures in the current turn only, and clients may replace them by dummies.
    volatile_members=frozenset({"thoughtSignature"}),
    beside=re.compile(rb'"(?:systemInstruction|system_instruction)"[ \t\n\r]*+:[ \t\n\r]*+'),
    usage="usageMetadata",
    model="modelVersion",
    whole=(("candidates",), ("promptFeedback",)),
    texts=((*_PARTS, Where("thought", (None, False)), "text"),),
    calls=((*_PARTS, "functionCall"),),
    reasons=(("candidates", "finishReason"), ("promptFeedback", "blockReason")),
    endings={
        "STOP": Ending.FINISHED,
        "MAX_TOKENS": Ending.CUT_OFF,
        **dict.fromkeys(
            ("SAFETY", "RECITATION", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "MODEL_ARMOR"), Ending.REFUSED
        ),
    },
    length_tells_window=False,
    summary=SummarySpec(
        quoting=lambda instructions, transcript: {
            "systemInstruction": {"parts": [{"text": instructions}]},
            "contents": [{"role": "user", "parts": [{"text": transcript}]}],
        },
        forbidding=(("tools", "toolConfig", {"functionCallingConfig": {"mode": "NONE"}}),),
        own_members=frozenset(
            {"contents", "systemInstruction", "generationConfig", "maxOutputTokens", "thinkingConfig"}
            | {"tools", "toolConfig", "model", "cachedContent"}
        ),
        optional=("thinkingConfig",),
        unnamed_errors={"thinkingConfig": re.compile(rb"[Tt]hinking (?:level|budget|is)|thinking_|\b[Bb]udget\b")},
        caps=("maxOutputTokens", "maxOutputTokens"),
        reasoning=_THINKING,
        restrained=_restrained,
        always_sent={},
        options_member="generationConfig",
        streaming=b"streamGenerateContent?alt=sse",
    ),
)


# Contents

DATA = ("functionCall", "functionResponse", "inlineData", "fileData", "codeExecutionResult", "text")
"""Members that determine the type of a part. The first one present counts."""
_ALPHABET = str.maketrans("-_", "+/", "=")
COMPACTION_PROMPT = b"You are a specialized system component responsible for distilling chat history"
"""Beginning of the instructions that Gemini CLI sends when it compacts its history itself."""
UNSIGNED = b64encode(b"skip_thought_signature_validator").decode()
"""Google's documented dummy signature, for a call whose arguments Steno changed."""
VERBATIM = frozenset({"args", "response", "partMetadata", "parameters", "parametersJsonSchema"})
"""Members whose values have keys of the client's choice. Steno does not respell these keys."""


def camel(value: object) -> object:
    """Return JSON with its keys in camelCase, except keys that the client chose: see `VERBATIM`."""
    if isinstance(value, list):
        return [camel(each) for each in value]
    if not isinstance(value, dict):
        return value
    named = ((re.sub(r"_([a-z])", lambda found: found[1].upper(), key), held) for key, held in value.items())
    return {key: held if key in VERBATIM else camel(held) for key, held in named}


def read_content(raw: bytes, ignore: Sequence[re.Pattern[str]] = ()) -> Draft:
    """Parse a content. Raises `Unreadable`."""
    if SPEC.beside is not None and SPEC.beside.match(raw):
        [held] = decoded_object(b"{%b}" % raw).values()
        content = {**object_of(camel(held)), "role": "system"}
    else:
        content = object_of(camel(decoded_object(raw)))
    if not isinstance(role := content.get("role") or "user", str):
        raise Unreadable("A content's role is no text.")
    parts = objects_in(content.get("parts"))
    return Draft(_read(role, parts, raw), written_alike(_canonical(role, content, ignore)))


def _read(role: str, parts: Sequence[Json], raw: bytes) -> Message:
    kind, texts, owners, number = SPEC.roles.get(role, Kind.OTHER), list[str](), list[int](), count()
    results = [part["functionResponse"] for part in parts if _sort(part) == "functionResponse"]
    for part in parts:
        if (text := text_of(part)) is not None:
            texts.append(text)
            owners.append(next(number) if _sort(part) == "functionResponse" else -1)
    beside = [text for text, owner in zip(texts, owners, strict=True) if owner < 0 and text]
    media, confidence = tuple(_media(parts)), ResultConfidence.NONE
    if kind is Kind.USER and results:
        kind = Kind.RESULT if not beside or is_client_text(beside) else kind
    else:
        kind, confidence = of_user(kind, texts, plain=not media)
    returned = tuple(place for place, owner in enumerate(owners) if owner >= 0)
    return Message(
        kind=kind,
        role=role,
        texts=tuple(texts),
        raw=raw,
        digest=b"",
        calls=tuple(_call(part["functionCall"]) for part in parts if _sort(part) == "functionCall"),
        # Id of the result's call, or else the tool's name.
        answers=tuple(text_at(result, "id") or text_at(result, "name") for result in results),
        owners=tuple(owners) if results and any(owners) else (),
        failed=tuple(place for place, result in enumerate(results) if "error" in object_of(result.get("response"))),
        settled=tuple(
            ToolCall("", "code_execution", text_at(object_of(part.get("executableCode")), "code"))
            for part in parts
            if "executableCode" in part
        ),
        media=media,
        thoughts=tuple(text_at(part, "text") for part in parts if part.get("thought")),
        passed_on=returned if kind is Kind.USER and results else (),
        beside=tuple(place for place in range(len(texts)) if place not in returned) if kind is Kind.RESULT else (),
        result_confidence=confidence,
        encrypted=sum(len(text_at(part, "thoughtSignature")) for part in parts),
    )


def _sort(part: Json) -> str:
    """Return the member of `DATA` that a part has; empty for other parts and for thoughts."""
    found = next((name for name in DATA if name in part), "")
    is_read = not part.get("thought") if found == "text" else isinstance(part.get(found), dict)
    return found if is_read else ""


def text_of(part: Json) -> str | None:
    """Return a part's text, if any. For a result whose only member is a string: the string; else the result's JSON."""
    match _sort(part):
        case "text":
            return text_at(part, "text")
        case "codeExecutionResult":
            return text_at(part["codeExecutionResult"], "output")
        case "functionResponse":
            response = part["functionResponse"].get("response")
            match response:
                case {**members} if len(members) == 1 and isinstance(text := next(iter(members.values())), str):
                    return text
                case _:
                    return json_text(response)
    return None


def _with_text(part: dict[str, Any], text: str) -> dict[str, Any] | None:
    """Return a part with another text; keys keep their spelling. None for an empty text part: providers refuse it."""
    sort = _sort(object_of(camel(part)))
    if sort == "text":
        return {**part, "text": text} if text else None
    name = _name_of(part, sort)
    if sort == "codeExecutionResult":
        return {**part, name: {**part[name], "output": text}}
    response = part[name].get("response")
    members = object_of(response)
    key = next(iter(members)) if len(members) == 1 else "error" if "error" in members else "output"
    return {**part, name: {**part[name], "response": {key: text}}}


def _name_of(part: Json, sort: str) -> str:
    return next(name for name in part if sort in object_of(camel({name: None})))


def _call(call: Json) -> ToolCall:
    return ToolCall(text_at(call, "id"), text_at(call, "name"), json_text(object_of(call.get("args"))))


def _media(parts: Sequence[Json]) -> Iterator[Media]:
    for part in parts:
        sort = _sort(part)
        if sort in ("inlineData", "fileData"):
            yield _file(part[sort])
        elif sort == "functionResponse":
            for inner in _media(objects_in(part[sort].get("parts"))):
                yield replace(inner, bound=True)


def _file(held: Json) -> Media:
    kind, _, form = text_at(held, "mimeType").partition("/")
    data, name = text_at(held, "data").translate(_ALPHABET), text_at(held, "displayName")
    size = len(data) + len(text_at(held, "fileUri"))
    if kind == "image":
        width, height = pixels(f"data:,{_padded(data[: 1 << 20])}")
        return Media(kind, size, width=width, height=height, name=name)
    if kind == "audio":
        return Media(kind, size, seconds=seconds(_padded(data), form), name=name)
    if data and kind in ("application", "text"):
        return replace(file_of(_padded(data), size), name=name)
    return Media("file" if kind in ("application", "text", "") else kind, size, name=name)


def _padded(data: str) -> str:
    return data + "=" * (-len(data) % 4)


def _canonical(role: str, content: Json, ignore: Sequence[re.Pattern[str]]) -> dict[str, Any]:
    """Return the canonical form of a content: names in camelCase, base64 in one alphabet, without thoughts, signatures,
    and null or empty members. Unknown members stay. `ignore` removes volatile text."""
    said = (part for part in objects_in(content.get("parts")) if not part.get("thought"))
    parts = [kept for part in said if (kept := _canonical_part(part, ignore))]
    return stated({**content, "role": role, "parts": parts})


def _canonical_part(part: Json, ignore: Sequence[re.Pattern[str]]) -> dict[str, Any]:
    kept: dict[str, Any] = canonical_part(stated(part), SPEC.volatile_members, ignore)
    if "data" in (inline := object_of(kept.get("inlineData"))):
        kept["inlineData"] = {**inline, "data": as_text(inline["data"]).translate(_ALPHABET)}
    return kept


def render(conversation: Conversation, view: View, alternate: bool = False) -> list[bytes]:
    """Return the payload's raw messages in order; verbatim messages keep their bytes.

    `alternate`: the provider refuses two user contents in a row. Join those that are adjacent only in the payload.
    """
    payload: list[Placed] = []
    for each in placed(conversation, view, SPEC.user_message, _left):
        before = payload[-1] if payload else Placed(b"")
        is_neighbour = each.place == (0 if before.place is None else before.place + 1)
        if each.role == "model" and not (is_neighbour or before.own or before.role == "user"):
            payload.append(Placed(msgspec.json.encode(SPEC.user_message(OPENER)), own=True))
        payload.append(each)
    return joined(payload, member="parts") if alternate else [each.raw for each in payload]


def _left(raw: bytes, part: Altered) -> bytes | None:
    """Return a content with replaced texts, only the calls in `part`, and texts in place of its files. Return None if
    nothing is left."""
    calls = None if part.calls is None else dict(part.calls)
    edit = partial(_edit, iter(part.texts), calls, count(), iter(part.media))
    return edited(raw, edit, "parts") or None


def _edit(
    texts: Iterator[str],
    calls: Mapping[int, str] | None,
    called: Iterator[int],
    words: Iterator[str],
    part: dict[str, Any],
) -> dict[str, Any] | None:
    read = object_of(camel(part))
    if (before := text_of(read)) is not None:
        if (text := next(texts)) != before:
            return _with_text(part, text)
    elif _sort(read) == "functionCall" and calls is not None:
        arguments = calls.get(next(called))
        if arguments is None:
            return None
        if arguments != _call(read["functionCall"]).arguments:
            name = _name_of(part, "functionCall")
            # The signature may cover the old arguments.
            signed = {_name_of(part, "thoughtSignature"): UNSIGNED} if "thoughtSignature" in read else {}
            return {**part, name: {**part[name], "args": msgspec.Raw(arguments.encode())}, **signed}
    elif any(_media([read])) and (word := next(words, None)) is not None:
        return {"text": word}
    return part


# Answers


@dataclass(slots=True)
class GeminiEvents(EarlyFrames):
    """Steno's frames in Gemini's format: answers with an empty text. All clients accept such frames."""

    def keep_alive(self) -> bytes:
        return self._with(b"")

    def frame(self, kind: str, details: Mapping[str, Any], members: bytes = b"") -> bytes:
        return self._with(b"," + self.told(kind, details, members))

    @staticmethod
    def _with(members: bytes) -> bytes:
        return event(b'{"candidates":[{"content":{"role":"model","parts":[{"text":""}]},"index":0}]%b}' % members)


@dataclass(slots=True)
class GeminiEditor(AnswerEditor):
    """Editor of answers.

    Each event of a stream is a whole answer with the usage so far. The last event has a finish reason and the final
    usage. Steno adds `context_status` to the first event, and `context_status` and `context` to the last. Clients parse
    every line as data, so Steno sends no comments or named events. Clients drop a turn if one of its events has no
    part, so Steno's events have an empty text. Without `alt=sse` a stream is one array of answers. Steno then edits the
    array's first and last answer.
    """

    SPEC = SPEC
    EARLY = GeminiEvents
    NOTABLE = re.compile(rb'"(?:finish_?[rR]eason|prompt_?[fF]eedback|error)"')
    CONTENT = re.compile(
        rb'"text"\s*+:\s*+"[^"]|"(?:function_?[cC]all|inline_?[dD]ata|executable_?[cC]ode|tool_?[cC]all)"'
    )

    @classmethod
    def own_error(cls, error: StenoError) -> bytes:
        """Return the body of one of Steno's errors, with the error code in `details`."""
        info = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": error.code, "domain": "steno"}
        return _envelope(error.status, {"message": error.message, "details": [info]})

    @classmethod
    def refusal(cls, status: int, headers: Headers, body: bytes, now: float) -> bytes:
        """Return the body for a refusal. Its code is the provider's, or else the status; a lower status becomes 400."""
        said = provider_error(status, headers, body, now)
        names = ("message", "status", "details")
        given = {name: said[name] for name in names if isinstance(said.get(name), str | list)}
        return _envelope(said["code"] if isinstance(said["code"], int) else max(status, 400), given)

    def whole(self, body: bytes) -> bytes:
        if not body.lstrip().startswith(b"["):
            return super(GeminiEditor, self).whole(body)
        try:
            elements = [] if holds_more_values(body, MOST_VALUES) else split_array(body)
            pieces, place = [], 0
            for element in elements:
                start = body.index(element, place)
                pieces += [body[place:start], self._edited(RawObject(element))]
                place = start + len(element)
        except Unreadable:
            return body
        self._look_for_content(body)
        return b"".join((*pieces, body[place:]))

    def _edited(self, said: RawObject) -> bytes:
        if "error" in said:
            self._fail(said.text)
            return said.text
        ends = bool(self._take(said)) and not self.ended
        members = self.context.report if ends else b"" if self.begun else self.context.status
        self.begun, self.ended = True, self.ended or ends
        return said.with_status(members) if members else said.text


STATUSES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ABORTED",
    429: "RESOURCE_EXHAUSTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
"""Error names by status; see `_envelope` for other statuses."""


def _envelope(status: int, members: Mapping[str, Any]) -> bytes:
    word = STATUSES.get(status) or ("INVALID_ARGUMENT" if status < 500 else "INTERNAL")
    return msgspec.json.encode({"error": {"code": status, "status": word, **members}})


# Requests


class GeminiRequest(WireRequest, frozen=True):
    SPEC = SPEC

    @classmethod
    def asked_at(cls, source: RawObject, target: bytes) -> tuple[object, bool]:
        if (found := ADDRESS.match(target)) is None:
            return source.value("model"), source.value("stream") is True
        # Without `alt=sse` the answer is one JSON array.
        streams = found["method"] == b"streamGenerateContent" and re.search(rb"[?&]alt=sse(?:&|$)", target) is not None
        return unquote_to_bytes(found["model"]).decode("utf-8", "replace"), streams

    @classmethod
    def split(cls, source: RawObject, elements: tuple[bytes, ...]) -> tuple[tuple[bytes, ...], tuple[bytes, ...]]:
        for name in ("systemInstruction", "system_instruction"):
            if isinstance(source.value(name), dict):
                member = source.members[name]
                return (source.text[member.key_start : member.stop],), elements
        return (), elements

    @classmethod
    def members_in(cls, source: RawObject, elements: Sequence[bytes]) -> dict[str, Any]:  # noqa: ARG003
        choices, hands_off = _config(source).get("candidateCount"), None
        if any(source.value(name) for name in ("cachedContent", "cached_content")):
            hands_off = Reason(Code.SERVER_STATE)
        elif COMPACTION_PROMPT in source.text:
            parts = objects_in(object_of(_member(source, "systemInstruction")).get("parts"))
            if any(text_at(part, "text").lstrip().startswith(COMPACTION_PROMPT.decode()) for part in parts):
                hands_off = Reason(Code.CLIENT_COMPACTION)
        calling = object_of(object_of(_member(source, "toolConfig")).get("functionCallingConfig"))
        return {
            "answer": {"choices": choices if isinstance(choices, int) else 1},
            "hands_off": hands_off,
            "forbids_tools": calling.get("mode") == "NONE",
        }

    @property
    def is_typical(self) -> bool:
        return all(set(tool) <= {"functionDeclarations"} for tool in _tools(self.source)) and super().is_typical

    def declarations(self) -> Declarations:
        source = self.source
        calling = object_of(object_of(_member(source, "toolConfig")).get("functionCallingConfig"))
        tools = [*_tools(source)]
        declared = [each for tool in tools for each in objects_in(tool.get("functionDeclarations"))]
        others = ({name: held for name, held in tool.items() if name != "functionDeclarations"} for tool in tools)
        return Declarations(
            tools=tuple(
                tool_of(each, "parameters" if "parameters" in each else "parametersJsonSchema") for each in declared
            ),
            choice=text_at(calling, "mode").lower(),
            must_call=calling.get("mode") == "ANY",
            others=(*map(json_text, filter(None, others)), *unread(source, SPEC.declaring_members)),
        )


def _member(source: RawObject, name: str) -> object:
    """Return a member by its name in camelCase or snake_case. The keys in its value become camelCase."""
    snake = re.sub(r"([A-Z])", lambda found: "_" + found[1].lower(), name)
    return camel(source.value(name) if name in source else source.value(snake))


def _config(source: RawObject) -> dict[str, Any]:
    return object_of(_member(source, "generationConfig"))


def _tools(source: RawObject) -> Iterator[dict[str, Any]]:
    """Yield the tools of a list, or a single tool. Their keys become camelCase, except in schemas."""
    tools = source.value("tools")
    for tool in [tools] if isinstance(tools, dict) else objects_in(tools):
        yield object_of(camel(tool))


_VERSION = re.compile(r"gemini-(\d+)")
FREE = Encrypted(1 << 62, 1.0)
"""Cost of a signature up to Gemini 2.5: no tokens."""


@lru_cache(maxsize=1_024)
def token_rules(model: str, host: str = "") -> CountingRules:
    found = _VERSION.search(model.lower())
    is_new = found is None or int(found[1]) >= 3
    # Up to Gemini 2.0, and at Vertex, a content costs no tokens in addition to its parts.
    is_bare = "aiplatform" in host or re.search(r"gemini-(?:1|2\.0)", model.lower()) is not None
    return replace(
        rules_for(model, host),
        pictures=Tiles(1_090 if is_new else 258, 0),
        reply_prime=0,
        message=-1 if is_bare else 0,
        declares_apart=True,
        shows_schema=False,
        one_by_one=OneByOne(0, 0, 0, 0) if is_bare else OneByOne(0, 0, 8, 8),
        drops_reasoning=True,
        encrypted=Encrypted(100, 4.7) if is_new else FREE,
        files=Pages(525 if is_new else 258, unknown=525 if is_new else 258),
        variant="contents",
    )


GEMINI = WireFormat(SPEC, GeminiRequest, GeminiEditor, read_content, render, token_rules=token_rules)
