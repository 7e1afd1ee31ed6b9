"""Callers whom a trusted proxy names, one tenant for all, and who may spend the operator's key."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml

from lab.simulator import Simulator
from tests.e2e.histories import chat, turns
from tests.e2e.running import StartSteno

HEADER = "x-forwarded-user"
PROXY: dict[str, Any] = {"server": {"trusted_proxies": ["127.0.0.1"]}, "clients": {"header": HEADER}}
ELSEWHERE: dict[str, Any] = {"server": {"trusted_proxies": ["192.0.2.1"]}, "clients": {"header": HEADER}}
"""Settings that trust a proxy which is not the tests' client."""
OPERATORS, CALLERS = "sk-operators", "sk-callers"
KEYED = {"api_key_env": "PROVIDER_API_KEY"}
JSON = {"content-type": "application/json", "authorization": f"Bearer {CALLERS}"}


@pytest.fixture
def operators_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROVIDER_API_KEY", OPERATORS)


BODIES: dict[str, Any] = {
    "/v1/chat/completions": {"model": "gpt-4o", "messages": turns(15)},
    "/v1/responses": {"model": "gpt-4o", "input": turns(15), "store": False},
    "/v1/messages": {"model": "claude-opus-4", "max_tokens": 100, "messages": turns(15)},
}


def get(url: str, target: str, **headers: str) -> httpx2.Response:
    return httpx2.get(f"{url}{target}", headers=headers, timeout=30.0)


def post(url: str, target: str, body: bytes, headers: dict[str, str]) -> httpx2.Response:
    return httpx2.post(f"{url}{target}", content=body, headers=headers, timeout=30.0)


# A name that is not to be believed


def rows(path: Path) -> dict[str, int]:
    with sqlite3.connect(path) as database:
        names = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {name: database.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in names}  # noqa: S608


@pytest.mark.parametrize(
    "target", ["/v1/chat/completions", "/v1/messages", "/v1/responses", "/v1/files", "/context/compact", "/mcp"]
)
def test_a_name_from_an_untrusted_peer_is_refused_and_leaves_nothing(
    steno: StartSteno, simulator: Simulator, tmp_path: Path, target: str
) -> None:
    file = tmp_path / "steno.db"
    started = steno(storage={"url": f"sqlite:///{file}"}, **ELSEWHERE)
    before, named = rows(file), JSON | {HEADER: "alice", "x-forwarded-for": "192.0.2.1"}
    answer = post(started.url, target, chat(turns(15)), named)
    assert (answer.status_code, answer.json()["error"]["type"]) == (401, "authentication_error")
    for method, path in (("GET", "/context/conversations"), ("DELETE", "/context/tenant"), ("GET", "/context/usage")):
        assert httpx2.request(method, f"{started.url}{path}", headers=named, timeout=30.0).status_code == 401
    assert (simulator.log, rows(file)) == ((), before)


# Credentials at the provider


@pytest.mark.parametrize("target", BODIES)
@pytest.mark.parametrize("adds_key", [True, False], ids=["operator's key", "caller's key"])
@pytest.mark.usefixtures("operators_key")
def test_the_provider_gets_its_key_and_no_name_of_the_caller(
    steno: StartSteno, simulator: Simulator, target: str, *, adds_key: bool
) -> None:
    """In chats, in the calls for their summaries, on a path that passes, and in compactions on demand."""
    started = steno(**PROXY, upstream=KEYED if adds_key else {})
    name = "alice of accounting"
    answer = post(started.url, target, json.dumps(BODIES[target]).encode(), JSON | {HEADER: name})
    assert answer.headers["x-context-status"] == "summarized"
    assert get(started.url, "/v1/models", authorization=f"Bearer {CALLERS}", **{HEADER: name}).status_code == 200
    post(started.url, "/context/compact", chat(turns(17)), JSON | {HEADER: name}).raise_for_status()
    assert len(simulator.summaries) > 0
    for record in simulator.log:
        assert name not in repr((record.target, record.headers))
        key = OPERATORS if adds_key else CALLERS
        sent = {record.header("authorization"), record.header("x-api-key")} - {None}
        assert sent <= {key, f"Bearer {key}"}
        assert sent or record.target == "/v1/models"


# The operator's key


REQUESTS: dict[str, list[Any]] = yaml.safe_load(Path(__file__).with_name("caller_identity.yaml").read_text("ascii"))
SPENDING: list[tuple[str, str]] = REQUESTS["spending"]


@pytest.mark.usefixtures("operators_key")
def test_no_request_without_the_name_spends_the_operators_key(steno: StartSteno, simulator: Simulator) -> None:
    """Not with a tenant for all, and not where callers without a key are served."""
    server = {**PROXY["server"], "allow_unauthenticated": True}
    clients = {**PROXY["clients"], "tenant": "team"}
    started = steno(server=server, clients=clients, upstream=KEYED)
    body = chat(turns(15), conversation_id="one")
    assert post(started.url, "/v1/chat/completions", body, JSON | {HEADER: "alice"}).status_code == 200
    made = len(simulator.log)
    with httpx2.Client(base_url=started.url, timeout=30.0) as client:
        for method, target in SPENDING:
            for headers in REQUESTS["unnamed"]:
                for keys in ([], [("authorization", "Bearer sk-callers")]):
                    content = b"" if method in ("GET", "HEAD", "DELETE") else body
                    sent = [("content-type", "application/json"), *keys, *map(tuple, headers)]
                    answer = client.request(method, f"{target}?{HEADER}=alice", content=content, headers=sent)
                    assert answer.status_code == 401, (method, target, headers)
    assert len(simulator.log) == made


@pytest.mark.usefixtures("operators_key")
def test_a_cookie_of_the_inspector_spends_nothing_without_the_name(steno: StartSteno, simulator: Simulator) -> None:
    started = steno(**PROXY, upstream=KEYED, storage={"messages": True})
    body = chat(turns(15), conversation_id="one")
    assert post(started.url, "/v1/chat/completions", body, JSON | {HEADER: "alice"}).status_code == 200
    with httpx2.Client(base_url=started.url, timeout=30.0) as browser:
        page = browser.get("/ui/conversations/one", headers={HEADER: "alice"}).text
        token = page.partition('name="form_token" value="')[2].partition('"')[0]
        made = len(simulator.log)
        compact = "/ui/conversations/one/compact"
        answer = browser.post(compact, data={"form_token": token, "focus": "names"})
        assert (answer.status_code, answer.headers["location"]) == (303, "/ui/sign-in")
        assert browser.post("/ui/sign-in", data={"key": CALLERS}).status_code == 401
        assert len(simulator.log) == made
        answer = browser.post(compact, data={"form_token": token, "focus": "names"}, headers={HEADER: "alice"})
        assert "summaries" in answer.headers.get("location", answer.text)
    assert len(simulator.summaries) > 1


@pytest.mark.usefixtures("operators_key")
def test_without_a_proxy_this_machine_alone_spends_the_operators_key(steno: StartSteno, simulator: Simulator) -> None:
    started = steno(upstream=KEYED, clients={"tenant": "team"})
    assert post(started.url, "/v1/chat/completions", chat(turns(1)), JSON).status_code == 200
    made = len(simulator.log)
    for name in ("x-forwarded-for", "forwarded", "via", "x-real-ip", "cf-connecting-ip"):
        for method, target in SPENDING:
            headers = JSON | {name: "127.0.0.1"}
            answer = httpx2.request(method, f"{started.url}{target}", headers=headers, content=b"{}", timeout=30.0)
            assert answer.status_code == 401, (name, method, target)
    assert len(simulator.log) == made
