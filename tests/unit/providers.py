"""A provider that answers questions from a table, without a network."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any

import msgspec

from app.upstream import Answering, Completed, Headers


@dataclass
class FakeUpstream:
    """Answers each path with the JSON that stands there, with a status, or by raising; 404 for every other one."""

    answers: dict[str, Any] = field(default_factory=dict)
    asked: list[tuple[str, dict[bytes, bytes], bytes]] = field(default_factory=list)
    delay: float = 0.0

    @property
    def paths(self) -> list[str]:
        return [path for path, _, _ in self.asked]

    async def ask(self, target: bytes, headers: Headers, seconds: float, body: bytes = b"") -> Completed:
        path = target.decode()
        self.asked.append((path, dict(headers), body))
        await asyncio.sleep(min(self.delay, seconds))
        answer = self.answers.get(path, 404)
        if callable(answer):
            answer = answer(dict(headers), body)
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, int):
            return Completed(answer, (), b"{}")
        return Completed(200, (), answer if isinstance(answer, bytes) else msgspec.json.encode(answer))

    async def relay(
        self, method: bytes, target: bytes, headers: Headers, content: bytes | AsyncIterator[bytes]
    ) -> Answering:
        raise NotImplementedError

    def completion(self, body: bytes, headers: Headers, seconds: float) -> AbstractAsyncContextManager[Answering]:
        raise NotImplementedError

    async def close(self) -> None: ...


def listing(*entries: dict[str, Any]) -> dict[str, Any]:
    """An answer of /v1/models."""
    return {"object": "list", "data": [{"object": "model", **entry} for entry in entries]}
