"""Decoding of a provider's answer that goes into a stream of ours."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

from msgspec import Struct

from app.errors import UpstreamUnreadable
from app.http.encodings import DecodedTooLarge, UndecodableBody, decoders, encodings_of, ended, fed
from app.http.upstream import Headers as Received
from app.http.upstream import UpstreamAnswer
from app.proxy.caller import Caller

MOST_OF_ANSWER = 256 << 20
"""Bytes that may come of a compressed answer: several times what the longest stream has."""
ENCODING = b"content-encoding"


class Encoded(Struct, frozen=True):
    """Request as it came, and the caller and body read from it."""

    caller: Caller
    body: bytes
    plain: bytes


def plain_answer(answering: UpstreamAnswer) -> UpstreamAnswer:
    """Return a provider's answer without the encodings that it was asked not to use."""
    encodings = encodings_of(answering.headers)
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
