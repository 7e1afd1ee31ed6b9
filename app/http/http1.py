"""HTTP/1.1 with providers: serialise the heads of requests, and parse answers. This module does no I/O.

The parser is llhttp in its strictest mode, from httptools. It refuses bare line feeds, folded headers, spaces in a
chunk's size, repeated content lengths, and a content length with a transfer encoding. This module adds more checks.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from app.errors import UpstreamDisconnected

_TOKEN = b"!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_VISIBLE = bytes(range(0x21, 0x7F))
_IN_VALUES = bytes(set(range(0x100)) - {*b"\0\n\v\f\r"})
_SAYS_ITS_LENGTH = frozenset({b"POST", b"PUT", b"PATCH", b"QUERY"})
"""Methods whose requests have a content-length even if the body is empty."""
_SAFE = frozenset({b"GET", b"HEAD", b"OPTIONS"})
"""Methods that change nothing, so that a request may be sent twice (RFC 9110, section 9.2)."""
LONGEST_HEAD = 100 << 10
"""Maximum bytes of headers, and of consecutive bytes outside the body (interim answers, trailers, chunk extensions)."""
MOST_INTERIM = 32
"""Maximum number of interim answers, such as 103, before the final one."""


WrittenHead = tuple[bytes, int | None]
"""Bytes of the request line, the headers and the blank line; and the body's length in bytes, None if it is chunked."""


class RequestHead:
    """Request line and headers, checked and serialised once, for any number of requests."""

    __slots__ = ("_given", "_line", "_rest", "_says_its_length", "asks_head_alone", "is_safe")

    def __init__(
        self,
        method: bytes,
        target: bytes,
        host: bytes,
        headers: Sequence[tuple[bytes, bytes]],
    ) -> None:
        """`host` becomes the first header. Raises `UpstreamDisconnected` for bytes that could begin another header."""
        _check(method, target, headers)
        self._line = b"%b %b HTTP/1.1\r\nHost: %b\r\n" % (method, target, host)
        self._rest = b"".join([b"%b: %b\r\n" % header for header in headers])
        self._given = [value for name, value in headers if len(name) == 14 and name.lower() == b"content-length"]
        self._says_its_length = method in _SAYS_ITS_LENGTH
        self.asks_head_alone = method == b"HEAD"
        self.is_safe = method in _SAFE

    def for_body(self, content: bytes | AsyncIterator[bytes]) -> WrittenHead:
        """Return the head for this body. If the headers have no content length, add it; for a streamed body, add
        chunked encoding instead. Raises `UpstreamDisconnected` for a wrong content length."""
        line, rest, length = self._line, self._rest, _length(self._given, content)
        if self._given:
            pass
        elif length is None:
            rest += b"Transfer-Encoding: chunked\r\n"
        elif length:
            rest += b"Content-Length: %d\r\n" % length
        elif self._says_its_length:
            line += b"Content-Length: 0\r\n"
        return b"%b%b\r\n" % (line, rest), length


def _check(method: bytes, target: bytes, headers: Sequence[tuple[bytes, bytes]]) -> None:
    """Raise `UpstreamDisconnected` for invalid bytes. For speed, the check removes all allowed bytes from the joined
    names, and from the joined values: no byte may remain."""
    names = [method]
    names += [name for name, _ in headers]
    values = b"".join([value for _, value in headers])
    if (
        b"" in names
        or not target
        or b"".join(names).translate(None, _TOKEN)
        or values.translate(None, _IN_VALUES)
        or target.translate(None, _VISIBLE)
    ):
        raise unsendable("It holds bytes that end a line or a word.")
    for name in names:
        # Steno sets both headers. A provider's load balancer and servers may read different values of repeated headers.
        if len(name) in (4, 17) and name.lower() in (b"host", b"transfer-encoding"):
            raise unsendable("It names a host or an encoding of its own.")


def _length(given: list[bytes], content: bytes | AsyncIterator[bytes]) -> int | None:
    held = len(content) if isinstance(content, bytes) else None
    if not given:
        return held
    if len(given) > 1 or not given[0].isdigit():
        raise unsendable("Its length is not one number.")
    length = int(given[0])
    if held not in (None, length):
        raise unsendable(f"Its length is said to be {length}, and is {held}.")
    return length


def unsendable(why: str) -> UpstreamDisconnected:
    """Build the error for a malformed request. The client sees the same error as for a provider that closes the
    connection."""
    error = UpstreamDisconnected("The provider closed the connection before it answered.")
    error.__cause__ = ValueError(why)
    return error


class GarbledAnswer(Exception):
    """Raised for bytes that are no valid HTTP answer."""


