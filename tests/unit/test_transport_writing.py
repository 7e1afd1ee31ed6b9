"""A request's head: what was given, byte by byte, and never a line or a body more."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import UpstreamDisconnected
from app.http.http1 import RequestHead

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
    written = head.before(arriving() if content is None else content)
    assert head.before(arriving() if content is None else content) == written
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
        RequestHead(method, target, b"h", [header]).before(b"")


def test_two_lengths_are_never_written() -> None:
    with pytest.raises(UpstreamDisconnected):
        RequestHead(b"POST", b"/", b"h", [(b"content-length", b"2"), (b"Content-Length", b"2")]).before(b"{}")


@given(st.lists(st.tuples(st.binary(max_size=6), st.binary(max_size=6)), max_size=3))
def test_a_head_has_as_many_lines_as_it_was_given(headers: list[tuple[bytes, bytes]]) -> None:
    try:
        head = RequestHead(b"GET", b"/", b"h", headers).before(b"")[0]
    except UpstreamDisconnected:
        return
    assert head.count(b"\r\n") == head.count(b"\n") == head.count(b"\r") == len(headers) + 3
    assert [tuple(line.split(b": ", 1)) for line in head.split(b"\r\n")[2:-2]] == headers
