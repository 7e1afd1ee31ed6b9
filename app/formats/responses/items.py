"""Items of Responses: the table, and functions that read an item, write its canonical bytes, and render a view.

An item has a type. A message also has a role. A call and its output are separate items with the same id. A call of
a provider's own tool is one item, and this item has the result, too. A reasoning item must stay unchanged, directly
before the next item. Of the items before the provider's `compaction` item, the model reads only leading instructions.

Two raw messages are no items: the `instructions` member with its key, and an input that is a text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from app.compaction.view import Altered, Conversation, View
from app.conversation.authored_text import result_confidence
from app.conversation.messages import Kind, Media, Message, ToolCall
from app.conversation.tool_results import ResultConfidence
from app.formats.media import openai_media
from app.formats.raw_json import (
    Path,
    Unreadable,
    Where,
    as_text,
    decoded,
    decoded_object,
    json_text,
    objects_in,
    spliced,
    split_array,
    text_at,
)
from app.formats.reader import Draft, canonical_content, meant_by, of_user, stated, without, written_alike
from app.formats.rendering import MESSAGE_PARTS, Breakpoints, Parts, Place, Placed, joined, kept_breakpoint, placed
from app.formats.spec import CACHE_CONTROL, PROMPT_CACHE_BREAKPOINT, Ending, FormatSpec, SummarySpec

Json = Mapping[str, Any]

INSTRUCTIONS = re.compile(rb'"instructions"[ \t\n\r]*+:[ \t\n\r]*+')
"""Pattern of the key of the `instructions` member."""
PLACED = frozenset({"additional_tools", "configuration_update"})
"""Types of items that change the tools or the configuration of the following turns."""
COMPACTION = "compaction"
"""Type of the item with which the provider replaces all items before it."""
REASONING = "reasoning"


class CallType(NamedTuple):
    """Type of call whose result is an item of its own."""

    name: str
    """Name of the tool; empty if each item names its tool."""
    member: str
    """Member with the arguments, which are a text or an object."""
    id: str = "call_id"
    long_text: tuple[str, ...] = ()
    """Path of the long text in an arguments object. Steno writes shortened arguments at this path."""


class OutputType(NamedTuple):
    """Names of the members with the result and with the call's id, for one type of item."""

    member: str
    id: str = "call_id"


CALLS = {
    "function_call": CallType("", "arguments"),
    "custom_tool_call": CallType("", "input"),
    "mcp_approval_request": CallType("", "arguments", "id"),
    "computer_call": CallType("computer", "action"),
    "local_shell_call": CallType("local_shell", "action", long_text=("command",)),
    "shell_call": CallType("shell", "action", long_text=("commands",)),
    "apply_patch_call": CallType("apply_patch", "operation", long_text=("diff",)),
    "program": CallType("program", "code"),
    "tool_search_call": CallType("tool_search", "arguments"),
}
OUTPUTS = {
    "function_call_output": OutputType("output"),
    "custom_tool_call_output": OutputType("output"),
    "mcp_approval_response": OutputType("reason", "approval_request_id"),
    "computer_call_output": OutputType("output"),
    # In this type, `id` is the `call_id` of the call.
    "local_shell_call_output": OutputType("output", "id"),
    "shell_call_output": OutputType("output"),
    "apply_patch_call_output": OutputType("output"),
    "program_output": OutputType("result"),
    "tool_search_output": OutputType("tools"),
}
SETTLED = {
    "web_search_call": ("web_search", "action"),
    "file_search_call": ("file_search", "queries"),
    "code_interpreter_call": ("code_interpreter", "code"),
    "image_generation_call": ("image_generation", "revised_prompt"),
    "mcp_call": ("", "arguments"),
}
"""Name of the tool, and member with the arguments, by type of a provider's own call. The result is in the same item."""
SEALED = frozenset({REASONING, COMPACTION, "program", "tool_search_output", "mcp_list_tools", *PLACED})
"""Types of items that Steno sends unchanged or drops, because they are signed, encrypted, or lists of tools."""
NAMED_BY_ID = frozenset({"mcp_approval_request", "local_shell_call_output", "item_reference"})
"""Types of items whose `id` links them to another item. Their digests include `id`, although `id` is volatile."""
SHORT = 200
"""Maximum characters of an arguments object without `long_text`. Steno cannot shorten a longer object, so it sends the
item unchanged or drops it."""

