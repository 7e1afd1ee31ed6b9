"""HTTP/1.1 with providers: answers as they are read, however split, and requests as they are written."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from app.errors import UpstreamDisconnected
from app.http.headers import written
from app.http.http1 import LONGEST_HEAD, MOST_INTERIM, AnswerReading, GarbledAnswer, RequestHead
from app.http.upstream import host_and_port

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


# The head of a request

HEADERS = [(b"X-Odd_Case", b"1"), (b"x-a", b""), (b"X-a", b"\xe9 b")]
LINES = b"X-Odd_Case: 1\r\nx-a: \r\nX-a: \xe9 b\r\n"


async def arriving() -> AsyncIterator[bytes]:
    yield b""


@pytest.mark.parametrize(
    ("method", "given_headers", "content", "expected"),
    [
        (b"POST", [], b"{}", LINES + b"Content-Length: 2\r\n"),
        (b"POST", [], b"", b"Content-Length: 0\r\n" + LINES),
        (b"GET", [], b"", LINES),
        (b"DELETE", [], b"", LINES),
        (b"GET", [], b"{}", LINES + b"Content-Length: 2\r\n"),
        (b"POST", [(b"CONTENT-length", b"2")], b"{}", LINES + b"CONTENT-length: 2\r\n"),
        (b"POST", [(b"content-length", b"7")], None, LINES + b"content-length: 7\r\n"),
        (b"PUT", [], None, LINES + b"Transfer-Encoding: chunked\r\n"),
    ],
)
def test_headers_go_up_as_they_are_with_a_host_before_and_the_framing_behind(
    method: bytes, given_headers: list[tuple[bytes, bytes]], content: bytes | None, expected: bytes
) -> None:
    head = RequestHead(method, b"/a?b=%2F", b"h:1", [*HEADERS, *given_headers])
    written = head.for_body(arriving() if content is None else content)
    assert head.for_body(arriving() if content is None else content) == written
    assert written[0] == method + b" /a?b=%2F HTTP/1.1\r\nHost: h:1\r\n" + expected + b"\r\n"


@pytest.mark.parametrize(
    ("method", "target", "header"),
    [
        (b"GET\r\n", b"/", (b"a", b"b")),
        (b"", b"/", (b"a", b"b")),
        (b"GET", b"/ HTTP/1.1\r\nx: y", (b"a", b"b")),
        (b"GET", b"/\xe9", (b"a", b"b")),
        (b"GET", b"", (b"a", b"b")),
        (b"GET", b"/", (b"a", b"b\r\nc: d")),
        (b"GET", b"/", (b"a", b"b\nc")),
        (b"GET", b"/", (b"a", b"b\rc")),
        (b"GET", b"/", (b"a", b"b\0c")),
        (b"GET", b"/", (b"a: b\r\nc", b"d")),
        (b"GET", b"/", (b"a ", b"b")),
        (b"GET", b"/", (b"", b"b")),
        (b"GET", b"/", (b"Host", b"other")),
        (b"GET", b"/", (b"transfer-encoding", b"chunked")),
        (b"GET", b"/", (b"content-length", b"-0")),
        (b"GET", b"/", (b"content-length", b"1")),
    ],
)
def test_what_would_be_read_as_something_else_is_never_written(
    method: bytes, target: bytes, header: tuple[bytes, bytes]
) -> None:
    with pytest.raises(UpstreamDisconnected):
        RequestHead(method, target, b"h", [header]).for_body(b"")


def test_two_lengths_are_never_written() -> None:
    with pytest.raises(UpstreamDisconnected):
        RequestHead(b"POST", b"/", b"h", [(b"content-length", b"2"), (b"Content-Length", b"2")]).for_body(b"{}")


@given(st.lists(st.tuples(st.binary(max_size=6), st.binary(max_size=6)), max_size=3))
def test_a_head_has_as_many_lines_as_it_was_given(headers: list[tuple[bytes, bytes]]) -> None:
    try:
        head = RequestHead(b"GET", b"/", b"h", headers).for_body(b"")[0]
    except UpstreamDisconnected:
        return
    assert head.count(b"\r\n") == head.count(b"\n") == head.count(b"\r") == len(headers) + 3
    assert [tuple(line.split(b": ", 1)) for line in head.split(b"\r\n")[2:-2]] == headers


# Headers


def lines(*headers: tuple[bytes, bytes]) -> bytes:
    return written(list(headers))


def test_each_header_is_a_line() -> None:
    assert lines() == b""
    assert lines((b"a", b"b"), (b"c", b""), (b"a", b"d\te \xff")) == b"a: b\r\nc: \r\na: d\te \xff\r\n"


@pytest.mark.parametrize("byte", [*range(0x20), 0x7F, 0x20, *b'()<>@,;:[]={}\\"'])
def test_a_byte_that_ends_a_word_or_a_line_is_in_no_header(byte: int) -> None:
    for name in (b"a%cb", b"%ca", b"a%c", b"%c"):
        with pytest.raises(RuntimeError):
            lines((b"a", b"b"), (name % byte, b"c"))
    for value in (b"a%cb", b"%c\n", b"\r\n%c", b"%c"):
        if (byte < 0x20 and byte != 0x09) or byte == 0x7F:
            with pytest.raises(RuntimeError):
                lines((b"a", value % byte), (b"b", b"c"))


def test_the_end_of_one_value_and_the_beginning_of_the_next_make_no_line() -> None:
    for headers in ([(b"a", b"b\r"), (b"c", b"\nd")], [(b"a", b"b\r\n"), (b"c", b"d")], [(b"a", b"b\n\r")]):
        with pytest.raises(RuntimeError):
            lines(*headers)


# Errors


@pytest.mark.parametrize(
    ("base_url", "expected"),
    [
        ("https://api.example/v1", "api.example:443"),
        ("http://api.example", "api.example:80"),
        ("http://127.0.0.1:9000/v1", "127.0.0.1:9000"),
        ("http://[::1]:9000/v1", "[::1]:9000"),
        ("https://user:secret@api.example/v1", "api.example:443"),
    ],
)
def test_a_base_url_is_shown_by_host_and_port(base_url: str, expected: str) -> None:
    assert "{}:{}".format(*host_and_port(httpx.URL(base_url))) == expected
