"""Anthropic's Messages: the table, and functions that read a message, write its canonical bytes, and render a view.

A raw message is the value of `system` (a text or a list of blocks) or an object of `messages`. If the provider has
compacted the history, all objects through the compaction are one raw message. The provider ignores earlier objects.

In a rendered view verbatim messages keep their bytes.
1. Instructions in the history may stand only between a user's and an assistant's message, or last. If their neighbours
   are gone, Steno moves them to the next such position. Steno never moves instructions that expired by `clear_at`. It
   drops them in earlier turns. It keeps them in the current turn, because signatures of thinking may cover them.
2. A history must begin with a user's message.
3. Cache breakpoints stay on their blocks. A summary gets the last breakpoint of the messages that it replaces. Carried
   and pinned messages lose their breakpoints, because a one-hour breakpoint may not follow a five-minute one.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping, Sequence
from functools import partial
from itertools import count, pairwise
from typing import Any

import msgspec
from msgspec.structs import replace

from app.compaction.view import Altered, Carried, Conversation, Pinned, Summary, Verbatim, View
from app.conversation.authored_text import result_confidence
from app.conversation.client_context import is_client_text
from app.conversation.messages import Kind, Media, Message, ToolCall
from app.conversation.tool_results import ResultConfidence
from app.formats.media import file_of, pixels
from app.formats.raw_json import Unreadable, Where, decoded_value, json_text, object_of, objects_in, text_at
from app.formats.reader import Draft, canonical_part, stated, written_alike
from app.formats.rendering import (
    OPENER,
    Breakpoints,
    Parts,
    Place,
    Placed,
    edited,
    joined,
    kept_breakpoint,
    marks_in,
    placed,
)
from app.formats.spec import CACHE_CONTROL, Ending, FormatSpec, SummarySpec

Json = Mapping[str, Any]

SYSTEM = "system"
"""Member with the instructions (a text or a list of blocks), and the role of instructions in the history."""

SPEC = FormatSpec(
    name="messages",
    page="https://docs.anthropic.com/en/api/messages",
    path=b"/v1/messages",
    other_paths=(b"/v1/complete",),
    counting_path=b"/v1/messages/count_tokens",
    largest_body=32_000_000,
    history="messages",
    user_message=lambda text: {"role": "user", "content": text},
    output_members=("max_tokens",),
    declaring_members=("tools", "tool_choice", "mcp_servers", "output_config", "output_format"),
    tool_members=("tools", "mcp_servers"),
    cache_key_member="",
    schema_members=("output_config", "output_format"),
    extending_members=("mcp_servers", "container"),
    client_tools=frozenset({None, "custom"}),
    roles={SYSTEM: Kind.INSTRUCTIONS, "user": Kind.USER, "assistant": Kind.ASSISTANT},
    volatile_members=frozenset({"cache_control", "citations"}),
    answer_members=("message",),
    whole=(("content",),),
    texts=(("content", "text"), ("content_block", "text"), ("delta", "text")),
    calls=tuple((at, Where("type", ("tool_use",)), "type") for at in ("content", "content_block")),
    reasons=(("delta", "stop_reason"), ("stop_reason",)),
    assumed_reason="end_turn",
    endings={
        **dict.fromkeys(("end_turn", "stop_sequence"), Ending.FINISHED),
        "max_tokens": Ending.CUT_OFF,
        "refusal": Ending.REFUSED,
    },
    summary=SummarySpec(
        quoting=lambda instructions, transcript: {
            SYSTEM: instructions,
            "messages": [{"role": "user", "content": transcript}],
        },
        # `tool_choice` stays: changing it would invalidate the cache.
        headers=((b"anthropic-version", b"2023-06-01"),),
        own_members=frozenset(
            {"model", "messages", SYSTEM, "max_tokens", "stream", "tools", "tool_choice", "thinking"}
        ),
        optional=("thinking", "stream"),
        other_errors={"thinking": re.compile(rb"thinking\W{0,3}blocks?")},
        caps=("max_tokens", "max_tokens"),
        reasoning=re.compile(r"(^|[/.])(o\d|gpt-5)|claude-[a-z]+-([5-9]|\d\d)(?!\d)"),
        restrained=lambda _: {"thinking": {"type": "disabled"}},
    ),
)


MARK = CACHE_CONTROL
SEALED = frozenset({"thinking", "redacted_thinking"})
"""Types of blocks that sign everything before them. Steno sends such a block unchanged and in place, or drops it."""
SERVER_USES = frozenset({"server_tool_use", "mcp_tool_use"})
"""Types of calls that the provider runs itself. The assistant's messages also contain their results."""
_RESULT = "tool_result"
_SERVER_RESULT = "_tool_result"
_READ = frozenset({"text", "title", "url", "stdout", "stderr", "content"})
"""Members that the model reads in results of the provider's own tools, at any depth."""


