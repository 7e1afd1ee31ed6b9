"""The provider's own compaction: a request that is nothing else, or an edit with a threshold; answered with a block
that the client sends back."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from app.wire.members import RawObject, Unreadable
from app.wire.messages.answers import typed_event
from app.wire.messages.content import MARK as CACHE_MARK
from app.wire.messages.content import blocks_of, decoded_message, is_reference, raw_blocks, with_content
from app.wire.messages.messages import SYSTEM, is_beside
from app.wire.messages.request import is_compaction_edit, without_betas, without_edits
from app.wire.native import AnswerExtension, MadeCompaction, NativeCompaction
from app.wire.requests import repinned
from app.wire.sse import data_of
from app.wire.types import Headers, WireRequest
from app.wire.usage import CACHE_PARTS

_BETA = b"compact-"
_INDEXED = frozenset({"content_block_start", "content_block_delta", "content_block_stop"})
_PROMPT = ("input_tokens", *CACHE_PARTS)


class MessagesCompaction(NativeCompaction):
    closing = b'{"role":"user","content":""}'

    def headers(self, headers: Headers) -> Headers:
        """The headers without the betas of compaction, which are as unknown."""
        return without_betas(headers, _BETA)

    def unasked(self, request: WireRequest) -> bytes:
        return _unasked(request, {})

    def resolved(self, request: WireRequest, text: str) -> bytes:
        """The body with the text as a user's message in front of what the block stood in; in a user's own message it is
        a block of text."""
        source = request.source
        elements = source.elements("messages")
        place = max(place for place, raw in enumerate(elements) if _holds_reference(raw))
        message = decoded_message(elements[place])
        raws = raw_blocks(elements[place])
        blocks = blocks_of(message.get("content"))
        last = max(number for number, block in enumerate(blocks) if is_reference(block))
        parsed = _text_block(text, blocks[last])
        if message.get("role") == "user":
            begun = [with_content(elements[place], _array([parsed, *raws[last + 1 :]]))]
        else:
            rest = raws[last + 1 :]
            begun = [_said(parsed), *([with_content(elements[place], _array(rest))] if rest else [])]
        kept = [raw for raw in elements[:place] if _is_instructions(raw)]
        messages = _placed(kept, [*begun, *elements[place + 1 :]])
        pins = repinned(source, [*elements[:place], begun[-1], *elements[place + 1 :]], messages)
        return source.spliced({"messages": _array(messages), **pins})

    def compacted(self, request: WireRequest, text: str) -> bytes:
        elements = request.source.elements("messages")
        messages = _placed([raw for raw in elements if _is_instructions(raw)], [_said(_text_block(text))])
        return _unasked(request, {"messages": _array(messages), **repinned(request.source, elements, messages)})

    def alone(self, request: WireRequest, made: MadeCompaction, path: bytes) -> bytes:  # noqa: ARG002 - there is one
        asked = request.source.value("compaction")
        block = _block(made)
        if isinstance(asked, dict):
            block = {**block, "encrypted_content": None, "signature": made.reference, "tool_changes": []}
        nothing = dict.fromkeys((*_PROMPT, "output_tokens"), 0)
        return msgspec.json.encode(
            {
                "id": f"msg_{secrets.token_hex(12)}",
                "type": "message",
                "role": "assistant",
                "model": request.model,
                "content": [block],
                "stop_reason": "compaction",
                "stop_sequence": None,
                "usage": {**nothing, "iterations": [_iteration(made)]},
            }
        )

    def extension(self, request: WireRequest, made: MadeCompaction | None) -> CompactionBefore:  # noqa: ARG002 - it is first
        if made is None:
            raise ValueError("It stands before the answer, and is made before.")
        return CompactionBefore(made)


@dataclass(slots=True)
class CompactionBefore(AnswerExtension):
    """A block before all others, which move on by one."""

    made: MadeCompaction
    _prompt: dict[str, int] = field(default_factory=dict)
    """Usage of the prompt, as the provider gave it."""

    def frame(self, frame: bytes, made: MadeCompaction | None) -> bytes:  # noqa: ARG002
        if (data := data_of(frame)) is None:
            return frame
        try:
            parsed = RawObject(frame[slice(*data)])
        except Unreadable:
            return frame
        kind, index = parsed.value("type"), parsed.value("index")
        if kind in _INDEXED and isinstance(index, int):
            return _framed(frame, data, parsed.spliced({"index": b"%d" % (index + 1)}))
        if kind == "message_start":
            return _framed(frame, data, self._start(parsed)) + b"".join(_block_frames(self.made))
        if kind == "message_delta":
            return _framed(frame, data, self._delta(parsed))
        return frame

    def body(self, body: bytes, made: MadeCompaction | None) -> bytes:  # noqa: ARG002
        try:
            parsed = RawObject(body)
            if parsed.value("type") != "message":
                return body
            content = [msgspec.json.encode(_block(self.made)), *parsed.elements("content")]
        except Unreadable:
            return body
        usage = _usage(parsed)
        self._prompt = {name: value for name in _PROMPT if isinstance(value := usage.get(name), int)}
        return _with_usage(parsed, {"content": _array(content)}, self._counted(usage))

    def _start(self, parsed: RawObject) -> bytes:
        """The size before."""
        message = RawObject(parsed.raw("message") or b"{}")
        usage = _usage(message)
        self._prompt = {name: value for name in _PROMPT if isinstance(value := usage.get(name), int)}
        before = {**usage, **dict.fromkeys(self._prompt, 0), "input_tokens": self.made.before}
        return parsed.spliced({"message": _with_usage(message, {}, before)})

    def _delta(self, parsed: RawObject) -> bytes:
        """The size after."""
        if "usage" not in parsed:
            return parsed.text
        return _with_usage(parsed, {}, self._counted({**self._prompt, **_usage(parsed)}))

    def _counted(self, usage: Mapping[str, Any]) -> dict[str, Any]:
        answer = {name: usage.get(name, 0) for name in (*_PROMPT, "output_tokens")}
        return {**usage, "iterations": [_iteration(self.made), {"type": "message", **answer}]}


def _block(made: MadeCompaction) -> dict[str, Any]:
    return {"type": "compaction", "content": made.text, "encrypted_content": made.reference}


def _block_frames(made: MadeCompaction) -> Iterator[bytes]:
    begun = {"type": "compaction", "content": None, "encrypted_content": None}
    delta = {**_block(made), "type": "compaction_delta"}
    yield typed_event("content_block_start", index=0, content_block=begun)
    yield typed_event("content_block_delta", index=0, delta=delta)
    yield typed_event("content_block_stop", index=0)


def _framed(frame: bytes, data: tuple[int, int], parsed: bytes) -> bytes:
    return frame[: data[0]] + parsed + frame[data[1] :]


def _iteration(made: MadeCompaction) -> dict[str, Any]:
    return {"type": "compaction", **dict.fromkeys(_PROMPT, 0), "input_tokens": made.before, "output_tokens": made.after}


def _usage(parsed: RawObject) -> dict[str, Any]:
    usage = parsed.value("usage")
    return usage if isinstance(usage, dict) else {}


def _with_usage(parsed: RawObject, replaced: Mapping[str, bytes], usage: Mapping[str, Any]) -> bytes:
    written = msgspec.json.encode(usage)
    if "usage" in parsed:
        return parsed.spliced({**replaced, "usage": written})
    return parsed.spliced(replaced, add=b'"usage":' + written)


def _holds_reference(raw: bytes) -> bool:
    return b'"compaction"' in raw and any(map(is_reference, blocks_of(decoded_message(raw).get("content"))))


def _is_instructions(raw: bytes) -> bool:
    return b'"system"' in raw and not is_beside(raw) and decoded_message(raw).get("role") == SYSTEM


def _text_block(text: str, marked: Mapping[str, Any] | None = None) -> bytes:
    mark = (marked or {}).get(CACHE_MARK)
    return msgspec.json.encode({"type": "text", "text": text, **({CACHE_MARK: mark} if mark else {})})


def _said(block: bytes) -> bytes:
    return b'{"role":"user","content":[%b]}' % block


def _placed(instructions: Sequence[bytes], messages: Sequence[bytes]) -> list[bytes]:
    """Instructions may only stand behind a user's message, and before the assistant's or last."""
    if not instructions:
        return list(messages)
    roles = [decoded_message(raw).get("role") for raw in messages]
    place = next((i for i, role in enumerate(roles) if i and role != "user"), len(messages))
    return [*messages[:place], *instructions, *messages[place:]]


def _array(raws: Sequence[bytes]) -> bytes:
    return b"[" + b",".join(raws) + b"]"


def _unasked(request: WireRequest, replaced: dict[str, bytes]) -> bytes:
    edited, removed = without_edits(request.source, is_compaction_edit)
    return request.source.spliced({**replaced, **edited}, ["compaction", *removed])
