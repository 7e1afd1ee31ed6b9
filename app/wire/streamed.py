"""The stream that was asked for, out of whatever a provider answered with: a stream, or an answer in one piece."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Iterable

from app.errors import UpstreamUnreadable
from app.wire.format import LARGEST_WHOLE

MOST_RAW = 1_000_000
"""Values of an answer that is taken apart but not decoded; the likelihoods of 10,000 tokens are as many."""
IN_ONE_LINE = bytes.maketrans(b"\r\n", b"  ")
"""JSON has line ends between its members only; the data of a frame has none."""
_SPACE = b" \t\r\n"
_FIELD = re.compile(rb"(?:\xef\xbb\xbf)?(?:data|event|id|retry)?:")
_LONGEST_FIELD = len(b"\xef\xbb\xbfevent:")


async def streamed(
    chunks: AsyncIterator[bytes], frames_of: Callable[[bytes], Iterable[bytes]], named: str, *, is_stream: bool
) -> AsyncIterator[bytes]:
    """The frames of an answer with status 200, as they come; those of one in one piece are `frames_of` its body.

    `is_stream`: its content type says so. `named`: what it should be. Raises `UpstreamUnreadable` for an answer that is
    neither.
    """
    start = bytearray()
    first: int | None = None  # Where the first character stands.
    begun = False
    async for chunk in chunks:
        if begun:
            yield chunk
            continue
        if first is None and (said := chunk.lstrip(_SPACE)):
            first = len(start) + len(chunk) - len(said)
        start += chunk
        if first is None or start[first] in b"{[":
            if len(start) > LARGEST_WHOLE:
                raise UpstreamUnreadable(f"The provider's answer is no stream, and larger than {LARGEST_WHOLE} bytes.")
        elif is_stream or _FIELD.match(start, first):
            begun = True
            yield bytes(start)
        elif len(start) - first >= _LONGEST_FIELD or b"\n" in start[first:]:
            raise UpstreamUnreadable(f"The provider's answer is neither a stream nor a {named}.")
    if not begun and (start or not is_stream):
        yield b"".join(frames_of(bytes(start)))
