"""A whole completion as the stream that was asked for, and an answer that is one already."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from app.errors import UpstreamUnreadable
from app.formats.chat_completions.format import CHAT_COMPLETIONS
from app.formats.requests import Headers

STREAM = b': hello\n\ndata: {"choices":[]}\n\ndata: [DONE]\n\n'


def as_stream(
    chunks: AsyncIterator[bytes], *, is_stream: bool, wants_usage: bool, headers: Headers = ()
) -> AsyncIterator[bytes]:
    options = b'"stream_options":{"include_usage":%b}' % (b"true" if wants_usage else b"false")
    request = CHAT_COMPLETIONS.read(b'{"model":"m","messages":[],"stream":true,%b}' % options)
    return CHAT_COMPLETIONS.editor(request=request).as_stream(chunks, is_stream=is_stream, headers=headers)


async def given(pieces: Sequence[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


async def stream_of(*pieces: bytes, is_stream: bool = False, wants_usage: bool = False) -> bytes:
    frames = as_stream(given(pieces), is_stream=is_stream, wants_usage=wants_usage, headers=[(b"x-request-id", b"r1")])
    return b"".join([frame async for frame in frames])


def chunks(stream: bytes) -> list[Any]:
    assert stream.endswith(b"data: [DONE]\n\n")
    return [json.loads(frame.removeprefix(b"data: ")) for frame in stream.split(b"\n\n")[:-2]]


def completion(*choices: Any, **members: Any) -> bytes:
    return json.dumps({"id": "c1", "object": "chat.completion", "model": "m", "choices": choices} | members).encode()


async def test_a_stream_passes_as_it_is_and_at_once() -> None:
    for is_stream in (False, True):
        for beginning in (STREAM, b"\n\n" + STREAM, b"\xef\xbb\xbfdata: 1\n\n", b"event: x\ndata: 1\n\n"):
            pieces = [beginning[:3], beginning[3:9], beginning[9:]]
            assert await stream_of(*pieces, is_stream=is_stream) == beginning
    frames = as_stream(given([b"data: 1\n\n", b"data: 2\n\n"]), is_stream=True, wants_usage=False)
    assert [frame async for frame in frames] == [b"data: 1\n\n", b"data: 2\n\n"]


async def test_nothing_is_an_empty_stream_where_a_stream_was_announced() -> None:
    assert await stream_of(is_stream=True) == b""
    with pytest.raises(UpstreamUnreadable):
        await stream_of()


@pytest.mark.parametrize("body", [b'{"choices":1}', b'{"choices":[1]}', b'{"choices":[]}'])
async def test_what_is_no_completion_is_unreadable(body: bytes) -> None:
    with pytest.raises(UpstreamUnreadable):
        await stream_of(body)


async def test_each_choice_says_what_it_has_and_then_ends() -> None:
    log = {"content": [{"token": "Hi", "logprob": -0.5}]}
    choices = (
        {"index": 0, "message": {"role": "assistant", "content": "Hi"}, "logprobs": log, "finish_reason": "length"},
        {"message": {"role": "assistant", "content": None, "refusal": "No."}},
    )
    told = chunks(await stream_of(completion(*choices, system_fingerprint="fp")))
    assert {(chunk["id"], chunk["object"], chunk["model"]) for chunk in told} == {("c1", "chat.completion.chunk", "m")}
    assert [chunk["choices"] for chunk in told] == [
        [
            {"index": 0, "delta": choices[0]["message"], "finish_reason": None, "logprobs": log},
            {"index": 1, "delta": choices[1]["message"], "finish_reason": None},
        ],
        [{"index": 0, "delta": {}, "finish_reason": "length"}, {"index": 1, "delta": {}, "finish_reason": "stop"}],
    ]
    assert [chunk.get("system_fingerprint") for chunk in told] == ["fp", None]


async def test_tool_calls_are_numbered_as_in_a_stream() -> None:
    function = {"name": "f", "arguments": '{"a":\n1}'}
    calls: list[Any] = [
        {"id": "a", "type": "function", "function": function},
        {"id": "b", "index": 5, "function": function},
    ]
    body = completion({"message": {"content": None, "tool_calls": calls}, "finish_reason": "tool_calls"})
    [said, _] = chunks(await stream_of(body[:20], body[20:]))
    assert said["choices"][0]["delta"]["tool_calls"] == [calls[0] | {"index": 0}, calls[1]]


async def test_bytes_are_kept_but_for_line_ends_between_members() -> None:
    body = b'{"choices":\r\n[{"message":\n{"content":"caf\\u00e9 \\n", "x": 1.50}}]}'
    assert b'{"content":"caf\\u00e9 \\n", "x": 1.50}' in await stream_of(body)


@pytest.mark.parametrize("wants", [False, True])
async def test_the_usage_has_a_chunk_of_its_own_only_where_it_was_asked_for(wants: bool) -> None:
    usage = {"prompt_tokens": 7}
    body = completion({"message": {"content": "Hi"}}, {"message": {"content": "Ho"}}, usage=usage)
    told = chunks(await stream_of(body, wants_usage=wants))
    assert [chunk.get("usage") for chunk in told] == [None] * (len(told) - 1) + [usage]
    assert (told[-1]["choices"] == []) == wants
