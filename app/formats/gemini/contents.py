"""Contents: read a content, write its canonical bytes, and render a view as contents.

A content has a role and parts, and each part holds one text, call, result or file. A user's content holds the results.
A result names its call's tool, and since Gemini 3 the call's id; without ids results answer the calls in order. The
`systemInstruction` is read as a content of the role `system`.

A provider accepts two contents of one role in a row, but calls only after a user's content. So Steno inserts a user's
text before a content of the model that would come first, or that follows another one without having done so in the
client's history. A signature is a member of the part that it signs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import count
from typing import Any

import msgspec
from msgspec.structs import replace

from app.compaction.view import Altered, Conversation, View
from app.conversation.client_context import is_client_text
from app.conversation.messages import Kind, Media, Message, ToolCall
from app.conversation.tool_results import ResultConfidence
from app.formats.gemini.spec import SPEC, UNSIGNED, camel
from app.formats.media import file_of, pixels, seconds
from app.formats.raw_json import Unreadable, as_text, decoded_object, json_text, object_of, objects_in, text_at
from app.formats.reader import Draft, canonical_part, of_user, stated, written_alike
from app.formats.rendering import OPENER, Placed, edited, joined, placed

Json = Mapping[str, Any]

DATA = ("functionCall", "functionResponse", "inlineData", "fileData", "codeExecutionResult", "text")
"""Members that tell the type of a part; the first one present counts."""
_ALPHABET = str.maketrans("-_", "+/", "=")


def read_content(raw: bytes, ignore: Sequence[re.Pattern[str]] = ()) -> Draft:
    """Parse a content. Raises `Unreadable` if it is none."""
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
        # The id, or else the tool's name.
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
    """Return the text of a part; for a result, its only member if that is a text, or else its JSON."""
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
    """Return a part with another text and its keys' case unchanged; None for an empty text, which is refused."""
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
    """Return the payload's raw messages in order; verbatim ones keep their bytes.

    `alternate` is for a provider that refuses two user contents in a row.
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
    """Return a content with other texts, only the remaining calls, and its files replaced by words; None if nothing is
    left."""
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
