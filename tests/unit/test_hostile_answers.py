"""Whatever a provider answers: nothing of ours fails, and what it takes stays in proportion to what came."""

from __future__ import annotations

import json
import re
import tracemalloc
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.errors import UpstreamUnreadable
from app.formats import sse
from app.formats.chat_completions import CHAT_COMPLETIONS
from app.formats.refusals import read_overflow
from app.formats.sse import LONGEST_FRAME, FrameSplitter
from app.http.upstream import Upstream
from app.providers.model_listings import MOST_ENTRIES, ListingReader, ListingRefused
from tests.unit.test_sse import FINISH, FIRST, OURS, editor_of

MEMBERS = ("id", "object", "created", "model", "choices", "usage", "error", "type", "context_status", "context")
WITHIN = (
    "index",
    "delta",
    "message",
    "finish_reason",
    "role",
    "content",
    "tool_calls",
    "text",
    "function_call",
    "refusal",
)
COUNTS = (
    "prompt_tokens",
    "completion_tokens",
    "input_tokens",
    "prompt_tokens_details",
    "cached_tokens",
    "output_tokens",
)
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**400), 10**400),
    st.sampled_from([0, 1, -1, 2**53, 10**18, 10**400]),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(
        ["stop", "length", "assistant", "context_length_exceeded", "a\r\nb", "\x00", "\u2028", "chat.completion"]
    ),
)
KEYS = st.one_of(st.sampled_from((*MEMBERS, *WITHIN, *COUNTS)), st.text(max_size=4))
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=5), max_leaves=12
)
CHOICE = st.dictionaries(st.sampled_from(WITHIN), VALUES, max_size=4)
CHUNK = st.fixed_dictionaries({}, optional=dict.fromkeys(MEMBERS, VALUES)) | st.builds(
    lambda chunk, choices: chunk | {"choices": choices},
    st.fixed_dictionaries({}, optional=dict.fromkeys(("id", "model", "usage"), VALUES)),
    st.lists(CHOICE | VALUES, max_size=3),
)


def doubled(text: str) -> str:
    """With each first key of an object written twice."""
    return re.sub(r'\{("[a-z_]+"): ', r"{\1: 7, \1: ", text)


TEXTS = st.builds(lambda value, change: change(json.dumps(value)), CHUNK | VALUES, st.sampled_from([str, doubled]))
HEADS = st.sampled_from([None, OURS])


def kept(text: str, sent: Mapping[str, object] | None, hides: bool) -> Any:
    """What a chunk holds besides what is taken out of it or replaced on purpose."""
    chunk = json.loads(text)
    if not isinstance(chunk, dict):
        return chunk
    gone = {*(sent or ()), *(("usage",) if hides else ())}
    left = {name: value for name, value in chunk.items() if name not in gone}
    if sent and isinstance(choices := left.get("choices"), list):
        for delta in (choice.get("delta") for choice in choices if isinstance(choice, dict)):
            if isinstance(delta, dict):
                delta.pop("role", None)
    return left


@given(st.lists(TEXTS, max_size=4), HEADS, st.booleans(), st.integers(1, 3))
@example(["[]", '{"model": {"NaN": true}, "choices": [{}]}'], OURS, False, 1)
@example(['{"usage": NaN, "choices": [{"x": NaN}]}'], None, True, 1)
def test_properties_a_stream_passes_whatever_its_chunks_hold(
    texts: list[str], sent: Mapping[str, object] | None, hides: bool, choices: int
) -> None:
    editor = editor_of(FIRST, FINISH, sent=sent, hides_usage=hides, choices=choices)
    splitter = FrameSplitter()
    stream = b"".join(b"data: %b\n\n" % text.encode() for text in texts) + b"data: [DONE]\n\n"
    edited = [editor.edit(frame) for frame in splitter.feed(stream)]
    assert edited[-1] == b"data: [DONE]\n\n"
    assert editor.complete
    for frame, text in zip(edited, texts, strict=False):
        assert frame == b"" or (frame.startswith(b"data: ") and frame.endswith(b"\n\n"))
        if frame:
            json.loads(frame[6:])  # As readable as it was.
            assert b"NaN" in frame or "NaN" not in json.dumps(kept(text, sent, hides))
    _ = editor.usage


@pytest.mark.parametrize(
    "choices",
    [
        b'[{"index":0,"delta":{"role":"assistant","role":"assistant","content":"a"},"finish_reason":"stop"}]',
        b'[{"index":0,"index":0,"delta":{"role":"assistant"},"finish_reason":"stop"}]',
        b'["role",{"index":0,"delta":{"role":"assistant","content":"a"},"finish_reason":"stop"}]',
        b'[{"index":0,"delta":"role","finish_reason":"stop"}]',
        b'"role"',
    ],
)
def test_an_odd_chunk_after_ours_passes(choices: bytes) -> None:
    editor = editor_of(b"", b"", sent=OURS)
    edited = editor.edit(b'data: {"id":"up","choices":%b}\n\n' % choices)
    assert json.loads(edited[6:])["id"] == "ours"


