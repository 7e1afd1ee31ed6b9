"""Exchange: what is stored of one request, from the gate on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from app.main import create_app
from app.settings import load
from app.store.conversations import find_conversation
from tests.e2e import running
from tests.e2e.histories import chat

COMPLETION = (
    b'{"choices": [{"index": 0, "message": {"role": "assistant", "content": "Yes."}, "finish_reason": "stop"}]}'
)


class Completion:
    """A provider's answer that has arrived."""

    status = 200
    headers = ((b"content-type", b"application/json"),)
    first_part = COMPLETION

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield COMPLETION

    async def read_ahead(self, _: int, *, raises: bool = True) -> tuple[bytes, bool]:  # noqa: ARG002
        return COMPLETION, True

    async def close(self) -> None: ...


async def relay(*_: object) -> Completion:
    return Completion()


@pytest.fixture
async def app(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Any]:
    """Steno before a provider that answers everything with a word."""
    running.forget_environment(monkeypatch)
    upstream = {"base_url": "http://provider.example/v1", "discover_windows": False}
    models = [{"match": "*", "context_window": 8_000}]
    app: Any = create_app(load(storage={"url": "memory"}, upstream=upstream, models=models))
    services = app.state.services
    services.providers.default.upstream.relay = relay
    await services.store.start()
    yield app
    await services.providers.close()
    await services.store.close()
    await services.work.stop()


@pytest.mark.parametrize("conversation_id", ["one", None])
async def test_a_request_under_way_stores_nothing_of_what_is_erased_meanwhile(
    app: Any, conversation_id: str | None
) -> None:
    services, upstream = app.state.services, app.state.services.providers.default.upstream
    tenant = services.authenticator.identify([(b"authorization", b"Bearer k")], "127.0.0.1").tenant

    async def post() -> int:
        headers = {"authorization": "Bearer k", "content-type": "application/json"}
        async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), headers=headers) as client:
            answered = await client.post("http://localhost/v1/chat/completions", content=chat(conversation_id="one"))
        return int(answered.status_code)

    async def stored() -> tuple[bool, int]:
        writes = services.store.writes
        writes.catch_up()
        waiting = len(writes.usage)
        return await services.store.rest(find_conversation, tenant, "one") is not None, waiting

    async def erase_meanwhile(*asked: Any) -> Any:
        await (services.erase(tenant) if conversation_id is None else services.delete(tenant, conversation_id))
        return await relay(*asked)

    assert await post() == 200
    assert await stored() == (True, 1)
    upstream.relay = erase_meanwhile
    assert await post() == 200
    assert await stored() == (False, 0)
    upstream.relay = relay
    await post()
    assert await stored() == (True, 1)
