"""The state that an open page of a conversation asks for."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import httpx2

from tests.e2e.histories import chat, turns
from tests.e2e.running import StartSteno, Steno

STATUS = "/ui/conversations/one/status"


def send(to: Steno, number: int, key: str = "", name: str = "one") -> None:
    headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {key}"} if key else {})
    body = chat(turns(number), conversation_id=name)
    httpx2.post(f"{to.base_url}/chat/completions", content=body, headers=headers, timeout=30).raise_for_status()


def state(of: Steno) -> dict[str, Any]:
    return dict(httpx2.get(of.url + STATUS).raise_for_status().json())


def test_it_says_when_the_latest_request_was(steno: StartSteno) -> None:
    started = steno()
    send(started, 2)
    first = state(started)
    send(started, 3)
    assert datetime.fromisoformat(state(started)["updated"]) > datetime.fromisoformat(first["updated"])
