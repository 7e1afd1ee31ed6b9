"""The script: which requests are answered otherwise than by a plain good answer, and how."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from lab.simulator.log import Kind, Record

Cut = Literal["reset", "close", "end"]
"""How an answer breaks off: TCP reset; connection closed in mid-answer; a clean HTTP end without `[DONE]`."""

Headers = Mapping[str, str] | Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedCall:
    """A call for the model to make."""

    name: str
    arguments: str = "{}"
    id: str | None = None
    """None: made from the request's sequence number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """How one answer departs from a plain good one. The defaults are the plain good one."""

    # The HTTP answer
    status: int = 200
    headers: Headers = ()
    """Added to the usual ones, or in place of one of the same name."""
    retry_after: float | None = None
    """Seconds; sent as `retry-after` (whole seconds) and `retry-after-ms`."""
    error: Mapping[str, Any] | None = None
    """The error object of a status from 400 on; None: OpenAI's own for that status."""
    body: bytes | None = None
    """Exactly these bytes as the answer, whatever was asked for."""
    # Time, in seconds
    delay: float = 0.0
    """Before the headers."""
    first_token_delay: float = 0.0
    """Between the headers and the first frame of a stream."""
    chunk_delay: float = 0.0
    """Seconds before each further frame."""
    hang: bool = False
    """Never answer."""

    # What the model says
    text: str | None = None
    """None: the simulator's reply, or a summary."""
    words: int | None = None
    """Bring the text to so many words: cut, or filled up."""
    thinking: str | None = None
    """Thinking before the answer, where the format shows that; None: what the model usually does."""
    tool_calls: Sequence[ScriptedCall] = ()
    """Made instead of a text, unless `text` is given too."""
    finish_reason: str | None = None
    usage: Mapping[str, Any] | None = None
    """Members in place of the counted ones."""
    # How a stream is written
    cut: Cut | None = None
    """Break off after `after` frames of a stream, or after `after` bytes of another answer."""
    after: int = 0


Predicate = Callable[[Record], bool]


@dataclass(slots=True)
class _Entry:
    predicate: Predicate
    fault: Fault
    left: int | None


class Script:
    """Faults to come, oldest first: a request takes the first that fits. May be written from any thread."""

    def __init__(self) -> None:
        self._entries: list[_Entry] = []
        self._lock = threading.Lock()

    def next(self, kind: Kind, fault: Fault) -> None:
        """Add a fault for the next acceptable request of this kind."""
        self.when(lambda record: record.kind == kind, fault, times=1)

    def when(self, predicate: Predicate, fault: Fault, times: int | None = None) -> None:
        """Add a fault for each acceptable request that satisfies the predicate, or for the first so many."""
        with self._lock:
            self._entries.append(_Entry(predicate, fault, times))

    def take(self, record: Record) -> Fault | None:
        """The fault for this request, used up."""
        with self._lock:
            entry = next((entry for entry in self._entries if entry.predicate(record)), None)
            if entry is None:
                return None
            if entry.left is not None:
                entry.left -= 1
                if not entry.left:
                    self._entries.remove(entry)
            return entry.fault

    def clear(self) -> None:
        with self._lock:
            self._entries.clear()