def decoded_messages(raw: bytes) -> list[dict[str, Any]]:
    """Parse one message, or several separated by commas. Raises `Unreadable`."""
    messages = decoded_value(b"[%b]" % raw)
    if not isinstance(messages, list) or len(objects_in(messages)) < len(messages):
        raise Unreadable("A message is no object.")
    return messages


def blocks_of(content: object) -> list[dict[str, Any]]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return objects_in(content)


def is_result(block: Json) -> bool:
    return block.get("type") == _RESULT


def is_server_result(block: Json) -> bool:
    kind = block.get("type")
    return isinstance(kind, str) and kind.endswith(_SERVER_RESULT)


def is_compaction(block: Json) -> bool:
    """Return whether a block is the provider's own summary. An empty block does not count: its summary failed."""
    return block.get("type") == "compaction" and bool(block.get("content") or block.get("encrypted_content"))


def texts_in(message: dict[str, Any]) -> Iterator[Place]:
    """Yield the place of each text of a message, in order: the object that contains the text, and the text's key."""
    if isinstance(message.get("content"), str):
        yield message, "content"
    else:
        for block in blocks_of(message.get("content")):
            yield from texts_in_block(block)


def texts_in_block(block: dict[str, Any]) -> Iterator[Place]:
    match block:
        case {"type": "text", "text": str()}:
            yield block, "text"
        case {"type": "document", "source": {"type": "text", "data": str()} as source}:
            yield source, "data"
        case {"type": "document", "source": {"type": "content"} as source}:
            yield from texts_in(source)
        case {"type": "tool_result" | "search_result"}:
            yield from texts_in(block)
        case {"type": "compaction", "content": str()}:
            yield block, "content"
        case {"type": str()} if is_server_result(block):
            yield from _texts_in_result(block.get("content"))


def _texts_in_result(value: object) -> Iterator[Place]:
    if isinstance(value, list):
        for item in value:
            yield from _texts_in_result(item)
    elif isinstance(value, dict):
        for key, held in value.items():
            if isinstance(held, str):
                if key in _READ or (key == "data" and value.get("type") == "text"):
                    yield value, key
            else:
                yield from _texts_in_result(held)


FILES = frozenset({"document", "container_upload"})
READ = SEALED | SERVER_USES | {"text", "tool_use", "search_result", "compaction", "fallback", "mcp_tool_listing"}
"""Types of blocks that are not media."""


def media_in(content: object) -> Iterator[Media]:
    for block in blocks_of(content):
        match block:
            case {"type": "image"}:
                yield _image(block.get("source"))
            case {"type": "tool_result"}:
                yield from media_in(block.get("content"))
            case {"type": "document", "source": {"type": "text"}}:
                pass
            case {"type": "document", "source": {"type": "content", "content": held}}:
                yield from media_in(held)
            case {"type": "document", "source": {"type": "base64", "data": str(data)}}:
                yield replace(file_of(data), name=text_at(block, "title"))
            case {"type": str(kind)} if kind not in READ and not is_server_result(block):
                yield Media("file" if kind in FILES else kind, _size(block))


def _image(source: object) -> Media:
    match source:
        case {"type": "base64", "data": str(data)}:
            width, height = pixels(f"data:,{data[: 1 << 20]}")
            return Media("image", len(data), width=width, height=height)
        case _:
            return Media("image", _size(source))


def _size(held: object) -> int:
    match held:
        case str():
            return len(held)
        case Mapping():
            return sum(_size(value) for value in held.values())
        case list():
            return sum(_size(value) for value in held)
        case _:
            return 0


BREAKPOINTS = Breakpoints(
    (MARK,),
    frozenset({"text", "image", "document", "search_result", "tool_use", "tool_result"}),
    lambda _: "text",
)


_PASSED_ON = ("document", "search_result")
"""Types of blocks with quoted content. In a message with tool results, a tool may have returned such a block."""


def is_beside(raw: bytes) -> bool:
    """Return whether a raw message is the value of `system`."""
    return raw[:1] in (b'"', b"[")


