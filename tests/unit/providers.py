"""Providers without a network: our own client, before answers that it is given."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import count
from typing import Any

import msgspec
from msgspec import Struct

from app.http.headers import new_instance
from app.http.http1 import RequestHead
from app.http.upstream import Upstream

_NUMBERS = count(1)


class Answer(Struct):
    status: int
    headers: list[tuple[bytes, bytes]]
    pieces: tuple[bytes, ...]

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self.pieces:
            yield piece

    async def read_ahead(self, most: int) -> tuple[bytes, bool]:
        body = b"".join(self.pieces)
        return body, len(body) <= most

    async def close(self) -> None: ...


def answer(status: int, *pieces: bytes, **headers: str) -> Answer:
    named = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return Answer(status, named, pieces)


class MockedUpstream(Upstream):
    """A provider of its own, without a network.

    It answers each path with the JSON that stands there, with a status, an answer, or by raising, or as a function
    says; 404 for every other one.
    """

    def __init__(self, answers: dict[str, Any] | None = None) -> None:
        super().__init__(f"https://provider{next(_NUMBERS)}.example/v1", 1.0, 60.0, 60.0, new_instance())
        self.answers = answers or {}
        self.asked: list[tuple[str, dict[bytes, bytes], bytes]] = []
        self.delay = 0.0

    @property
    def paths(self) -> list[str]:
        return [path for path, _, _ in self.asked]

    async def relay(self, head: RequestHead, content: Any) -> Any:
        line, *lines = head.for_body(content)[0].strip().split(b"\r\n")
        path, headers = line.split(b" ")[1].decode(), dict(each.split(b": ", 1) for each in lines)
        self.asked.append((path, {name.lower(): value for name, value in headers.items()}, content))
        await asyncio.sleep(self.delay)
        told = self.answers.get(path, 404)
        if callable(told):
            told = told(headers, content)
        if isinstance(told, Exception):
            raise told
        if isinstance(told, Answer):
            return told
        if isinstance(told, int):
            return answer(told, b"{}")
        return answer(200, told if isinstance(told, bytes) else msgspec.json.encode(told))


def listing(*entries: dict[str, Any]) -> dict[str, Any]:
    """An answer of /v1/models."""
    return {"object": "list", "data": [{"object": "model", **entry} for entry in entries]}
