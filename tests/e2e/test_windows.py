"""Windows: from the provider's own list to the request that is compacted at the right size."""

from __future__ import annotations

from typing import Any

import httpx2 as httpx

from app.http.loopback import RunningServer
from lab.simulator import Simulator
from lab.simulator.script import Fault
from tests.e2e.histories import HELLO, MODEL
from tests.e2e.raw import post
from tests.e2e.running import StartSteno, Steno

DISCOVERING: dict[str, Any] = {"upstream": {"discover_windows": True}, "models": []}


def shown(steno: Steno, key: str = "sk-test", query: str = "") -> dict[str, dict[str, Any]]:
    """The answer of GET /context/models, by name."""
    answered = httpx.get(f"{steno.url}/context/models{query}", headers={"authorization": f"Bearer {key}"})
    assert answered.status_code == 200
    return {model["id"]: model for model in answered.json()["data"]}


def window_of(steno: Steno, messages: Any = HELLO, model: str = MODEL) -> int:
    """What the answer to a chat says of the window."""
    raw = steno.sdk().chat.completions.with_raw_response.create(model=model, messages=messages)
    return int(raw.headers["x-context-window"])


def test_no_path_of_a_local_server_is_asked_of_another_provider(steno: StartSteno, simulator: Simulator) -> None:
    window_of(steno(**DISCOVERING))
    assert [record.path for record in simulator.others] == ["/v1/models"]


def test_a_dry_run_asks_the_provider_for_nothing(steno: StartSteno, simulator: Simulator) -> None:
    simulator.other_default = Fault(status=401)
    running = steno(**DISCOVERING)
    assert simulator.wait_for(lambda log: len(log) == 1)
    httpx.post(
        f"{running.url}/context/plan",
        json={"model": MODEL, "messages": HELLO},
        headers={"authorization": "Bearer sk-test"},
    )
    assert len(simulator.others) == 1


def test_a_provider_that_is_not_there_fails_no_start(start_steno: StartSteno, provider: RunningServer) -> None:
    provider.stop()
    running = start_steno(provider.url, **DISCOVERING)
    assert post(running.url, {"model": MODEL, "messages": HELLO}).status == 502
    assert set(shown(running)) <= {MODEL}
