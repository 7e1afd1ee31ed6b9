"""Written headers: none of them can be read as another one."""

from __future__ import annotations

import pytest

from app.http.headers import written


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
