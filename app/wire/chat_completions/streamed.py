"""The stream that was asked for, out of a completion in one piece."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from time import time

from app.errors import UpstreamUnreadable
from app.wire.members import RawObject, Unreadable, split_array
from app.wire.provider_errors import error_body
from app.wire.sse import event
from app.wire.streamed import read_whole, taken_apart, written

MOST_CHOICES = 128
"""Most choices of an answer: as many as OpenAI gives."""
_HEAD = ("id", "object", "created", "model")


def frames_of(body: bytes, wants_usage: bool, headers: Sequence[tuple[bytes, bytes]]) -> Iterator[bytes]:
    """The frames of a whole completion: what each choice says, how it ends, what all of it cost."""
    with taken_apart("chat completion"):
        whole = read_whole(body)
        elements = split_array(whole.raw("choices") or b"[]")
        if len(elements) > MOST_CHOICES:
            raise Unreadable(f"It has over {MOST_CHOICES} choices.")
        choices = [RawObject(raw) for raw in elements]
        said = [_said(index, choice) for index, choice in enumerate(choices)]
    if whole.value("error"):
        yield event(error_body(200, headers, body, time()))
        return
    if not choices:
        raise UpstreamUnreadable("The provider's answer is no chat completion: it has no choices.")
    head = {name: raw for name in _HEAD if (raw := whole.raw(name)) is not None}
    head["object"] = b'"chat.completion.chunk"'
    usage = _members(whole, only=("usage",))
    for index, chunk in enumerate(said):
        # What the completion says beside its choices is said once.
        beside = {} if index else _members(whole, without=("choices", "usage"))
        yield _chunk(beside | head, chunk)
    for index, choice in enumerate(choices):
        is_last = index == len(choices) - 1
        # A chunk of its own, without choices, breaks clients that did not ask for it.
        yield _chunk(head, _end(index, choice), usage if is_last and not wants_usage else {})
    if usage and wants_usage:
        yield _chunk(head, b"", usage)
    yield event(b"[DONE]")


def _chunk(head: Mapping[str, bytes], choice: bytes, more: Mapping[str, bytes] | None = None) -> bytes:
    return event(written({**head, "choices": b"[" + choice + b"]", **(more or {})}))


def _said(index: int, choice: RawObject) -> bytes:
    """The chunk with all that a choice says."""
    message = choice.raw("message") or choice.raw("delta") or b"{}"
    delta = RawObject(message)
    calls = delta.raw("tool_calls")
    if calls is not None and calls.startswith(b"["):
        numbered = [_numbered(number, raw) for number, raw in enumerate(split_array(calls))]
        message = delta.spliced({"tool_calls": b"[" + b",".join(numbered) + b"]"})
    beside = _members(choice, without=("index", "message", "delta", "finish_reason"))
    return written({"index": _place(index, choice), "delta": message, "finish_reason": b"null"} | beside)


def _end(index: int, choice: RawObject) -> bytes:
    reason = choice.raw("finish_reason")
    finish = reason if reason not in (None, b"null") else b'"stop"'
    return written({"index": _place(index, choice), "delta": b"{}", "finish_reason": finish})


def _place(index: int, choice: RawObject) -> bytes:
    return choice.raw("index") or b"%d" % index


def _numbered(number: int, call: bytes) -> bytes:
    """A tool call with the place among the others that it has in a stream."""
    known = RawObject(call)
    return call if "index" in known else known.spliced(add=b'"index":%d' % number)


def _members(value: RawObject, *, only: Iterable[str] | None = None, without: Iterable[str] = ()) -> dict[str, bytes]:
    names = value.members if only is None else only
    return {name: raw for name in names if name not in without and (raw := value.raw(name)) is not None}