def read_message(raw: bytes, ignore: Sequence[re.Pattern[str]] = ()) -> Draft:
    """Parse a raw message. Raises `Unreadable`."""
    if is_beside(raw):
        messages = decoded_messages(b'{"role":"system","content":%b}' % raw)
    else:
        messages = decoded_messages(raw)
    meaning = [_canonical(message, ignore) for message in messages]
    if len(messages) > 1 or any(map(is_compaction, blocks_of(messages[0].get("content")))):
        return Draft(_compacted(messages, raw), written_alike(meaning))
    return Draft(_read(messages[0], raw), written_alike(meaning[0]))


def _read(message: dict[str, Any], raw: bytes) -> Message:
    role = message.get("role")
    if not isinstance(role, str):
        raise Unreadable("A message has no role.")
    blocks = blocks_of(message.get("content"))
    expires = role == SYSTEM and message.get("clear_at") == "next_user_message"
    kind = Kind.OTHER if expires else SPEC.roles.get(role, Kind.OTHER)
    places = tuple(texts_in(message))
    texts = tuple(holder[key] for holder, key in places)
    answers = tuple(text_at(block, "tool_use_id") for block in blocks if is_result(block)) if kind is Kind.USER else ()
    passed_on = _passed_on(blocks, places) if kind is Kind.USER else ()
    beside: tuple[int, ...] = ()
    if kind is Kind.USER and _is_client_text(blocks):
        kind = Kind.RESULT if answers else Kind.CLIENT
        beside = tuple(place for place in range(len(texts)) if place not in passed_on) if answers else ()
        passed_on = ()
    returned = {block.get("tool_use_id") for block in blocks if is_server_result(block)}
    served = [block for block in blocks if block.get("type") in SERVER_USES]
    return Message(
        kind=kind,
        role=role,
        texts=texts,
        raw=raw,
        digest=b"",
        calls=tuple(_call(block) for block in blocks if block.get("type") == "tool_use"),
        answers=answers,
        owners=_owners(blocks) if answers else (),
        failed=_failed(blocks) if answers else (),
        settled=tuple(map(_call, served)),
        media=tuple(media_in(message.get("content"))),
        thoughts=tuple(_thoughts(blocks)),
        passed_on=passed_on,
        beside=beside,
        result_confidence=result_confidence(texts)
        if kind is Kind.USER and all(block.get("type") == "text" for block in blocks)
        else ResultConfidence.NONE,
        encrypted=sum(
            len(text_at(block, "signature")) + len(text_at(block, "data")) for block in blocks if is_sealed(block)
        ),
        sealed=expires or (bool(blocks) and all(map(is_sealed, blocks))),
        expires=expires,
        signed_thinking=any(block.get("type") in SEALED for block in blocks),
        # True for a paused turn: the assistant's next message begins with the result of the provider's tool.
        bound=any(block.get("id") not in returned for block in served),
    )


def _is_client_text(blocks: Sequence[Json]) -> bool:
    """Return whether a user message has only tool results, their documents and text that the client injected."""
    holds_results = any(map(is_result, blocks))
    came = ("tool_result", *_PASSED_ON) if holds_results else ()
    said = [block for block in blocks if block.get("type") not in came]
    if not said:
        return holds_results
    return all(block.get("type") == "text" for block in said) and is_client_text(
        [text_at(block, "text") for block in said]
    )


def _owners(blocks: Sequence[dict[str, Any]]) -> tuple[int, ...]:
    """Return, for each text, the index of its tool result; -1 without one. Empty if the first result has all texts."""
    owners = list[int]()
    results = count()
    for block in blocks:
        owner = next(results) if is_result(block) else -1
        owners += [owner for _ in texts_in({"content": [block]})]
    return tuple(owners) if any(owners) else ()


def _failed(blocks: Sequence[Json]) -> tuple[int, ...]:
    results = filter(is_result, blocks)
    return tuple(place for place, block in enumerate(results) if block.get("is_error") is True)


def _passed_on(blocks: Sequence[Json], places: Sequence[Place]) -> tuple[int, ...]:
    """Return the indexes of texts that are not in text blocks but in other blocks, such as results and documents."""
    own = {id(block) for block in blocks if block.get("type") == "text"}
    if len(own) == len(blocks):
        return ()
    return tuple(place for place, (holder, _) in enumerate(places) if id(holder) not in own)