VOLATILE_PART_KEYS = frozenset({"annotations", "logprobs", PROMPT_CACHE_BREAKPOINT, CACHE_CONTROL})
"""Members of parts that clients move or drop between turns. Digests do not depend on them."""
SEALING_KEYS = frozenset({"encrypted_content", "fingerprint"})
"""Keys with encrypted or signed content, which clients drop and restore. Digests do not depend on them."""
TEXT_PARTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text", None)

OWN_CALLS = frozenset(name for name in (*CALLS, *SETTLED) if name.endswith("_call"))
"""Types of items with which the model calls a tool."""
_ENDED: tuple[Path, ...] = ((Where("type", ("response.completed", "response.incomplete")), "response"), ())
"""Paths of the response object: in the frame that ends a stream, and in an unstreamed answer."""
_MESSAGE: Path = ("output", Where("type", ("message",)), "content")

SPEC = FormatSpec(
    name="responses",
    page="https://platform.openai.com/docs/api-reference/responses",
    path=b"/v1/responses",
    other_paths=(b"/v1/conversations",),
    counting_path=b"/v1/responses/input_tokens",
    history="input",
    user_message=lambda text: {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]},
    output_members=("max_output_tokens",),
    declaring_members=("tools", "tool_choice", "text"),
    cached_members=("tools", "parallel_tool_calls"),
    schema_members=("text",),
    extending_members=("image",),
    client_tools=frozenset({"function", "custom"}),
    roles={**dict.fromkeys(("system", "developer"), Kind.INSTRUCTIONS), "user": Kind.USER, "assistant": Kind.ASSISTANT},
    volatile_members=frozenset({"id", "status", "created_by", "internal_chat_message_metadata_passthrough"}),
    beside=INSTRUCTIONS,
    answer_members=("response",),
    whole=(("output",),),
    texts=((Where("type", ("response.output_text.delta",)), "delta"),),
    late_texts=tuple((*at, *_MESSAGE, "text") for at in _ENDED),
    calls=(
        (Where("type", ("response.output_item.added",)), "item", Where("type", OWN_CALLS), "type"),
        *((*at, "output", Where("type", OWN_CALLS), "type") for at in _ENDED),
    ),
    refusals=(
        (Where("type", ("response.refusal.delta", "response.refusal.done")), "type"),
        *((*at, *_MESSAGE, Where("type", ("refusal",)), "type") for at in _ENDED),
    ),
    reasons=tuple((*at, *reason) for at in _ENDED for reason in (("incomplete_details", "reason"), ("status",))),
    assumed_reason="completed",
    # Keys: the response's status, or the reason of an incomplete response.
    endings={
        "completed": Ending.FINISHED,
        "max_output_tokens": Ending.CUT_OFF,
        **dict.fromkeys(("content_filter", "refusal"), Ending.REFUSED),
    },
    summary=SummarySpec(
        quoting=lambda instructions, transcript: {"instructions": instructions, "input": transcript},
        forbidding=(("tools", "tool_choice", "none"),),
        own_members=frozenset(
            {"model", "input", "instructions", "max_output_tokens", "stream", "store"}
            | {"tools", "tool_choice", "parallel_tool_calls", "background"}
        ),
        optional=("reasoning", "store", "stream"),
        caps=("max_output_tokens", "max_output_tokens"),
        least_output=16,
        restrained=lambda _: {"reasoning": {"effort": "low"}},
        always_sent={"stream": True, "store": False},
    ),
)


# Items

_decode_text = msgspec.json.Decoder(str).decode


def read_item(raw: bytes, ignore: Sequence[re.Pattern[str]] = ()) -> Draft:
    """Parse a raw message. Raises `Unreadable`."""
    if (text := _bare_text(raw)) is not None:
        kind = Kind.INSTRUCTIONS if INSTRUCTIONS.match(raw) else Kind.USER
        role = "developer" if kind is Kind.INSTRUCTIONS else "user"
        canonical = written_alike({"role": role, "content": without(text, ignore)})
        confidence = result_confidence((text,)) if kind is Kind.USER else ResultConfidence.NONE
        return Draft(Message(kind, role, (text,), raw, b"", result_confidence=confidence), canonical)
    if raw.startswith(b"{") and (items := _compacted(raw)):
        return _read_compacted(raw, items)
    item = decoded_object(raw, "An item")
    return Draft(_read(raw, item), canonical_item(item, ignore))


