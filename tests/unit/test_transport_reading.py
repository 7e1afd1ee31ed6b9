"""An answer as it is read: however the bytes are split, and whatever they are, it is the same answer or none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from app.http.http1 import LONGEST_HEAD, MOST_INTERIM, AnswerReading, GarbledAnswer

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
WHOLE = OK + b"Content-Length: 2\r\nX-Case: a\r\nx-case: \xe9 \t\r\nempty:\r\n\r\nhi"

Verdict = tuple[str, int, list[tuple[bytes, bytes]], bytes, bool]


def read(*pieces: bytes, ends: bool = True, to_head: bool = False) -> Verdict:
    """What became of it: how it ended, status, headers, body, and whether the connection may be used again."""
    reading, outcome = AnswerReading(to_head=to_head), "complete"
    try:
        for piece in pieces:
            reading.feed(piece)
        if ends and not reading.complete:
            reading.end()
    except GarbledAnswer:
        outcome = "garbled"
    if outcome == "complete" and not reading.complete:
        outcome = "unfinished"
    body = b"".join(reading.parts)
    assert reading.unread == len(body)
    # What cannot be read to its end says nothing of the connection.
    return outcome, reading.status, reading.headers, body, outcome == "complete" and reading.reusable


CASES: dict[str, dict[str, Any]] = yaml.safe_load(Path(__file__).with_name("transport_reading.yaml").read_text("utf-8"))
ANSWERS: dict[str, tuple[bytes, bytes, bool]] = {
    kind: (data.encode("latin-1"), body.encode(), again) for kind, (data, body, again) in CASES["answers"].items()
}


@pytest.mark.parametrize("kind", ANSWERS)
def test_an_answer_ends_where_it_says_and_spoils_no_other(kind: str) -> None:
    data, body, reusable = ANSWERS[kind]
    outcome, _, _, came, again = read(data)
    assert (outcome, came, again) == ("complete", body, reusable)


REFUSED: dict[str, bytes] = {kind: data.encode("latin-1") for kind, data in CASES["refused"].items()} | {
    "interim answers without an end": b"HTTP/1.1 103 Early\r\n\r\n" * (MOST_INTERIM + 1) + WHOLE,
    "headers without an end": OK + b"X-A: b\r\n" * (LONGEST_HEAD // 8 + 1),
    "a header without an end": OK + b"X-A: " + b"b" * (LONGEST_HEAD + 1),
    "long headers in one piece": OK + b"X-A: " + b"b" * (LONGEST_HEAD + 1) + b"\r\nContent-Length: 2\r\n\r\nhi",
    "an extension without an end": CHUNKED + b"2;" + b"a" * (LONGEST_HEAD + 1),
    "trailers without an end": CHUNKED + b"2\r\nhi\r\n0\r\n" + b"X-A: b\r\n" * (2 * LONGEST_HEAD // 8),
}


@pytest.mark.parametrize("kind", REFUSED)
@pytest.mark.parametrize("size", [1, 1_000, 1 << 20])
def test_what_could_be_read_in_two_ways_or_has_no_end_is_refused(kind: str, size: int) -> None:
    data = REFUSED[kind]
    pieces = [data[start : start + size] for start in range(0, len(data), size)]
    assert read(*pieces)[0] == "garbled"


def test_headers_keep_order_repeats_and_bytes() -> None:
    assert read(WHOLE)[2] == [(b"content-length", b"2"), (b"x-case", b"a"), (b"x-case", b"\xe9"), (b"empty", b"")]


def test_a_trailer_is_no_header() -> None:
    assert read(CHUNKED + b"0\r\nX-Late: y\r\n\r\n")[2] == [(b"transfer-encoding", b"chunked")]


@pytest.mark.parametrize("head", [b"Content-Length: 9\r\n", b"Transfer-Encoding: chunked\r\n", b""])
def test_an_answer_to_head_has_no_body(head: bytes) -> None:
    assert read(OK + head + b"\r\n", ends=False, to_head=True)[::3] == ("complete", b"")
    assert read(OK + head + b"\r\n2\r\nhi", ends=False, to_head=True)[3:] == (b"", False)


def test_parts_are_taken_together_up_to_a_bound() -> None:
    reading = AnswerReading()
    reading.feed(CHUNKED + b"".join(b"1\r\n%c\r\n" % byte for byte in b"abcdefg"))
    assert [reading.take(3), reading.take(3), reading.take(3)] == [b"abc", b"def", b"g"]
    assert not reading.unread
    reading.feed(b"5\r\nlarge\r\n")
    assert reading.take(3) == b"large"


def split(data: bytes, places: list[int]) -> list[bytes]:
    ends = sorted({place % (len(data) + 1) for place in places} | {len(data)})
    return [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]


SAMPLES = st.sampled_from([answer for answer, _, _ in ANSWERS.values()] + [r for r in REFUSED.values() if len(r) < 500])
TOKENS = [
    b"\r\n",
    b"\n",
    b"\r",
    b"0",
    b"\0",
    b":",
    b" ",
    b"HTTP/1.1 ",
    b"chunked",
    b"Content-Length: 1\r\n",
    b"\xff",
    b";",
]


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A sample, with a few bytes put in, taken out or replaced."""
    data = draw(SAMPLES)
    for _ in range(draw(st.integers(0, 3))):
        place = draw(st.integers(0, len(data)))
        put_in = draw(st.one_of(st.sampled_from(TOKENS), st.binary(max_size=3)))
        data = data[:place] + put_in + data[place + draw(st.integers(0, 3)) :]
    return data


@given(mutated(), st.lists(st.integers(0, 400), max_size=12), st.booleans())
@example(WHOLE, list(range(400)), False)
def test_however_an_answer_is_split_it_is_the_same_answer_properties(
    data: bytes, places: list[int], to_head: bool
) -> None:
    """And nothing but its own error is raised, whatever it is made of."""
    assert read(*split(data, places), to_head=to_head)[:4] == read(data, to_head=to_head)[:4]
