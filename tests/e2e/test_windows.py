"""Windows: from the provider's own list to the request that is compacted at the right size."""

from __future__ import annotations

import time
from typing import Any

import httpx2 as httpx
import pytest

from app.runtime.server import RunningServer
from lab.simulator import Model, Simulator
from lab.simulator.listings import Shape
from lab.simulator.script import Fault
from tests.e2e.histories import HELLO, MODEL, long_history
from tests.e2e.raw import get, post
from tests.e2e.running import WINDOW, StartSteno, Steno

DISCOVERING: dict[str, Any] = {"upstream": {"discover_windows": True}, "models": []}
REFUSAL = {"message": "prompt is too long: 9000 tokens > 6000 maximum", "type": "invalid_request_error", "code": None}


def shown(steno: Steno, key: str = "sk-test", query: str = "") -> dict[str, dict[str, Any]]:
    """The answer of GET /context/models, by name."""
    answered = httpx.get(f"{steno.url}/context/models{query}", headers={"authorization": f"Bearer {key}"})
    assert answered.status_code == 200
    return {model["id"]: model for model in answered.json()["data"]}


def window_of(steno: Steno, messages: Any = HELLO, model: str = MODEL) -> int:
    """What the answer to a chat says of the window."""
    raw = steno.sdk().chat.completions.with_raw_response.create(model=model, messages=messages)
    return int(raw.headers["x-context-window"])


def becomes(steno: Steno, window: int) -> bool:
    """Whether the window is so before long: an answer is learnt from after it was given."""
    deadline = time.monotonic() + 30
    while (now := window_of(steno)) != window and time.monotonic() < deadline:
        time.sleep(0.02)
    return now == window


@pytest.mark.parametrize("listing", ["plain", "vllm", "openrouter", "groq", "mistral", "lmstudio", "ollama"])
def test_a_request_is_compacted_at_the_size_the_provider_announces(
    steno: StartSteno, simulator: Simulator, listing: Shape
) -> None:
    """The registry knows 128,000 tokens; this provider runs the model with 8,000."""
    simulator.listing = listing
    running = steno(**DISCOVERING)
    raw = running.sdk().chat.completions.with_raw_response.create(model=MODEL, messages=long_history())
    assert raw.headers["x-context-window"] == str(WINDOW)
    assert raw.headers["x-context-status"] == "summarized"
    assert shown(running)[MODEL]["source"] == "provider"


def test_llama_cpp_tells_the_context_of_its_slot(steno: StartSteno, simulator: Simulator) -> None:
    simulator.listing = "llamacpp"
    simulator.models = {MODEL: Model(MODEL)}
    assert window_of(steno(**DISCOVERING)) == WINDOW
    assert [record.path for record in simulator.others] == ["/v1/models", "/props"]


def test_no_path_of_a_local_server_is_asked_of_another_provider(steno: StartSteno, simulator: Simulator) -> None:
    window_of(steno(**DISCOVERING))
    assert [record.path for record in simulator.others] == ["/v1/models"]


def test_a_setting_wins_over_the_providers_word(steno: StartSteno) -> None:
    running = steno(upstream={"discover_windows": True}, models=[{"match": MODEL, "context_window": 6_000}])
    assert window_of(running) == 6_000
    assert shown(running)[MODEL]["source"] == "config"


def test_a_provider_that_wants_a_key_is_asked_again_with_the_callers(steno: StartSteno, simulator: Simulator) -> None:
    simulator.when(lambda record: record.kind == "other" and not record.header("authorization"), status=401)
    running = steno(**DISCOVERING)
    assert simulator.wait_for(lambda log: any(record.status == 401 for record in log))
    assert window_of(running) == WINDOW
    assert [record.header("authorization") for record in simulator.others] == [None, "Bearer sk-test"]
    assert shown(running)[MODEL]["source"] == "provider"


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


def test_a_refusal_teaches_the_window_and_a_larger_prompt_unteaches_it(steno: StartSteno, simulator: Simulator) -> None:
    simulator.announce_window = False
    simulator.window = 128_000
    running = steno(**DISCOVERING, compaction={"enabled": False})
    simulator.next_chat(status=400, error=REFUSAL)
    assert post(running.url, {"model": MODEL, "messages": long_history()}).status == 400
    assert becomes(running, 6_000)
    assert shown(running)[MODEL]["source"] == "learnt"
    simulator.next_chat(usage={"prompt_tokens": 6_001, "completion_tokens": 1, "total_tokens": 6_002})
    window_of(running)
    assert becomes(running, 128_000)


