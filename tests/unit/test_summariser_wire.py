"""Summary calls on the wire: what is sent, and which answers are read in which shape."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.compaction.chunks import Ending, SummaryAnswer
from app.formats.chat_completions.format import CHAT_COMPLETIONS
from app.formats.summaries import STRING_BYTES
from app.tokens.usage import Tokens
from tests.conformance.samples import read_answer

DIALECT = CHAT_COMPLETIONS.summaries


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({"message": {"content": "t"}, "finish_reason": "stop"}, ("t", Ending.FINISHED, "")),
        ({"message": {"content": "t"}}, ("t", Ending.FINISHED, "")),
        (
            {"message": {"content": [{"type": "text", "text": "t"}]}, "finish_reason": "end_turn"},
            ("t", Ending.FINISHED, ""),
        ),
        (
            {"message": {"content": None, "tool_calls": [{}]}, "finish_reason": "tool_calls"},
            ("", Ending.CALLED, "tool_calls"),
        ),
        ({"message": {"content": "t"}, "finish_reason": "length"}, ("t", Ending.CUT_OFF, "length")),
        (
            {"message": {"content": "t"}, "finish_reason": "model_context_window_exceeded"},
            ("t", Ending.CUT_OFF, "length"),
        ),
        ({"message": {"content": None, "refusal": "No."}, "finish_reason": "stop"}, ("", Ending.REFUSED, "refusal")),
    ],
)
def test_a_completion_is_read_as_an_answer(choice: dict[str, Any], expected: tuple[str, Ending, str]) -> None:
    answer = read_answer(DIALECT, b" \n" + json.dumps({"choices": [choice]}, indent=1).encode())
    assert answer is not None
    assert (answer.text, answer.ending, answer.word) == expected


@pytest.mark.parametrize("body", [b"", b"{}", b'{"choices":[]}', b'{"choices":[{"message":1}]}', b"[]", b'"x"', b"<p>"])
def test_what_is_no_completion_is_no_answer(body: bytes) -> None:
    assert read_answer(DIALECT, body) is None


def frame(delta: dict[str, Any] | None = None, finish: str | None = None, newline: str = "\n", **members: Any) -> bytes:
    choices = [] if delta is None and finish is None else [{"index": 0, "delta": delta or {}, "finish_reason": finish}]
    return f"data: {json.dumps({'choices': choices, **members})}{newline * 2}".encode()


DONE = b"data: [DONE]\n\n"


@pytest.mark.parametrize("size", [1, 7, 10_000])
@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_a_stream_is_read_whichever_pieces_it_comes_in(size: int, newline: str) -> None:
    usage = {"prompt_tokens": 9, "completion_tokens": 2}
    stream = b"".join(
        (
            b": keep-alive\n\n",
            frame({"role": "assistant", "content": ""}, newline=newline),
            frame({"reasoning_content": "Let me think."}, newline=newline),
            frame({"content": "Grüße, "}, newline=newline),
            frame({"content": [{"type": "thinking", "text": "no"}, {"type": "text", "text": "Notes."}]}, ""),
            frame({}, "stop", newline=newline),
            frame(usage=usage, newline=newline),
            DONE,
        )
    )
    reader = DIALECT.reader()
    for start in range(0, len(stream), size):
        reader.feed(stream[start : start + size])
    assert reader.done
    assert reader.answer == SummaryAnswer("Grüße, Notes.", usage=Tokens(9, 2))


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        (frame({"content": "t"}) + DONE, SummaryAnswer("t")),  # A finish that is absent where it is over.
        (frame({"content": "t"}, "eos"), SummaryAnswer("t")),
        (frame({"content": "t"}) + frame({}, "length") + DONE, SummaryAnswer("t", Ending.CUT_OFF, "length")),
        (frame({"tool_calls": [{}]}) + frame({}, "tool_calls") + DONE, SummaryAnswer("", Ending.CALLED, "tool_calls")),
        (frame({"function_call": {"name": "f"}}) + DONE, SummaryAnswer("", Ending.CALLED)),
        (frame({"refusal": "No."}) + frame({}, "stop") + DONE, SummaryAnswer("", Ending.REFUSED, "refusal")),
        (frame({"content": "t"}, "stop") + b'data: {"usa', SummaryAnswer("t")),  # Half a frame after the end.
        (frame({"content": "t"}) + DONE.strip(), SummaryAnswer("t")),
        (
            b'data: {"choices": [{"message": {"content": "t"},\ndata: "finish_reason": "stop"}]}\n\n',
            SummaryAnswer("t"),
        ),
        (
            frame({"content": "t"}) + b'data: {"choices":[{"index":1,"delta":{"content":"u"}}]}\n\n' + DONE,
            SummaryAnswer("t"),
        ),
        (frame({"content": "t"}), None),
        (frame({"content": "t"}) + b'data: {"choices": [{"del', None),
        (b": nothing\n\n", None),
    ],
)
def test_a_stream_is_an_answer_only_with_an_end_of_its_own(stream: bytes, expected: SummaryAnswer | None) -> None:
    assert read_answer(DIALECT, stream) == expected


@pytest.mark.parametrize("before", [b"", frame({"content": "t"}), frame({"content": "t"}, "stop")])
@pytest.mark.parametrize("error", [b'{"error": {"message": "No."}}', b'{"type": "error", "message": "No."}'])
def test_an_error_frame_leaves_no_answer(before: bytes, error: bytes) -> None:
    reader = DIALECT.reader()
    reader.feed(before + b"event: error\ndata: " + error + b"\n\n" + DONE)
    reader.end()
    assert (reader.answer, reader.done) == (None, True)
    assert reader.error == json.loads(error)
    assert reader.error_is_first is (not before)


def test_what_is_kept_is_told_while_it_grows_and_reasoning_is_not_kept() -> None:
    reader = DIALECT.reader()
    for _ in range(100):
        reader.feed(frame({"reasoning_content": "a" * 100}))
    assert reader.held == 0
    reader.feed(frame({"content": "a" * 50}))
    reader.feed(b"data: " + b"a" * 94)
    assert reader.held == 50 + STRING_BYTES + 100
    whole = DIALECT.reader()
    whole.feed(b"{" + b" " * 99)
    assert whole.held == 100