def _compacted(messages: Sequence[dict[str, Any]], raw: bytes) -> Message:
    """Return one message for a history that the provider compacted. The message's kind is `INSTRUCTIONS`, because Steno
    never moves or cuts instructions. The message has only the texts from the last compaction on."""
    last = max(i for i, message in enumerate(messages) if holds_compaction(message))
    blocks = blocks_of(messages[last].get("content"))
    first = max(place for place, block in enumerate(blocks) if is_compaction(block))
    read = [{"content": blocks[first:]}, *messages[last + 1 :]]
    return Message(
        kind=Kind.INSTRUCTIONS,
        role="assistant",
        texts=tuple(holder[key] for message in read for holder, key in texts_in(message)),
        raw=raw,
        digest=b"",
        media=tuple(media for message in read for media in media_in(message.get("content"))),
    )


def holds_compaction(message: Json) -> bool:
    return any(map(is_compaction, blocks_of(message.get("content"))))


def is_sealed(block: Json) -> bool:
    return block.get("type") in SEALED


def _call(block: Json) -> ToolCall:
    return ToolCall(text_at(block, "id"), text_at(block, "name"), written(block.get("input")))


def written(arguments: object) -> str:
    return json_text({} if arguments is None else arguments)


def _thoughts(blocks: Sequence[Json]) -> list[str]:
    """Return texts that the model reads and that Steno never quotes: thinking, and lists of MCP tools."""
    thoughts = [text for block in blocks if (text := text_at(block, "thinking"))]
    listed = (block.get("tools") for block in blocks if block.get("type") == "mcp_tool_listing")
    return [*thoughts, *(written(tools) for tools in listed)]


def _canonical(message: Json, ignore: Sequence[re.Pattern[str]]) -> dict[str, Any]:
    """Return the canonical form of a message: a text equals one text block. Null and empty members equal missing ones.

    The form has no thinking and no cache breakpoints, because clients drop or move them between turns. Unknown keys
    stay. `ignore` removes volatile text, such as a date that a client injects.
    """
    content = [
        _canonical_block(block, ignore)
        for block in blocks_of(message.get("content"))
        if block.get("type") not in SEALED
    ]
    return {**stated({**message, "content": None}), "content": content}


def _canonical_block(block: Json, ignore: Sequence[re.Pattern[str]]) -> dict[str, Any]:
    kept: dict[str, Any] = canonical_part(stated(block), SPEC.volatile_members, ignore)
    if is_result(block) and "content" in kept:
        kept["content"] = blocks_of(kept["content"])
    for member, held in kept.items():
        match member, held:
            case "content", list():
                kept[member] = [_canonical_inner(inner, ignore) for inner in held]
            case "source", {"content": list(inner)}:
                kept[member] = {**held, "content": [_canonical_inner(each, ignore) for each in inner]}
    return kept


def _canonical_inner(block: object, ignore: Sequence[re.Pattern[str]]) -> object:
    return _canonical_block(block, ignore) if isinstance(block, dict) else block


def render(conversation: Conversation, view: View, alternate: bool = False) -> list[bytes]:
    """Return the payload's raw messages in order.

    `alternate`: the provider refuses two user messages in a row. Join those that are adjacent only in the payload, and
    put tool results first in the joined message.
    """
    instructions = [message.raw for message in conversation.instructions]
    messages = conversation.transcript.messages
    if view.parts == (Verbatim(0, len(messages)),) and not view.without_thinking:
        return [*instructions, *(message.raw for message in messages)]
    entries = list(_entries(conversation, view))
    begun = "user" if any(not is_beside(raw) for raw in instructions) else ""
    first = next((entry.role for entry in entries if entry.role != "system"), "")
    if not begun and first == "assistant" and messages and messages[0].kind is not Kind.ASSISTANT:
        entries.insert(0, Placed(msgspec.json.encode(_note(OPENER)), role="user", own=True))
    entries = _settled(entries, begun, messages.expired_places)
    payload = joined(entries, "text", goes_first=_is_raw_result) if alternate else [entry.raw for entry in entries]
    return [*instructions, *payload]


def _entries(conversation: Conversation, view: View) -> Iterator[Placed]:
    skipped, history = len(conversation.instructions), conversation.transcript.messages
    turn = history.turn_starts[-1] if history.turn_starts else 0
    copied = {i for part in view.parts if isinstance(part, Pinned) for i in range(part.start, part.stop)}
    copied |= {part.index for part in view.parts if isinstance(part, Carried)}

    def unthinking(raw: bytes) -> bytes | None:
        return edited(raw, lambda block: None if block.get("type") in SEALED else block) or None

    for each in placed(conversation, view, _note, _left, unthinking)[skipped:]:
        if each.place in history.expired_places and each.place < turn:
            continue
        raw = each.raw
        if each.summary is not None and (mark := _mark_of(conversation, each.summary)):
            raw = edited(raw, partial(_marked, mark=mark))
        elif each.place in copied and MARK.encode() in raw:
            raw = edited(raw, _unmarked)
        yield each._replace(raw=raw, role=each.role or "user")


