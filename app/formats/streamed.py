"""The stream that was asked for, out of whatever a provider answered with: a stream, or an answer in one piece."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

import msgspec

from app.errors import UpstreamUnreadable
from app.formats.members import RawObject, TooManyValues, Unreadable, holds_more_values

LARGEST_WHOLE = 16 << 20
"""Bytes of an answer in one piece that are held, to tell something in it or to make it a stream.

The longest texts of today's models take 1 MB, an answer with a picture a few.
"""
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


@contextmanager
def taken_apart(named: str) -> Iterator[None]:
    """Raises `UpstreamUnreadable` where an answer in one piece is found not to be what it should be, `named`."""
    try:
        yield
    except TooManyValues as error:
        raise UpstreamUnreadable(f"The provider's answer is no {named}: {error}.") from error
    except Unreadable as error:
        raise UpstreamUnreadable(f"The provider's answer is no {named}.") from error


def read_whole(body: bytes) -> RawObject:
    """An answer in one piece, without line ends. Raises `Unreadable`."""
    if holds_more_values(body, MOST_RAW):
        raise TooManyValues(f"it has over {MOST_RAW} values")
    return RawObject(body.translate(IN_ONE_LINE))


def written(members: Mapping[str, bytes]) -> bytes:
    """The JSON of an object with these members."""
    return b"{" + b",".join(msgspec.json.encode(name) + b":" + value for name, value in members.items()) + b"}"