def type_of(item: Json) -> str:
    """Return the type of an item. Messages and references by id may have no `type`. Raises `Unreadable`."""
    type_ = item.get("type")
    if isinstance(type_, str):
        return type_
    if isinstance(item.get("role"), str):
        return "message"
    if type_ is None and isinstance(item.get("id"), str):
        return "item_reference"
    raise Unreadable("An item has neither a type nor a role.")


def texts_of(item: Json) -> tuple[str, ...]:
    """Return the texts of a message or a result, in order."""
    type_ = type_of(item)
    if type_ in SEALED or not (type_ == "message" or type_ in OUTPUTS):
        return ()
    held = item.get(_holder(type_))
    texts = [held] if isinstance(held, str) else [part[key] for each in objects_in(held) for part, key in _texts(each)]
    if type_ == "mcp_approval_response":
        texts.insert(0, "approved" if item.get("approve") is True else "denied")
    return tuple(texts)


def _holder(type_: str) -> str:
    """Return the name of the member with the text or the parts of a message or a result."""
    return OUTPUTS[type_].member if type_ in OUTPUTS else "content"


def _text_keys(part: Any) -> tuple[str, ...]:
    match part:
        case {"stdout": _} | {"stderr": _}:
            return "stdout", "stderr"
        case {"type": "refusal"}:
            return ("refusal",)
        case dict() if part.get("type") in TEXT_PARTS:
            return ("text",)
        case _:
            return ()


def as_item(raw: bytes) -> bytes:
    """Return a raw message as an item: a text becomes a user message."""
    return b'{"type":"message","role":"user","content":%b}' % raw if raw.startswith(b'"') else raw


def _bare_text(raw: bytes) -> str | None:
    if not raw.startswith(b'"'):
        return None
    found = INSTRUCTIONS.match(raw)
    try:
        return decoded(raw[found.end() :] if found else raw, _decode_text)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Unreadable(str(error)) from error


def _read(raw: bytes, item: Json) -> Message:
    type_ = type_of(item)
    if type_ in CALLS:
        return _call(raw, item, type_)
    if type_ in OUTPUTS:
        return _output(raw, item, type_)
    texts, media = texts_of(item), tuple(_media(item))
    if type_ == "message":
        role = str(item.get("role"))
        kind = SPEC.roles.get(role, Kind.OTHER)
        kind, confidence = of_user(kind, texts, plain=not media)
        return Message(kind, role, texts, raw, b"", media=media, result_confidence=confidence)
    if type_ == REASONING:
        thoughts, size = tuple(_thoughts(item)), len(as_text(item.get("encrypted_content")))
        return Message(
            Kind.ASSISTANT, "assistant", (), raw, b"", thoughts=thoughts, sealed=True, bound=True, encrypted=size
        )
    if type_ in PLACED:
        tools = item.get("tools")
        texts = (json_text(tools),) if tools else ()
        return Message(Kind.INSTRUCTIONS, "developer", texts, raw, b"", sealed=True)
    if type_ in SETTLED:
        return _settled(raw, item, type_, media)
    if type_ == "mcp_list_tools":
        return Message(Kind.ASSISTANT, "assistant", (json_text(item.get("tools")),), raw, b"", sealed=True)
    return Message(Kind.OTHER, type_, (json_text(item),), raw, b"")


def _call(raw: bytes, item: Json, type_: str) -> Message:
    known = CALLS[type_]
    held = item.get(known.member)
    if type_ == "computer_call" and held is None:
        held = item.get("actions")
    arguments = held if isinstance(held, str) else json_text(held)
    id_ = item.get(known.id)
    name, kept = known.name or as_text(item.get("name")), isinstance(item.get("id"), str)
    call = ToolCall(as_text(id_), name, arguments, kept=kept)
    fixed = isinstance(held, dict | list) and not known.long_text and type_ != "tool_search_call"
    sealed = type_ in SEALED or (fixed and len(arguments) > SHORT)
    return Message(Kind.ASSISTANT, "assistant", (), raw, b"", calls=(call,), sealed=sealed)


def _output(raw: bytes, item: Json, type_: str) -> Message:
    known = OUTPUTS[type_]
    id_, name = item.get("call_id") or item.get(known.id), item.get("name")
    texts = texts_of(item)
    if type_ == "tool_search_output":
        texts = (json_text(item.get("tools")),)
    return Message(
        kind=Kind.RESULT,
        role="tool",
        texts=texts,
        raw=raw,
        digest=b"",
        name=as_text(name),
        answers=(as_text(id_),),
        media=tuple(_media(item)),
        sealed=type_ in SEALED,
    )