def _marked(block: dict[str, Any], mark: object) -> dict[str, Any]:
    return {**block, MARK: mark}


def _unmarked(block: dict[str, Any]) -> dict[str, Any]:
    left = {key: held for key, held in block.items() if key != MARK}
    if isinstance(content := block.get("content"), list):
        left["content"] = [_unmarked(inner) if isinstance(inner, dict) else inner for inner in content]
    return left


def _note(text: str) -> Mapping[str, Any]:
    """Return a user message with one block, which may get a cache breakpoint."""
    return {"role": "user", "content": [{"type": "text", "text": text}]}


def _mark_of(conversation: Conversation, part: Summary) -> object:
    """Return the last cache breakpoint of the messages that a summary replaces, if any."""
    messages, positions = conversation.transcript.messages, conversation.chain.positions
    start, stop = (positions[end] for end in (part.chunk.from_digest, part.chunk.through_digest))
    marks = (marks_in(messages[index].raw, MARK) for index in range(stop - 1, start - 1, -1))
    return next((msgspec.Raw(found[-1]) for found in marks if found), None)


def _without_media(block: dict[str, Any], words: Iterator[str]) -> dict[str, Any]:
    match block:
        case {"type": "tool_result", "content": list(held)}:
            return {**block, "content": [_without_media(inner, words) for inner in held]}
        case {"type": "document", "source": {"type": "content", "content": list(held)} as source}:
            return {**block, "source": {**source, "content": [_without_media(inner, words) for inner in held]}}
        case _ if any(media_in([block])):
            return {"type": "text", "text": next(words), **kept_breakpoint(block)}
        case _:
            return block


def _left(raw: bytes, part: Altered) -> bytes | None:
    left, called = None if part.calls is None else dict(part.calls), count()

    def edit_call(block: dict[str, Any]) -> dict[str, Any] | None:
        if left is None or block.get("type") != "tool_use":
            return block
        arguments = left.get(next(called))
        if arguments is None:
            return None
        is_same = arguments == written(block.get("input"))
        return block if is_same else {**block, "input": msgspec.Raw(arguments.encode())}

    return _PARTS.altered(raw, part.texts, part.media, call=edit_call) or None


def _without_empty(block: dict[str, Any]) -> dict[str, Any] | None:
    """Return a block without empty texts, which providers refuse; None if the block itself is an empty text."""
    if block.get("type") == "text":
        return block if block["text"] else None
    if isinstance(content := block.get("content"), list):
        emptied = [object_of(inner).get("type") == "text" and inner.get("text") == "" for inner in content]
        return {**block, "content": [inner for inner, is_empty in zip(content, emptied, strict=True) if not is_empty]}
    return block


_PARTS = Parts(texts_in_block, _without_media, _without_empty)


def _settled(entries: Sequence[Placed], begun: str, expired: Container[int | None]) -> list[Placed]:
    """Move instructions from a refused position to the next accepted position, or else to the last earlier one. Drop
    `expired` instructions at refused positions. `begun`: role of the message before the first entry."""
    placed: list[Placed] = []
    waiting: list[Placed] = []
    turn = begun
    for place, entry in enumerate(entries):
        if entry.role == "system":
            following = next((later.role for later in entries[place + 1 :] if later.role != "system"), "")
            if waiting or turn != "user" or following == "user":
                waiting += [] if entry.place in expired else [entry]
            else:
                placed.append(entry)
            continue
        if turn == "user" and entry.role != "user":
            placed += waiting
            waiting = []
        placed.append(entry)
        turn = entry.role
    if waiting and turn != "user":  # No accepted position follows.
        turns = [(i, entry.role) for i, entry in enumerate(placed) if entry.role != "system"]
        pairs = pairwise(turns)
        before = max((i for (_, one), (i, other) in pairs if (one, other) == ("user", "assistant")), default=0)
        return [*placed[:before], *waiting, *placed[before:]]
    return [*placed, *waiting]


def _is_raw_result(block: bytes) -> bool:
    return is_result(object_of(decoded_value(block)))
