"""Several providers behind one Steno: which one gets a request, whose key it sees, and what is kept apart."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from app.http import credentials
from app.http.loopback import RunningServer
from lab.replay.stage import stage
from lab.simulator import Fault, Model, Simulator
from tests.e2e import commands
from tests.e2e.conftest import TABLES
from tests.e2e.histories import HELLO, MODEL, chat, long_history
from tests.e2e.raw import CHAT, Answer, post, request_bytes, send
from tests.e2e.running import WINDOW, StartSteno, Steno

CLIENTS_KEY = "sk-the-clients-own"
OWN_KEY = "sk-the-operators-for-other"
DEFAULT_KEY = "sk-the-operators-for-default"
CREDENTIALS = tuple(b"%b: %b" % (name.title(), CLIENTS_KEY.encode()) for name in sorted(credentials.CREDENTIALS))

StartBoth = Callable[..., Steno]


@pytest.fixture
def other() -> Simulator:
    """The provider under `upstreams.other`."""
    return Simulator(window=WINDOW, models="any", tables=TABLES)


@pytest.fixture
def other_provider(other: Simulator) -> Iterator[RunningServer]:
    with other.serve() as server:
        yield server


@pytest.fixture
def both(steno: StartSteno, other_provider: RunningServer, monkeypatch: pytest.MonkeyPatch) -> StartBoth:
    """Starts Steno before two providers; keywords with `other=` are settings of the second one."""
    monkeypatch.setenv("OTHER_KEY", OWN_KEY)
    monkeypatch.setenv("DEFAULT_KEY", DEFAULT_KEY)

    def start(other: dict[str, Any] | None = None, **sections: Any) -> Steno:
        entry = {"base_url": f"{other_provider.url}/v1", "discover_windows": False, "models": ["llama-*"]}
        return steno(upstreams={"other": {**entry, **(other or {})}}, **sections)

    return start


def ask(running: Steno, model: str = MODEL, target: str = CHAT, messages: Any = None, **members: Any) -> Answer:
    body = json.dumps({"model": model, "messages": messages or HELLO, **members}).encode()
    return send(running.url, request_bytes(body, *CREDENTIALS, target=target, usual=False), timeout=30.0)


def fetch(running: Steno, target: str) -> Answer:
    return send(running.url, request_bytes(None, *CREDENTIALS, method="GET", target=target, usual=False))


# Keys


def test_a_key_that_the_provider_refuses_is_not_tried_with_the_clients(both: StartBoth, other: Simulator) -> None:
    other.when(lambda record: record.kind == "other", status=401)
    running = both({"api_key_env": "OTHER_KEY", "discover_windows": True}, models=[])
    assert other.wait_for(lambda log: len(log) == 1)
    for _ in range(3):
        assert ask(running, "llama-3").header("x-context-window") == "128000"
    assert len(other.others) == 1


# What is kept apart


def test_one_model_has_another_window_at_each_upstream(both: StartBoth, simulator: Simulator, other: Simulator) -> None:
    simulator.models = {"both": Model("both", window=64_000), "one": Model("one")}
    other.models = {"both": Model("both", window=32_000), "llama-3": Model("llama-3")}
    running = both({"discover_windows": True}, upstream={"discover_windows": True}, models=[])
    windows = [
        ask(running, "both", target=f"{at}/v1/chat/completions").header("x-context-window") for at in ("", "/u/other")
    ]
    assert windows == ["64000", "32000"]
    listed = fetch(running, "/context/models").json
    rows = [(model["id"], model["upstream"], model["context_window"], model["listed"]) for model in listed["data"]]
    assert rows == [
        ("both", "default", 64_000, True),
        ("both", "other", 32_000, True),
        ("llama-3", "other", WINDOW, True),
        ("one", "default", WINDOW, True),
    ]
    page = fetch(running, "/context/models?limit=1").json
    assert [model["upstream"] for model in page["data"]] == ["default", "other"]
    rest = fetch(running, f"/context/models?after={page['last_id']}").json
    assert [model["id"] for model in rest["data"]] == ["llama-3", "one"]


def test_one_model_is_calibrated_for_each_upstream(
    both: StartBoth, other: Simulator, other_provider: RunningServer
) -> None:
    other.skew = 1.6
    running = both()
    for _ in range(4):
        for target in (CHAT, "/u/other/v1/chat/completions"):
            assert ask(running, "unknown-model", target=target, messages=long_history(8)).status == 200
    listed = fetch(running, "/context/calibration").json["data"]
    found = {entry["upstream"]: entry for entry in listed}
    assert len(found) == len(listed) == 2
    there = found.pop(f"{other_provider.url}/v1")
    [here] = found.values()
    expected = [entry["offset"] + entry["ratio"] * 3_000 for entry in (here, there)]
    assert expected[1] > 1.3 * expected[0]


# Commands


@pytest.mark.slow
def test_the_doctor_asks_each_upstream_with_its_own_key_and_no_other(
    tmp_path: Path, provider: RunningServer, simulator: Simulator, other: Simulator, other_provider: RunningServer
) -> None:
    address = f"{other_provider.url}/v1"
    entries = {"keyed": {"base_url": address, "api_key_env": "OTHER_KEY"}, "bare": {"base_url": address}}
    other.when(lambda record: record.header("authorization") is None, status=401)
    report = commands.run(
        ["doctor", "--verbose", "--upstream", f"{provider.url}/v1", "--database-url", "memory"],
        tmp_path,
        STENO_UPSTREAMS=json.dumps(entries),
        OTHER_KEY=OWN_KEY,
        OPENAI_API_KEY=DEFAULT_KEY,
    )
    assert report.returncode == 0
    assert f"ok       upstream {provider.url}/v1: reachable, lists 9 models" in report.stdout
    assert f"ok       upstream keyed {address}: reachable, lists 9 models" in report.stdout
    assert f"ok       upstream bare {address}: reachable; without a key it does not list its models" in report.stdout
    assert "ok       windows keyed (provider): claude-haiku-4-5 8,000" in report.stdout
    assert "* upstreams = 2 entries   (STENO_UPSTREAMS)" in report.stdout
    assert [record.header("authorization") for record in simulator.log] == [f"Bearer {DEFAULT_KEY}"]
    assert [record.header("authorization") for record in other.log] == [f"Bearer {OWN_KEY}", None]


def test_the_doctor_names_the_variable_of_a_key_that_is_refused(
    tmp_path: Path, provider: RunningServer, other: Simulator, other_provider: RunningServer
) -> None:
    other.other_default = Fault(status=401)
    entry = {"base_url": f"{other_provider.url}/v1", "api_key_env": "OTHER_KEY"}
    report = commands.run(
        ["doctor", "--upstream", f"{provider.url}/v1", "--database-url", "memory"],
        tmp_path,
        STENO_UPSTREAMS__OTHER=json.dumps(entry),
        OTHER_KEY=OWN_KEY,
    )
    assert "reachable, but refuses the key in OTHER_KEY (401)" in report.stdout


def test_a_replay_knows_only_its_own_provider(
    monkeypatch: pytest.MonkeyPatch, other: Simulator, other_provider: RunningServer
) -> None:
    entry = {"base_url": f"{other_provider.url}/v1", "models": ["*"]}
    monkeypatch.setenv("STENO_UPSTREAMS", json.dumps({"other": entry}))
    monkeypatch.setenv("STENO_UPSTREAM__API_KEY_ENV", "DEFAULT_KEY")
    monkeypatch.setenv("DEFAULT_KEY", DEFAULT_KEY)
    with stage(MODEL, WINDOW) as set_up:
        assert post(set_up.base_url.removesuffix("/v1"), chat()).status == 200
        [record] = set_up.provider.log
    assert record.header("authorization") == "Bearer sk-test"
    assert other.log == ()