def _settled(raw: bytes, item: Json, type_: str, media: tuple[Media, ...]) -> Message:
    """Return the message of a call that the provider ran. The call is in `settled`, its results are in `texts`."""
    name, member = SETTLED[type_]
    held = item.get(member)
    arguments = held if isinstance(held, str) else json_text(held) if held else ""
    call = ToolCall(as_text(item.get("id")), name or as_text(item.get("name")), arguments)
    return Message(Kind.ASSISTANT, "assistant", tuple(_found(item)), raw, b"", settled=(call,), media=media)


def _found(item: Json) -> Iterator[str]:
    for member in ("output", "error"):
        if held := item.get(member):
            yield held if isinstance(held, str) else json_text(held)
    for member, keys in (("results", ("filename", "text")), ("outputs", ("logs",))):
        for each in objects_in(item.get(member)):
            yield from (text for key in keys if isinstance(text := each.get(key), str))


def is_media(part: Json) -> bool:
    return not _text_keys(part)


def _media(item: Json) -> Iterator[Media]:
    for member in MESSAGE_PARTS:
        held = item.get(member)
        is_alone = isinstance(held, dict)
        for part in objects_in([held] if is_alone else held):
            if is_media(part):
                yield replace(read_media(part), bound=is_alone)
    if isinstance(picture := item.get("result"), str) and item.get("type") == "image_generation_call":
        yield read_media({"type": "input_image", "image_url": f"data:image/png;base64,{picture}"})
    for each in objects_in(item.get("outputs")):
        if each.get("type") == "image":
            yield read_media({"type": "input_image", "image_url": each.get("url")})


def _thoughts(item: Json) -> Iterator[str]:
    for member in ("summary", "content"):
        for part in objects_in(item.get(member)):
            if isinstance(text := part.get("text"), str):
                yield text


def compacted_upto(elements: Sequence[bytes]) -> int:
    """Return the number of items up to and including the last `compaction` item; 0 if there is none."""
    for place in range(len(elements), 0, -1):
        raw = elements[place - 1]
        if b'"compaction"' in raw and type_of(decoded_object(raw, "An item")) == COMPACTION:
            return place
    return 0


def _compacted(raw: bytes) -> list[dict[str, Any]]:
    """Return the items of a raw message that ends with a `compaction` item; empty for any other raw message."""
    if b'"compaction"' not in raw:
        return []
    try:
        items = [decoded_object(each, "An item") for each in split_array(b"[" + raw + b"]")]
    except Unreadable:
        return []
    return items if type_of(items[-1]) == COMPACTION else []


def _read_compacted(raw: bytes, items: Sequence[Json]) -> Draft:
    """Return one message for a history that the provider compacted. Steno never moves this message. Before the
    `compaction` item, the model reads only the leading instructions."""
    leading: list[Message] = []
    for item in items[:-1]:
        message = _read(b"", item)
        if message.kind is not Kind.INSTRUCTIONS:
            break
        leading.append(message)
    texts = tuple(text for message in leading for text in message.texts)
    sealed = as_text(items[-1].get("encrypted_content"))
    canonical = written_alike({"type": COMPACTION, "sealed": sealed, "leading": texts})
    read = Message(Kind.INSTRUCTIONS, "developer", texts, raw, b"", sealed=True, encrypted=len(sealed))
    return Draft(read, canonical)


# Canonical form


def canonical_item(item: Json, ignore: Sequence[re.Pattern[str]] = ()) -> bytes:
    """Return equal bytes for items with the same meaning, without `SPEC.volatile_members`.

    A text equals one part with that text. Null and empty members equal missing ones. Arguments are compared by value.
    The bytes omit the content of reasoning, because clients may drop it after the turn. Unknown keys stay. `ignore`
    removes volatile text, such as a date that a client injects.
    """
    type_ = type_of(item)
    if type_ == REASONING:
        return written_alike({"type": REASONING})
    known = CALLS.get(type_)
    kept: dict[str, Any] = {}
    for key, value in item.items():
        if (key in SPEC.volatile_members and not (key == "id" and type_ in NAMED_BY_ID)) or key in SEALING_KEYS:
            continue
        if key in ("content", "output"):
            kept[key] = canonical_content(value, VOLATILE_PART_KEYS, TEXT_PARTS, ignore)
        elif known and key == known.member and isinstance(value, str):
            kept[key] = meant_by(value)
        elif not (key == "type" and type_ == "message"):
            kept[key] = value
    return written_alike(stated(kept))


