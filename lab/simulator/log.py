"""The log: every request as it arrived, and what became of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import msgspec

Kind = Literal["chat", "summary", "other"]

NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Errors that msgspec raises for bytes that are no JSON, or nested too deeply."""


@dataclass(frozen=True)
class Record:
    """One request. Times are of the monotonic clock; what is not known yet is None."""

    sequence: int
    """Number from 1, never reused, also not after the log is emptied."""
    at: float
    """Moment at which the body had arrived."""
    method: str
    target: str
    """Path and query as received."""
    headers: tuple[tuple[bytes, bytes], ...]
    """Headers as received: order, case and repeats."""
    body: bytes
    kind: Kind
    """chat: a conversation in one of the formats; summary: one with the header `x-context-call: summary`."""
    prompt_tokens: int | None = None
    status: int | None = None
    refusal: str | None = None
    """Why it was not accepted, in the provider's words."""
    text: str | None = None
    """The text chosen for the answer; a cut answer held less of it."""
    usage: Mapping[str, Any] | None = None
    finished_at: float | None = None
    """When the answer was complete, or cut by a fault."""
    disconnected_at: float | None = None
    """When the caller closed before the answer was complete."""

    @cached_property
    def payload(self) -> Any:
        """The body as JSON, None if it is none."""
        try:
            return msgspec.json.decode(self.body)
        except NOT_JSON:
            return None

    @property
    def messages(self) -> list[Any] | None:
        """The messages in the body, None if it has none."""
        messages = self.payload.get("messages") if isinstance(self.payload, dict) else None
        return messages if isinstance(messages, list) else None

    @property
    def request_id(self) -> str:
        return f"req_{self.sequence:012d}"

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]

    def header(self, name: str) -> str | None:
        """The first header of that name, in whatever case."""
        wanted = name.lower().encode("latin-1")
        return next((value.decode("latin-1") for key, value in self.headers if key.lower() == wanted), None)


class Log:
    """The last `limit` records, readable from any thread."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._records: dict[int, Record] = {}
        self._sequence = 0
        self._changed = threading.Condition()

    def next_sequence(self) -> int:
        with self._changed:
            self._sequence += 1
            return self._sequence

    def add(self, record: Record) -> None:
        with self._changed:
            self._records[record.sequence] = record
            if len(self._records) > self._limit:
                del self._records[next(iter(self._records))]
            self._changed.notify_all()

    def update(self, sequence: int, **changes: Any) -> None:
        """Add what became known. A record that was cleared meanwhile stays away."""
        with self._changed:
            if sequence in self._records:
                self._records[sequence] = replace(self._records[sequence], **changes)
                self._changed.notify_all()

    def records(self) -> tuple[Record, ...]:
        with self._changed:
            return tuple(self._records.values())

    def clear(self) -> None:
        with self._changed:
            self._records.clear()

    def wait(self, condition: Callable[[tuple[Record, ...]], bool], timeout: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: condition(tuple(self._records.values())), timeout)