def test_a_refusal_teaches_nothing_below_the_output_asked_for_or_what_was_answered(
    steno: StartSteno, simulator: Simulator
) -> None:
    simulator.announce_window = False
    simulator.window = 128_000
    running = steno(**DISCOVERING, compaction={"enabled": False})
    simulator.next_chat(status=400, error={**REFUSAL, "message": "prompt is too long, the maximum is 6000 tokens"})
    body = {"model": MODEL, "messages": long_history(), "max_tokens": 6_500}
    assert post(running.url, body).status == 400
    assert window_of(running) == 128_000
    simulator.next_chat(usage={"prompt_tokens": 6_001, "completion_tokens": 1, "total_tokens": 6_002})
    window_of(running)
    simulator.next_chat(status=400, error=REFUSAL)
    assert post(running.url, {"model": MODEL, "messages": long_history()}).status == 400
    assert window_of(running) == 128_000


def test_the_windows_are_listed_with_where_each_is_from(steno: StartSteno, simulator: Simulator) -> None:
    simulator.models = {name: Model(name) for name in ("gpt-4o", "gpt-4.1")}
    running = steno(
        upstream={"discover_windows": True},
        models=[
            {"match": "mine", "context_window": 32_000, "max_input_tokens": 30_000},
            {"match": "c*", "base_model": "o3"},
        ],
    )
    post(running.url, {"model": "chat-prod", "messages": HELLO})
    models = shown(running)
    assert list(models) == ["chat-prod", "gpt-4.1", "gpt-4o", "mine"]
    assert models["mine"] == {
        "id": "mine",
        "object": "model_window",
        "upstream": "default",
        "context_window": 32_000,
        "max_input_tokens": 30_000,
        "max_output_tokens": None,
        "source": "config",
        "note": None,
        "base_model": "mine",
        "listed": False,
    }
    assert models["gpt-4o"]["listed"]
    prod = models["chat-prod"]
    assert (prod["source"], prod["base_model"], prod["context_window"]) == ("bundled", "o3", 200_000)
    assert "chat-prod" not in shown(running, key="sk-somebody-else")


@pytest.mark.parametrize("listing", ["plain", "ollama"])
def test_a_window_of_no_plausible_size_is_not_believed_and_harms_nobody(
    steno: StartSteno, simulator: Simulator, listing: Shape
) -> None:
    simulator.listing = listing
    simulator.models = {"odd": Model("odd", window=2**63), "m": Model("m")}
    running = steno(**DISCOVERING)
    assert window_of(running, long_history(2), model="m") == WINDOW
    assert window_of(running, model="odd") == (128_000 if listing == "plain" else 4_096)
    simulator.next_chat(usage={"prompt_tokens": 10**30, "completion_tokens": 1, "total_tokens": 1})
    window_of(running, model="odd")
    assert shown(running)["odd"]["context_window"] < 2**63
    answered = get(running.url, "/context/conversations", b"authorization: Bearer sk-test")
    assert answered.status == 200
    assert {conversation["model"] for conversation in answered.json["data"]} == {"m", "odd"}
    assert running.services.store.writes.dropped == 0


def test_the_list_of_windows_is_paged(steno: StartSteno) -> None:
    running = steno(models=[{"match": name, "context_window": 5_000} for name in "abc"])
    assert list(shown(running, query="?limit=2")) == ["a", "b"]
    assert list(shown(running, query="?limit=2&after=b")) == ["c"]
    assert list(shown(running, query="?order=desc&after=c")) == ["b", "a"]
    key = b"authorization: Bearer sk-test"
    assert get(running.url, "/context/models?after=x", key).json["error"]["param"] == "after"
    assert get(running.url, "/context/models?limit=2", key).json["has_more"]


def test_a_provider_that_is_not_there_fails_no_start(start_steno: StartSteno, provider: RunningServer) -> None:
    provider.stop()
    running = start_steno(provider.url, **DISCOVERING)
    assert post(running.url, {"model": MODEL, "messages": HELLO}).status == 502
    assert set(shown(running)) <= {MODEL}
