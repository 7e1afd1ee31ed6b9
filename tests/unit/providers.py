"""Providers without a network: our own client, before answers that respx gives it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from itertools import count
from typing import Any

import httpx2
import msgspec
import pytest
import respx

from app.http.headers import new_instance
from app.http.upstream import Upstream

NETWORK = respx.MockRouter(using="httpx", assert_all_called=False)
_NUMBERS = count(1)


@pytest.fixture
def network() -> Iterator[respx.MockRouter]:
    """While it is there, no request leaves the process; one that has no answer fails."""
    with NETWORK:
        yield NETWORK


class Body(httpx2.AsyncByteStream):
    """An answer's body as it comes over a network: respx's own is read before our client sees it."""

    def __init__(self, *pieces: bytes) -> None:
        self._pieces = pieces

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            yield piece


def answer(status: int, *pieces: bytes, **headers: str) -> Any:  # respx's types know httpx alone.
    return httpx2.Response(
        status, headers={name.replace("_", "-"): headers[name] for name in headers}, stream=Body(*pieces)
    )


class MockedUpstream(Upstream):
    """A provider of its own, in the `network`.

    It answers each path with the JSON that stands there, with a status, or by raising; 404 for every other one.
    """

    def __init__(self, answers: dict[str, Any] | None = None) -> None:
        host = f"provider{next(_NUMBERS)}.example"
        super().__init__(f"https://{host}/v1", 1.0, 60.0, 60.0, new_instance())
        self.answers = answers or {}
        self.asked: list[tuple[str, dict[bytes, bytes], bytes]] = []
        self.delay = 0.0
        NETWORK.route(host=host).mock(side_effect=self._answer)

    @property
    def paths(self) -> list[str]:
        return [path for path, _, _ in self.asked]

    async def _answer(self, request: Any) -> Any:
        # The path is not in the URL: our client sends its target as it is.
        path, headers = request.extensions["target"].decode(), dict(request.headers.raw)
        self.asked.append((path, headers, request.content))
        await asyncio.sleep(self.delay)
        told = self.answers.get(path, 404)
        if callable(told):
            told = told(headers, request.content)
        if isinstance(told, Exception):
            raise told
        if isinstance(told, int):
            return answer(told, b"{}")
        return answer(200, told if isinstance(told, bytes) else msgspec.json.encode(told))


def listing(*entries: dict[str, Any]) -> dict[str, Any]:
    """An answer of /v1/models."""
    return {"object": "list", "data": [{"object": "model", **entry} for entry in entries]}
