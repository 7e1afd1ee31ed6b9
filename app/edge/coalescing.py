"""Write coalescing: writes of several requests in one turn of the event loop leave together, at its end.

A write wakes whoever waits at the other end of the socket. Between two writes of one turn lies all that is done for a
request: on a machine that both sides share, each write would find its reader asleep again, and to wake one takes longer
than to write. Written right behind each other, the first one wakes it for all.

Whoever writes alone writes at once. How many will write is not known beforehand, but how many received something since
the last turn is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any
from weakref import WeakKeyDictionary

MOST_HELD = 64 << 10
"""Bytes held of one connection. More than this leaves at once: to copy it takes longer, and whoever writes it is to
learn when the other side takes no more."""


class Turn:
    """Writes that leave at the end of a loop's turn."""

    def __init__(self) -> None:
        self.arrivals = 0
        """Connections that received something, since anything was written."""
        self._waiting: list[CoalescingTransport] = []

    def takes(self, transport: CoalescingTransport) -> bool:
        """True if the connection is to send at the end of the turn; false if it is alone."""
        if not self._waiting:
            arrivals, self.arrivals = self.arrivals, 0
            if arrivals <= 1:
                return False
            asyncio.get_running_loop().call_soon(self._end)
        self._waiting.append(transport)
        return True

    def _end(self) -> None:
        waiting, self._waiting = self._waiting, []
        for transport in waiting:
            transport.flush()


_TURNS: WeakKeyDictionary[asyncio.AbstractEventLoop, Turn] = WeakKeyDictionary()


class CoalescingTransport:
    """Transport that may send at the end of the turn; always in the order in which it was written to."""

    def __init__(self, transport: Any) -> None:
        """Wrap asyncio's transport, or uvloop's, which is none of asyncio's classes. Called in its loop."""
        self._transport = transport
        self.turn = _TURNS.setdefault(asyncio.get_running_loop(), Turn())
        self._held = b""

    def __getattr__(self, name: str) -> Any:
        """Pass on everything that has nothing to do with writing."""
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        held = self._held
        if len(held) + len(data) > MOST_HELD:
            self.flush()
            self._transport.write(data)
        elif held:
            self._held = held + data
        elif self.turn.takes(self):
            self._held = data
        else:
            self._transport.write(data)

    def writelines(self, pieces: Iterable[bytes]) -> None:
        pieces = tuple(pieces)
        if len(self._held) + sum(map(len, pieces)) > MOST_HELD:
            self.flush()
            self._transport.writelines(pieces)
        else:
            self.write(b"".join(pieces))

    def flush(self) -> None:
        """Send everything written so far."""
        held, self._held = self._held, b""
        if held and not self._transport.is_closing():  # uvloop's would raise.
            self._transport.write(held)

    def get_write_buffer_size(self) -> int:
        """Bytes that were written and have not left."""
        return len(self._held) + int(self._transport.get_write_buffer_size())

    def is_closing(self) -> bool:
        return bool(self._transport.is_closing())

    def close(self) -> None:
        """Close once everything written is sent."""
        self.flush()
        self._transport.close()

    def write_eof(self) -> None:
        self.flush()
        self._transport.write_eof()

    def abort(self) -> None:
        """Close at once: bytes that were not sent are dropped."""
        self._held = b""
        self._transport.abort()
