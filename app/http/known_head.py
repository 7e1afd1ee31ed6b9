"""Known heads: a cache of a connection's latest request head.

A client usually sends the same head with each request of a connection, except for the digits of the body's length.
The server compares a new head with the latest one, and parses it only if they differ.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from app.http.asgi import KNOWN
from app.http.headers import Headers

END_OF_HEAD = b"\r\n\r\n"
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([1-9][0-9]{0,18})[ \t]*\r\n", re.IGNORECASE)
_ZERO = ord("0")


class KnownHead:
    __slots__ = ("_after", "_before", "_gap", "_headers", "_known", "_place", "_scope", "size")

    def __init__(self, scope: Mapping[str, Any], place: int, before: bytes, gap: int, after: bytes) -> None:
        """Remember a head. `place`: index of `content-length` in the headers; `gap`: end of its digits in the bytes."""
        self._scope = scope
        self._headers: Headers = scope["headers"]
        self._place = place
        self._before = before
        self._gap = gap
        self._after = after
        self._known: dict[str, Any] = {}
        self.size = gap + len(after)

    @classmethod
    def of(cls, head: bytes, scope: Mapping[str, Any]) -> KnownHead | None:
        """Remember the bytes of a head, and the scope parsed from them; None without a single plain content-length."""
        places = [place for place, (name, _) in enumerate(scope["headers"]) if name == b"content-length"]
        found = _LENGTH.search(head)
        if found is None or len(places) != 1 or scope["headers"][places[0]][1] != found[1]:
            return None
        start, end = found.span(1)
        own = {**scope, "headers": scope["headers"].copy(), "state": scope["state"].copy()}
        return cls(own, places[0], head[:start], end, head[end:])

    def length_in(self, data: bytes) -> bytes | None:
        """Return the digits of the length if the data begins with this head; None otherwise. The number of digits must
        be the same, so that the size of all headers stays the same."""
        if not data.startswith(self._before) or not data.startswith(self._after, self._gap):
            return None
        digits = data[len(self._before) : self._gap]
        return digits if digits.isdigit() and digits[0] != _ZERO else None

    def scope(self, length: bytes) -> dict[str, Any]:
        headers = self._headers.copy()
        headers[self._place] = (b"content-length", length)
        # Copies, so that a request's changes do not reach other requests.
        return {**self._scope, "headers": headers, "state": self._scope["state"].copy(), KNOWN: self._known}
