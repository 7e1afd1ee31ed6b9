"""Frames out of chunks, and our members in single frames."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from app.formats.answers import ContextMembers
from app.formats.chat_completions import CHAT_COMPLETIONS, CompactionEvents, CompletionEditor
from app.formats.sse import LONGEST_FRAME, FrameSplitter, data_of, first_end, frames_in, last_end

STREAM = (
    b': hello\n\ndata: {"id":"up","choices":[{"index":0,"delta":{"role":"assistant","content":""},'
    b'"finish_reason":null}]}\n\n'
    b'data: {"id":"up","choices":[{"index":0,"delta":{"content":"he \\"finish_reason\\":\\"x"},'
    b'"finish_reason":null}]}\r\n\r\n'
    b'data: {"id":"up","choices":[{"index":0,"delta":{},"finish_reason":"stop"}],"x":1.0}\n\n'
    b'data: {"id":"up","choices":[],"usage":{"prompt_tokens":1}}\n\ndata: [DONE]\n\n'
)
OURS = {"id": "ours", "created": 5, "model": "m"}
FIRST, FINISH = b'"context_status":"full"', b'"context_status":"full","context":{"a":1}'


def editor_of(
    first: bytes = FIRST,
    finish: bytes = FINISH,
    *,
    sent: Mapping[str, object] | None = None,
    hides_usage: bool = False,
    choices: int = 1,
) -> CompletionEditor:
    """`sent`: the head of chunks of ours that began the stream."""
    early = None if sent is None else CompactionEvents("chunk", "cmp_1", "m")
    if early is not None and sent is not None:
        early.head = dict(sent)
    request = CHAT_COMPLETIONS.read(b'{"model":"m","messages":[],"n":%d}' % choices) if choices > 1 else None
    return CompletionEditor(ContextMembers(first, finish), request, early, hides_usage)


@given(st.lists(st.integers(0, len(STREAM)), max_size=8))
def test_frames_that_come_together_are_edited_as_each_for_itself(places: list[int]) -> None:
    """Whatever passes unseen is what would pass unchanged, and what is counted on the way is the same."""
    cuts = [0, *sorted(places), len(STREAM)]
    one, all_of_them, splitter = editor_of(), editor_of(), FrameSplitter()
    whole = FrameSplitter()
    expected, edited = b"".join(map(one.edit, whole.feed(STREAM))) + whole.flush(), b""
    for start, stop in pairwise(cuts):
        frames, place = splitter.together(STREAM[start:stop]), 0
        while place < len(frames):
            if (quiet := all_of_them.quiet(frames, place)) > place:
                edited, place = edited + frames[place:quiet], quiet
                continue
            end = first_end(frames, place)
            edited, place = edited + all_of_them.edit(frames[place:end]), end
    assert edited + splitter.flush() == expected
    assert all_of_them == one


def events(stream: bytes) -> list[bytes]:
    """The data of each event, by the standard's own steps."""
    told: list[bytes] = []
    lines: list[bytes] = []
    for line in stream.splitlines():
        if line.startswith(b"data:"):
            lines.append(line.removeprefix(b"data:").removeprefix(b" "))
        elif not line and lines:
            told.append(b"\n".join(lines))
            lines = []
    return told


LINES = st.sampled_from([b"", b"data: a", b"data:b", b"data: data:", b"event: x", b": data:", b"id: data: 1"])
ENDS = st.sampled_from([b"\n", b"\r\n"])


@given(st.lists(st.tuples(LINES, ENDS), max_size=20), st.lists(st.integers(0, 120), max_size=6))
@example([(b"data: a", b"\n"), (b"", b"\r\n"), (b"data:b", b"\r\n"), (b"", b"\n")], [])
@example([(b"data: a", b"\r\n"), (b"", b"\r\n"), (b"data:b", b"\r\n"), (b"", b"\r\n")], [10, 11])
def test_lines_may_end_in_both_ways_properties(lines: list[tuple[bytes, bytes]], places: list[int]) -> None:
    """Mixed ones too, however the stream is cut: every frame has one event at most, and nothing waits for the next."""
    stream = b"".join(line + end for line, end in lines)
    cuts = [0, *sorted({place % (len(stream) + 1) for place in places}), len(stream)]
    splitter, passed_on, told = FrameSplitter(), b"", list[bytes]()
    for start, stop in pairwise(cuts):
        together, place = splitter.together(stream[start:stop]), 0
        passed_on += together
        assert events(passed_on) == events(stream[:stop].removesuffix(b"\r"))
        assert last_end(together) == len(together)
        frames = frames_in(together)
        for frame in frames:
            assert first_end(together, place) == place + len(frame)
            place += len(frame)
            said = events(frame)
            assert len(said) <= 1
            data = data_of(frame)
            if data is not None:
                assert said == [frame[slice(*data)]]
            elif said:
                assert sum(line.startswith(b"data:") for line in frame.splitlines()) > 1
            told += said
    assert passed_on + splitter.flush() == stream
    assert told == events(stream)


def test_what_follows_a_part_of_a_long_frame_ends_it_only_where_it_is_empty() -> None:
    splitter = FrameSplitter()
    assert len(splitter.together(b"data: " + b"a" * LONGEST_FRAME)) > LONGEST_FRAME
    assert splitter.together(b"\n") == b""
    assert splitter.overran
    assert splitter.together(b"\r\n") == b"\n\r\n"
    assert not splitter.overran


def begun(**options: Any) -> CompletionEditor:
    """The editor of a stream that has begun."""
    editor = editor_of(**options)
    editor.begun = True
    return editor


SPELLINGS = (
    b'{"choices":[{"delta":{"content":"a"},"finish_reason":null}],"usage":null}',
    b'{"choices":[{"delta":{"content":"a"},"finish_reason": null}], "usage": null}',
    b'{"choices":[{"delta":{"content":"a"},"finish_reason" :\tnull}]}',
    b'{"choices":[{"delta":{"content":"usage, error, finish_reason"}}]}',
    b'{"choices":[{"delta":{"content":"the \\"usage\\": 5 of \\"error\\""}}]}',
    b'{"choices":[{"delta":{},"finish_reason" : "stop"}]}',
    b'{"choices":[{"delta":{},"finish_reason":"stop"}]}',
    b'{"choices":[],"usage" : {"prompt_tokens":1}}',
    b'{"choices":[],"usage":{"prompt_tokens":1}}',
    b'{"error":{"message":"no"}}',
    b"[DONE]",
)


@given(st.lists(st.sampled_from(SPELLINGS), min_size=1, max_size=12), st.booleans())
def test_what_passes_unseen_says_nothing_however_it_is_written(spelt: list[bytes], spaced: bool) -> None:
    frames = b"".join((b"data: " if spaced else b"data:") + data + b"\n\n" for data in spelt)
    quiet, edited = begun(), begun()
    stop = quiet.quiet(frames, 0)
    assert b"".join(map(edited.edit, frames_in(frames[:stop]))) == frames[:stop]
    assert quiet == edited
    loud = edited.edit(frames[stop : first_end(frames, stop)])
    assert stop == len(frames) or loud != frames[stop : first_end(frames, stop)] or quiet != edited