def peak(work: Callable[[], object]) -> int:
    """Bytes of Python's that were in use at once."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_frame_in_pieces_is_looked_through_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = 0
    boundary = sse._BOUNDARY

    class Watched:
        def finditer(self, text: bytes) -> Any:
            nonlocal looked
            looked += len(text)
            return boundary.finditer(text)

    monkeypatch.setattr(sse, "_BOUNDARY", Watched())
    splitter, frame = FrameSplitter(), b"data: " + b"a" * 100_000 + b"\n\n"
    frames = [found for at in range(0, len(frame), 10) for found in splitter.feed(frame[at : at + 10])]
    assert frames == [frame]
    assert looked < 2 * len(frame)


def test_what_is_held_of_a_frame_is_bounded_and_the_rest_passes() -> None:
    splitter = FrameSplitter()
    passed = b"".join(b"".join(splitter.feed(b"a" * 65_536)) for _ in range(2 * LONGEST_FRAME // 65_536))
    assert splitter.overran
    assert len(passed) >= LONGEST_FRAME
    assert splitter.feed(b"\n\nb\n\n")[-1] == b"b\n\n"
    assert not splitter.overran


VALUES_ONLY = b'{"choices":[' + b",".join([b"{}"] * 1_000_000) + b"]}"
ESCAPES = b'{"choices":[{"delta":{"content":"' + rb"\n" * 1_500_000 + b'"}}]}'


@pytest.mark.parametrize(
    "text", [VALUES_ONLY, ESCAPES, b'{"usage":' + VALUES_ONLY + b"}"], ids=["values", "escapes", "usage"]
)
def test_a_frame_takes_few_times_its_size(text: bytes) -> None:
    frame = b"data: " + text + b"\n\n"
    editor = editor_of()
    assert peak(lambda: editor.edit(frame)) < 6 * len(frame)
    reader = CHAT_COMPLETIONS.summaries.reader()
    assert peak(lambda: reader.feed(frame)) < 8 * len(frame)
    assert reader.answer is None


def test_a_summary_of_many_small_pieces_counts_what_they_take() -> None:
    reader = CHAT_COMPLETIONS.summaries.reader()
    for _ in range(1_000):
        reader.feed(b'data: {"choices":[{"delta":{"content":"ab"}}]}\n\n')
        reader.feed(b'data: {"choices":[{"delta":{"content":""}}]}\n\n')
    assert reader.held > 50_000


def test_a_frame_of_many_keys_passes_as_it_came() -> None:
    """Finding the place of each would take time that others have to wait for."""
    frame = b"data: {%b}\n\n" % b",".join(b'"k%d":0' % number for number in range(50_000))
    assert editor_of().edit(frame) == frame


def test_choices_without_an_end_are_not_all_remembered() -> None:
    editor = editor_of(choices=2)
    for index in range(1_000):
        editor.edit(b'data: {"choices":[{"index":%d,"finish_reason":"stop"}]}\n\n' % index)
    assert len(editor.finished) == 2


async def test_an_answer_in_one_piece_is_held_up_to_a_bound() -> None:
    """It ends as no stream, however much of it is still to come."""

    async def endless(piece: bytes) -> AsyncIterator[bytes]:
        while True:
            yield piece

    for piece in (b"{" * 65_536, b" " * 65_536):
        with pytest.raises(UpstreamUnreadable):
            [frame async for frame in editor_of().as_stream(endless(piece), is_stream=False, headers=())]


def test_a_page_of_versions_is_read_once() -> None:
    assert read_overflow(400, {"error": {"message": "nginx/1.400 " * 1_500 + "?"}}) is None


def test_errors_within_errors_are_each_read_once() -> None:
    body: dict[str, Any] = {"message": "x"}
    reads = 0

    class Counted(dict[str, Any]):
        def items(self) -> Any:
            nonlocal reads
            reads += 1
            return super().items()

    body = Counted(body)
    for _ in range(8):
        body = Counted(error=body)
    read_overflow(400, body)
    assert reads == 9


class Listed(Upstream):
    """A provider that only lists."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    async def ask(self, target: bytes, *_: object) -> tuple[int, bytes]:
        return 200, self._body if target == b"/v1/models" else b"{}"


async def test_a_list_of_models_without_an_end_is_read_in_part_or_not_at_all() -> None:
    entries = b",".join(b'{"id":"m%d"}' % number for number in range(MOST_ENTRIES + 5))
    assert len((await ListingReader(Listed(b'{"data":[%b]}' % entries), "/v1").read()).models) == MOST_ENTRIES
    with pytest.raises(ListingRefused):
        await ListingReader(Listed(b'{"data":[%b]}' % b",".join([b"{}"] * 1_000_000)), "/v1").read()