MEDIA = {"input_image": "image", "computer_screenshot": "image", "input_file": "file", "input_audio": "audio"}
HOLDING = ("image_url", "file_data", "file_url", "file_id", "data")
"""Members with the data, URL or id of a part."""


def read_media(part: Mapping[str, Any]) -> Media:
    type_ = text_at(part, "type")
    kind = MEDIA.get(type_, type_)
    inner = part.get("input_audio")
    members = inner if isinstance(inner, dict) else part
    size = sum(len(text_at(members, name)) for name in HOLDING)
    return openai_media(kind, members, text_at(members, "image_url"), size)


def _text_type(item: Json) -> str | None:
    if type_of(item) == "message":
        return None if item.get("role") == "assistant" else "input_text"
    return "input_text" if type_of(item) in ("function_call_output", "custom_tool_call_output") else None


BREAKPOINTS = Breakpoints(
    (PROMPT_CACHE_BREAKPOINT,), frozenset({"input_text", "input_image", "input_file"}), _text_type
)


def render(conversation: Conversation, view: View, alternate: bool = False) -> list[bytes]:
    """Return the payload's raw messages in order; verbatim messages keep their bytes.

    `alternate`: the model refuses two user messages in a row. Join those that are adjacent only in the payload.
    """
    payload = _unbound(conversation, placed(conversation, view, SPEC.user_message, _left))
    return joined(payload, "input_text", as_object=as_item) if alternate else [each.raw for each in payload]


def _unbound(conversation: Conversation, payload: Sequence[Placed]) -> list[Placed]:
    """Remove the ids of items whose preceding reasoning is gone: an id makes the provider look for this reasoning."""
    messages = conversation.transcript.messages
    before: int | None = None
    left: list[Placed] = []
    for each in payload:
        place = each.place
        if place and messages[place - 1].bound and before != place - 1:
            item = decoded_object(each.raw, "An item")
            if "id" in item and type_of(item) not in NAMED_BY_ID:
                each = each._replace(raw=spliced(each.raw, {}, ("id",)))  # noqa: PLW2901
        left.append(each)
        before = place
    return left


def _texts(part: dict[str, Any]) -> Iterator[Place]:
    return ((part, key) for key in _text_keys(part) if isinstance(part.get(key), str))


def _in_words(part: dict[str, Any], words: Iterator[str]) -> dict[str, Any]:
    return {"type": "input_text", "text": next(words), **kept_breakpoint(part)} if is_media(part) else part


_PARTS = Parts(_texts, _in_words, lambda part: None if part.get("text") == "" else part)


def _left(raw: bytes, part: Altered) -> bytes | None:
    """Return an item with replaced texts, texts in place of its media, or replaced arguments of its call. Return None
    for a removed call."""
    if raw.startswith(b'"'):
        return msgspec.json.encode(part.texts[0])
    item = decoded_object(raw, "An item")
    type_ = type_of(item)
    if type_ not in CALLS:
        texts = part.texts[1:] if type_ == "mcp_approval_response" else part.texts
        member = _holder(type_)
        left, parts = _PARTS.altered(raw, texts, part.media, member), objects_in(item.get(member))
        # If all parts became empty, the first part stays with an empty text.
        return left or (spliced(raw, {member: msgspec.json.encode([{**parts[0], "text": ""}])}) if parts else raw)
    if part.calls is None:
        return raw
    if not part.calls:
        return None
    [(_, arguments)] = part.calls
    member = CALLS[type_].member
    held = _with_arguments(item.get(member), arguments, CALLS[type_].long_text)
    return raw if held == item.get(member) else spliced(raw, {member: msgspec.json.encode(held)})


def _with_arguments(held: Any, arguments: str, long_text: Sequence[str]) -> Any:
    """Return arguments as text or JSON, like `held`. If an object has a long text, only the long text is replaced."""
    if not isinstance(held, dict | list):
        return arguments
    if msgspec.json.encode(held).decode() == arguments:
        return held
    if not long_text or not isinstance(held, dict):
        return json.loads(arguments)
    [key] = long_text
    return {**held, key: [arguments] if isinstance(held.get(key), list) else arguments}
