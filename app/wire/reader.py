"""Reading messages: raw ones to core messages, each once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from threading import Lock

from app.core.history.identity import Identity
from app.core.history.messages import Message
from app.memory.bounded import BoundedMap
from app.wire.format import Decode


class MessageReader:
    """Raw messages to core messages; what was read before is not read or digested again."""

    def __init__(
        self, identity: Identity, decode: Decode, ignore: Sequence[str] = (), cache_bytes: int = 32 << 20
    ) -> None:
        """`decode` is that of the messages' format; `ignore` are patterns of volatile text, such as a date that a
        client injects: it is no part of what a message means."""
        self._identity = identity
        self._decode = decode
        self._ignore = tuple(re.compile(pattern) for pattern in ignore)
        self._cache: BoundedMap[bytes, Message] = BoundedMap(
            most_bytes=cache_bytes, size=lambda message: len(message.raw)
        )
        self._lock = Lock()  # Long histories are read in worker threads.

    def unread_bytes(self, raw_messages: Iterable[bytes]) -> int:
        """Size of the messages that would have to be read."""
        return sum(len(raw) for raw in raw_messages if raw not in self._cache)

    def read(self, raw_messages: Sequence[bytes]) -> tuple[Message, ...]:
        """Raises `Unreadable` where an element is no message."""
        with self._lock:
            held = [self._cache.use(raw) for raw in raw_messages]
        return tuple(
            message or self._remember(self._read(raw)) for raw, message in zip(raw_messages, held, strict=True)
        )

    def _remember(self, message: Message) -> Message:
        """The message, or an equal one that another thread was faster to keep."""
        with self._lock:
            if (held := self._cache.get(message.raw)) is not None:
                return held
            self._cache.keep(message.raw, message)
        return message

    def _read(self, raw: bytes) -> Message:
        draft = self._decode(raw, self._ignore)
        return replace(draft.message, digest=self._identity.digest(b"message", draft.canonical))
