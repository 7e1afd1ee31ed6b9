"""SummaryRouting of a request: its head, byte by byte as it was given, and where its body ends."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from msgspec import Struct

from app.errors import UpstreamDisconnected

_TOKEN = b"!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_VISIBLE = bytes(range(0x21, 0x7F))
_IN_VALUES = bytes(set(range(0x100)) - {*b"\0\n\v\f\r"})
_SAYS_ITS_LENGTH = frozenset({b"POST", b"PUT", b"PATCH", b"QUERY"})
"""Methods whose requests say that they have no body."""
_SAFE = frozenset({b"GET", b"HEAD", b"OPTIONS"})
"""Methods that change nothing, so that a request may be sent twice (RFC 9110, section 9.2)."""


class WrittenHead(Struct, frozen=True):
    """A request line and headers with the blank line after them."""

    head: bytes
    length: int | None
    """Bytes of the body; None if it goes in chunks."""


class RequestHead:
    """A request line and headers, checked and written once, for any number of bodies."""

    __slots__ = ("_given", "_line", "_rest", "_says_its_length", "asks_head_alone", "is_safe")

    def __init__(
        self,
        method: bytes,
        target: bytes,
        host: bytes,
        headers: Sequence[tuple[bytes, bytes]],
    ) -> None:
        """`host` comes first. Raises `UpstreamDisconnected` for what would be read as something else."""
        _check(method, target, headers)
        self._line = b"%b %b HTTP/1.1\r\nHost: %b\r\n" % (method, target, host)
        self._rest = b"".join([b"%b: %b\r\n" % header for header in headers])
        self._given = [value for name, value in headers if len(name) == 14 and name.lower() == b"content-length"]
        self._says_its_length = method in _SAYS_ITS_LENGTH
        self.asks_head_alone = method == b"HEAD"
        self.is_safe = method in _SAFE

    def before(self, content: bytes | AsyncIterator[bytes]) -> WrittenHead:
        """The head with a length or an encoding at the end, where none was given. Raises `UpstreamDisconnected` for a
        length that is not the body's."""
        length = _length(self._given, content)
        if self._given:
            head = b"%b%b\r\n" % (self._line, self._rest)
        elif length is None:
            head = b"%b%bTransfer-Encoding: chunked\r\n\r\n" % (self._line, self._rest)
        elif length:
            head = b"%b%bContent-Length: %d\r\n\r\n" % (self._line, self._rest, length)
        elif self._says_its_length:
            head = b"%bContent-Length: 0\r\n%b\r\n" % (self._line, self._rest)
        else:
            head = b"%b%b\r\n" % (self._line, self._rest)
        return WrittenHead(head, length)


def _check(method: bytes, target: bytes, headers: Sequence[tuple[bytes, bytes]]) -> None:
    """Check all names at once, and all values: what is left without the bytes that may stand there has to be
    nothing."""
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
        # These two are ours: a second one could be read differently behind the provider's balancer.
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
    """The error for what no client may have written: for the client it looks as if the provider had refused to read
    it."""
    error = UpstreamDisconnected("The provider closed the connection before it answered.")
    error.__cause__ = ValueError(why)
    return error
