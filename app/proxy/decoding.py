"""Decoding: compressed bodies made plain before they are read. A client's body goes on as it came if it is not
changed; a provider's answer is decoded that goes into a stream of ours."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from functools import partial

from msgspec import Struct

from app.errors import BodyTooLarge, UpstreamUnreadable
from app.http.encodings import DecodedTooLarge, UndecodableBody, decoded, decoders, ended, fed
from app.http.relayed import Headers
from app.http.upstream import Headers as Received
from app.http.upstream import UpstreamAnswer
from app.proxy.caller import Caller
from app.runtime.tasks import Work

MOST_RATIO = 100
"""Bytes that may come of one: ten times what the dullest histories have."""
SMALL_BYTES = 8 << 20
"""Bytes that may come of any body: as a plain one it would be served, too."""
INLINE_BYTES = 262_144
"""Bytes of a body up to which it is decoded in the event loop: less than a millisecond's work."""
STEP_BYTES = 4 << 20
"""Bytes decoded before they are counted, and others have their turn."""
MOST_OF_ANSWER = 256 << 20
"""Bytes that may come of a compressed answer: several times what the longest stream has."""
ENCODING = b"content-encoding"


class Encoded(Struct, frozen=True):
    """Request as it came, and the caller and body read from it."""

    caller: Caller
    body: bytes
    plain: bytes


async def plain_body(
    body: bytes, headers: Headers, at_most: int, count: Callable[[int], None], work: Work, tenant: str
) -> bytes | None:
    """Return the body without its encodings; the same if it has none, None if they cannot be undone.

    `count` is given the bytes that come of it, and may raise. Raises `BodyTooLarge`.
    """
    most = min(at_most, max(SMALL_BYTES, MOST_RATIO * len(body)))
    if (by := decoders(_encodings(headers), most)) is None:
        return None
    if not by:
        return body
    pieces, found = decoded(body, by), list[bytes]()
    try:
        if len(body) <= INLINE_BYTES and len(by) == 1:
            found.append(_taken(pieces, INLINE_BYTES))
            count(len(found[0]))
            if len(found[0]) < INLINE_BYTES:
                return found[0]
        while step := await work.do(tenant, partial(_taken, pieces, STEP_BYTES)):
            count(len(step))
            found.append(step)
        return b"".join(found)
    except UndecodableBody:
        return None
    except DecodedTooLarge as error:
        raise BodyTooLarge(_too_large(len(body), at_most, most)) from error


def _taken(pieces: Iterator[bytes], most: int) -> bytes:
    """Take the next pieces together, until they are so many bytes; nothing at the end."""
    taken, size = [], 0
    for piece in pieces:
        taken.append(piece)
        size += len(piece)
        if size >= most:
            break
    return b"".join(taken)


def _too_large(sent: int, at_most: int, most: int) -> str:
    if most == at_most:
        return f"The request body has more than {at_most} bytes when decoded. Send less, or raise limits.body_bytes."
    return (
        f"The request body has {sent} bytes, and more than {most} when decoded: at most {MOST_RATIO} times as many may"
        " come of it. Send it without content-encoding."
    )


def _encodings(headers: Iterable[tuple[bytes, bytes]]) -> str:
    return b",".join(value for name, value in headers if name == ENCODING).decode("latin-1")


def plain_answer(answering: UpstreamAnswer) -> UpstreamAnswer:
    """Return a provider's answer without the encodings that it was asked not to use."""
    encodings = _encodings(answering.headers)
    return PlainAnswer(answering, encodings) if encodings.strip().lower() not in ("", "identity") else answering


class WrappedAnswer(Struct):
    """Provider's answer that is passed on with other bytes."""

    answering: UpstreamAnswer

    @property
    def status(self) -> int:
        return self.answering.status

    @property
    def headers(self) -> Received:
        return self.answering.headers

    async def close(self) -> None:
        await self.answering.close()


class PlainAnswer(WrappedAnswer):
    """Compressed answer, decoded as it arrives."""

    encodings: str

    @property
    def headers(self) -> Received:
        return [header for header in self.answering.headers if header[0] != ENCODING]

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield decoded pieces. Raises `UpstreamUnreadable`, too."""
        if (by := decoders(self.encodings, MOST_OF_ANSWER)) is None:
            raise UpstreamUnreadable(
                "The provider's answer is compressed, although it was asked not to be, in a way that Steno cannot undo:"
                f" {self.encodings:.100}. Steno can undo gzip, deflate and zstd."
            )
        try:
            async for chunk in self.answering.chunks():
                async for piece in _in_turns(fed(by, chunk)):
                    yield piece
            async for piece in _in_turns(ended(by)):
                yield piece
        except UndecodableBody as error:
            text = f"The provider's answer is compressed, and not as its content-encoding says: {error}"
            raise UpstreamUnreadable(text) from error
        except DecodedTooLarge as error:
            text = f"The provider's answer is compressed, and has more than {MOST_OF_ANSWER} bytes when decoded."
            raise UpstreamUnreadable(text) from error


async def _in_turns(pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    """Decode in turns: a few bytes may stand for very many, so after each piece others have their turn."""
    for number, piece in enumerate(pieces):
        if number:
            await asyncio.sleep(0)
        yield piece
