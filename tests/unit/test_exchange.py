"""Exchange: what a client gets for one request, and what its provider is sent, from the gate on."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
from msgspec import Struct

from app.main import create_app
from app.proxy.exchange import Services
from app.settings import load
from app.store.conversations import find_conversation
from tests.e2e import running
from tests.e2e.histories import chat

COMPLETION: Any = {
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Yes."}, "finish_reason": "stop"}]
}


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    running.forget_environment(monkeypatch)


class Given(Struct):
    """A provider's answer that has arrived."""

    status: int
    body: bytes
    headers: tuple[tuple[bytes, bytes], ...] = ((b"content-type", b"application/json"),)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self.body

    @property
    def first_part(self) -> bytes:
        return self.body

    async def read_ahead(self, _: int, *, raises: bool = True) -> tuple[bytes, bool]:  # noqa: ARG002
        return self.body, True

    async def close(self) -> None: ...


def given(status: int = 200, **members: Any) -> Given:
    return Given(status, json.dumps(members or COMPLETION).encode())


class Steno:
    """Steno before a provider that gives these answers, the last one as often as it is asked."""

    def __init__(self, answers: Sequence[Given | Exception], sections: dict[str, Any]) -> None:
        usual: dict[str, Any] = {
            "storage": {"url": "memory"},
            "upstream": {"base_url": "http://provider.example/v1", "discover_windows": False},
            "models": [{"match": "*", "context_window": 8_000}],
        }
        self._app = create_app(load(**usual | sections))
        self.services: Services = self._app.state.services
        self._answers = list(answers)
        self.sent: list[bytes] = []
        """Bodies that the provider was sent."""
        upstream: Any = self.services.providers.default.upstream
        upstream.relay = self._relay

    async def _relay(self, _: object, body: bytes) -> Given:
        self.sent.append(body)
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def post(self, body: bytes, path: str = "/v1/chat/completions") -> httpx2.Response:
        headers = {"authorization": "Bearer k", "content-type": "application/json"}
        async with httpx2.AsyncClient(transport=httpx2.ASGITransport(self._app), headers=headers) as client:
            return await client.post(f"http://localhost{path}", content=body)


@asynccontextmanager
async def before(*answers: Given | Exception, **sections: Any) -> AsyncIterator[Steno]:
    steno = Steno(answers, sections)
    await steno.services.store.start()
    try:
        yield steno
    finally:
        await steno.services.providers.close()
        await steno.services.store.close()
        await steno.services.work.stop()


def error(response: httpx2.Response) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["message"]


def message(refusal: Given) -> tuple[int, str]:
    return refusal.status, json.loads(refusal.body)["error"]["message"]


@pytest.mark.parametrize("conversation_id", ["one", None])
async def test_a_request_under_way_stores_nothing_of_what_is_erased_meanwhile(conversation_id: str | None) -> None:
    async with before(given()) as steno:
        services, upstream = steno.services, steno.services.providers.default.upstream
        tenant = services.authenticator.identify([(b"authorization", b"Bearer k")], "127.0.0.1").tenant
        relay = upstream.relay

        async def stored() -> tuple[bool, int]:
            writes = services.store.writes
            writes.catch_up()
            waiting = len(writes.usage)
            return await services.store.rest(find_conversation, tenant, "one") is not None, waiting

        async def erase_meanwhile(*asked: Any) -> Any:
            erasing = services.erase(tenant) if conversation_id is None else services.delete(tenant, conversation_id)
            await erasing
            return await relay(*asked)

        body = chat(conversation_id="one")
        await steno.post(body)
        assert await stored() == (True, 1)
        upstream.relay = erase_meanwhile  # type: ignore[method-assign, assignment]
        assert (await steno.post(body)).status_code == 200
        assert await stored() == (False, 0)
        upstream.relay = relay  # type: ignore[method-assign]
        await steno.post(body)
        assert await stored() == (True, 1)