class AnswerReading:
    """Parser of one answer. Bytes after the end of the answer raise no error; the connection is then not reused."""

    status = 0
    began = False
    """True once a byte has arrived."""
    arrived = False
    """True once the status and all headers have arrived."""
    complete = False
    reusable = False
    """True if the connection can be used again once the answer is complete."""
    unread = 0
    """Number of body bytes in `parts`, which `take` has not returned yet."""
    _interim = 0
    _bare = 0
    """Number of bytes received since `feed` last found bytes of the body."""

    def __init__(self, *, to_head: bool = False) -> None:
        """`to_head`: the request is HEAD, so its answer has no body."""
        self.headers: list[tuple[bytes, bytes]] = []
        """Headers in the provider's order, with repeats. Names are in lower case."""
        self.parts: list[bytes] = []
        self._fields: list[tuple[bytes, bytes]] = []
        self._to_head = to_head
        # A built-in as callback saves a Python call for each part of the body. For HEAD, `len` ignores the parts.
        self.on_body: Callable[[bytes], object] = len if to_head else self.parts.append
        self._parser: HttpResponseParser | None = HttpResponseParser(self)

    def feed(self, data: bytes | memoryview) -> None:
        """Parse bytes. Raises `GarbledAnswer`; the parts before the invalid bytes remain."""
        if self._parser is None:
            self.reusable = False
            return
        self.began = True
        self._bare += len(data)
        parts = self.parts
        known = len(parts)
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade) as error:
            self.reusable = False
            if not self.complete:
                self.stop()
                raise GarbledAnswer(str(error)) from error
        finally:
            if len(parts) > known:
                self.unread += sum(map(len, parts[known:] if known else parts))
                self._bare = 0
        if self.complete:
            self.stop()
        elif self._bare > LONGEST_HEAD:
            self.stop()
            raise GarbledAnswer(f"More than {LONGEST_HEAD} bytes came, and none of them of a body.")

    def end(self) -> None:
        """Handle the end of the connection. Raises `GarbledAnswer` if the answer is incomplete."""
        self.stop()
        if self.complete:
            return
        if not self.arrived or any(name in (b"content-length", b"transfer-encoding") for name, _ in self.headers):
            raise GarbledAnswer("The connection ended before the answer did.")
        self.complete = True

    def take(self, most: int) -> bytes:
        """Remove unread parts, and return them joined: `most` bytes or more, but all bytes if fewer are unread."""
        parts = self.parts
        if len(parts) == 1 or self.unread <= most:
            taken = parts[0] if len(parts) == 1 else b"".join(parts)
            parts.clear()
            self.unread = 0
            return taken
        size = number = 0
        while size < most:
            size += len(parts[number])
            number += 1
        taken = b"".join(parts[:number])
        del parts[:number]
        self.unread -= size
        return taken

    def put_back(self, taken: bytes) -> None:
        if taken:
            self.parts.insert(0, taken)
            self.unread += len(taken)

    def stop(self) -> None:
        """Drop the parser, which refers to this object. Otherwise, only the garbage collector would free the two."""
        self._parser = None

    # Callbacks of the parser.

    def on_message_begin(self) -> None:
        if self.complete:
            raise GarbledAnswer("Something came behind the answer.")
        self._fields = []

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.arrived:  # Trailers are dropped.
            self._fields.append((name.lower(), value.rstrip(b" \t")))

    def on_headers_complete(self) -> None:
        parser = self._parser
        if parser is None or self.complete:
            return
        status = parser.get_status_code()
        if status < 200:
            self._interim += 1
            if status == 101 or self._interim > MOST_INTERIM:
                raise GarbledAnswer(f"Interim answer {self._interim}, with status {status}.")
            return
        fields = self._fields
        if parser.get_http_version() not in ("1.1", "1.0"):
            raise GarbledAnswer("The answer is not of HTTP/1.")
        encodings = [value for name, value in fields if name == b"transfer-encoding"]
        if encodings and (len(encodings) > 1 or encodings[0].lower() != b"chunked"):
            raise GarbledAnswer("The answer is encoded in another way than chunked.")
        if self._bare > LONGEST_HEAD and sum(len(name) + len(value) for name, value in fields) > LONGEST_HEAD:
            raise GarbledAnswer(f"The headers are longer than {LONGEST_HEAD} bytes.")
        self.status, self.headers, self.arrived = status, fields, True
        if self._to_head:
            self.complete = True  # No reuse: a body sent by mistake would precede the next answer.
        else:
            self.reusable = parser.should_keep_alive()

    def on_message_complete(self) -> None:
        self.complete = self.arrived
