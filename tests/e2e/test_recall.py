"""Recall: a question about what was summarised has the detail before it, in every format, and only its own."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx2
import pytest

from lab.simulator import Simulator
from tests.e2e.histories import turns, used
from tests.e2e.raw import Answer, request_bytes, send
from tests.e2e.running import StartSteno, Steno
from tests.e2e.test_three_formats import ALL, CHAT, Written

DETAIL = "The locker is behind the north stairs, code KX-4471, and the key hangs in the pantry."
QUESTION = "What is the code of the locker behind the north stairs?"


def history(detail: str = DETAIL, question: str = QUESTION) -> list[Any]:
    said = turns(15)
    said[2:2] = [{"role": "user", "content": detail}, {"role": "assistant", "content": "I keep that in mind."}]
    return [*said[:-1], {"role": "user", "content": question}]


@pytest.fixture
def running(steno: StartSteno) -> Steno:
    return started(steno)


def started(steno: StartSteno, **sections: Any) -> Steno:
    formats = {"formats": [each.name for each in ALL]}
    return steno(upstream=formats, compaction={"background": {"enabled": False}}, **sections)


def ask(running: Steno, written: Written, *headers: bytes, target: str = "", **members: Any) -> Answer:
    raw = json.dumps(written.body(history(), **members)).encode()
    usual = b"content-type: application/json", b"authorization: Bearer sk-test", *headers
    request = request_bytes(raw, *usual, target=target or written.path, usual=False)
    return send(running.url, request, timeout=30.0)


def told(answered: Answer, name: str = "messages") -> Any:
    assert answered.status == 200, answered.body
    return answered.json[name]


def test_tenants_and_conversations_never_see_each_others_words(simulator: Simulator, running: Steno) -> None:
    """All ask alike, with histories that differ in one word each."""

    async def play() -> list[tuple[str, int]]:
        async with httpx2.AsyncClient(timeout=60.0) as client:

            async def one(tenant: int, talk: int) -> tuple[str, int]:
                said = history(DETAIL.replace("KX-4471", f"KX-{tenant}{talk}99"))
                body = CHAT.body(said, conversation_id=f"talk {talk}", user=f"{tenant}{talk}")
                headers = {"authorization": f"Bearer sk-{tenant}"}
                answered = await client.post(f"{running.url}{CHAT.path}", json=body, headers=headers)
                return f"KX-{tenant}{talk}99", answered.status_code

            return await asyncio.gather(*(one(tenant, talk) for tenant in range(3) for talk in range(3) for _ in "ab"))

    codes = asyncio.run(play())
    assert {status for _, status in codes} == {200}
    seen = []
    for record in simulator.chats:
        own = f"KX-{record.payload['user']}99"
        payload = record.body.decode()
        assert [code for code, _ in codes if code in payload and code != own] == []
        assert own in payload
        seen.append(own)
    assert sorted(seen) == sorted(code for code, _ in codes)


def test_replicas_on_one_database_send_the_same_bytes(
    simulator: Simulator, steno: StartSteno, postgres_url: str
) -> None:
    """One has read the conversation all along, the other sees its end only."""
    first, second = (started(steno, storage={"url": postgres_url}) for _ in range(2))
    said = history()
    steps = [
        *used("c1", "Nothing in the pantry.", "look_up"),
    ]
    prefix = ""
    for more in ([], steps):
        bodies = []
        for replica in (first, second) if more else (first,):
            body = json.dumps(CHAT.body([*said, *more], conversation_id="same")).encode()
            answered = send(replica.url, request_bytes(body), timeout=30.0)
            assert "recalled" in told(answered, "context")["actions"]
            bodies.append(simulator.chats[-1].body)
        assert len(set(bodies)) == 1
        text = json.dumps(simulator.chats[-1].messages)[:-1]
        assert text.startswith(prefix), "through all steps of a turn"
        prefix = text
