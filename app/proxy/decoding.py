"""Decoding: a body that its client compressed, made plain before it is read. What is not changed goes on as it came."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from app.core.values import value
from app.errors import BodyTooLarge
from app.headers.relayed import Headers
from app.proxy.caller import Caller
from app.tasks.threads import Work
from app.wire.encodings import DecodedTooLarge, UndecodableBody, decoded, decoders

MOST_RATIO = 100
"""Bytes that may come of one: ten times what the dullest histories have."""
SMALL_BYTES = 8 << 20
"""So many may come of any body: as a plain one it would be served, too."""
INLINE_BYTES = 262_144
"""A body is decoded in the event loop up to here: less than a millisecond's work."""
STEP_BYTES = 4 << 20
"""Decoded before they are counted, and others have their turn."""


@value
class Encoded:
    """A request as it came, and what was read of it."""

    caller: Caller
    body: bytes
    plain: bytes


async def plain_body(
    body: bytes, headers: Headers, at_most: int, count: Callable[[int], None], work: Work, tenant: str
) -> bytes | None:
    """The body without its encodings; the same where it has none, None where they cannot be undone.

    `count` is given the bytes that come of it, and may raise. Raises `BodyTooLarge`.
    """
    encodings = b",".join(value for name, value in headers if name == b"content-encoding").decode("latin-1")
    most = min(at_most, max(SMALL_BYTES, MOST_RATIO * len(body)))
    if (by := decoders(encodings, most)) is None:
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
    """The next pieces together, until they are so many bytes; nothing at the end."""
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
