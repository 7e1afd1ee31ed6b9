"""Who is let in: by the name that was asked for, the page that asks, the way it came; and what of it goes on."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml

from app.runtime.server import RunningServer
from lab.simulator import Simulator
from tests.e2e import commands
from tests.e2e.commands import SECRET, Serving
from tests.e2e.histories import chat, long_history
from tests.e2e.raw import CHAT, Answer, post, send
from tests.e2e.running import StartSteno, Steno
from tests.e2e.scripted import ScriptedProvider, answer

PATHS = [CHAT, "/v1/models", "/v1/files", "/context/conversations", "/livez", "/openapi.json", "/nowhere"]
JSON = b"content-type: application/json"
KEY = b"authorization: Bearer sk-test"
BODY = chat()
LISTS: dict[str, list[Any]] = yaml.safe_load(Path(__file__).with_name("door.yaml").read_text("ascii"))


def headers_of(kind: str) -> list[bytes]:
    return [line.encode() for line in LISTS[kind]]


FROM_PROXIES, SPOKEN_FOR_THE_HOST = headers_of("told by proxies"), headers_of("spoken for the host")
NEUTRAL, PRIVATE = headers_of("for anybody"), headers_of("for the provider alone")


def ask(url: str, target: str, *headers: bytes, host: bytes | None = b"localhost", method: str = "GET") -> Answer:
    """Without a key, unless it is in the headers."""
    return send(url, raw(target, *headers, host=host, method=method))


def raw(
    target: str, *headers: bytes, host: bytes | None = b"localhost", method: str = "GET", body: bytes = b""
) -> bytes:
    lines = [f"{method} {target} HTTP/1.1".encode("latin-1"), *([] if host is None else [b"host: " + host]), *headers]
    lines += [b"content-length: %d" % len(body)] if body else []
    return b"\r\n".join((*lines, b"", body))


def code(answered: Answer) -> tuple[int, str]:
    return answered.status, answered.json["error"]["code"]


# Hosts


@pytest.fixture
def shared_steno(before_scripted: StartSteno) -> Steno:
    return before_scripted()


def test_no_path_answers_to_a_name_that_somebody_else_can_own(scripted: ScriptedProvider, shared_steno: Steno) -> None:
    """DNS rebinding: the page of that name would read the answer."""
    for target in PATHS:
        for method, key in (("GET", KEY), ("POST", b"x-no: key"), ("OPTIONS", KEY)):
            refused = ask(shared_steno.url, target, key, host=b"rebound.example:8080", method=method)
            assert code(refused) == (421, "host_not_allowed")
            assert "rebound.example" in refused.json["error"]["message"]
            assert "server.allowed_hosts" in refused.json["error"]["message"]
    assert scripted.requests == []


def test_a_host_that_is_missing_double_or_malformed_is_refused(scripted: ScriptedProvider, shared_steno: Steno) -> None:
    for target in PATHS:
        for hosts in LISTS["hosts that are none"]:
            refused = ask(shared_steno.url, target, *map(str.encode, hosts), KEY, host=None)
            assert code(refused) == (400, "invalid_request"), hosts
            assert refused.json["error"]["param"] == "host"
    assert scripted.requests == []


def test_a_target_that_is_a_whole_url_names_a_host_too(scripted: ScriptedProvider, shared_steno: Steno) -> None:
    url = shared_steno.url
    assert code(ask(url, "http://rebound.example/v1/models", KEY)) == (421, "host_not_allowed")
    assert code(ask(url, "http://localhost/v1/models", KEY, host=b"rebound.example")) == (421, "host_not_allowed")
    assert code(ask(url, "http://a@localhost/v1/models", KEY)) == (400, "invalid_request")
    assert code(ask(url, "http://localhost/v1/models", KEY, host=None)) == (400, "invalid_request")
    assert scripted.requests == []
    assert ask(url, "http://localhost:8080/v1/models", KEY).status == 200
    assert [request.target for request in scripted.requests] == [b"/v1/models"]


def test_a_health_check_of_http_1_0_needs_no_host(shared_steno: Steno) -> None:
    """HAProxy's, as in our own configuration, sends none."""
    assert send(shared_steno.url, b"GET /readyz HTTP/1.0\r\n\r\n").status == 200
    assert send(shared_steno.url, b"GET /readyz HTTP/1.0\r\nhost: rebound.example\r\n\r\n").status == 421


def test_the_operator_allows_names(before_scripted: StartSteno) -> None:
    steno = before_scripted(server={"allowed_hosts": [".Example.com"]})
    assert ask(steno.url, "/livez", host=b"steno.example.com").status == 200
    assert ask(steno.url, "/livez", host=b"steno.example.org").status == 421


# Pages


@pytest.mark.parametrize("origin", [b"https://evil.example", b"null", b"http://evil.example:8080"])
def test_a_page_of_another_site_can_neither_read_nor_spend(
    scripted: ScriptedProvider, shared_steno: Steno, origin: bytes
) -> None:
    requests = (
        ("GET", [KEY]),
        ("POST", [b"content-type: text/plain"]),
        ("POST", [JSON, KEY]),
        ("POST", [b"content-type: multipart/form-data; boundary=x"]),
        ("OPTIONS", [b"access-control-request-method: POST"]),
    )
    for target, (method, headers) in product(PATHS, requests):
        body = BODY if method == "POST" else b""
        request = raw(target, b"origin: " + origin, *headers, method=method, body=body)
        refused = send(shared_steno.url, request)
        assert code(refused) == (403, "origin_not_allowed")
        assert not [name for name, _ in refused.headers if name.startswith("access-control-")]
    assert scripted.requests == []


@pytest.mark.parametrize("target", [CHAT, "/v1/files"])
def test_what_any_page_can_send_without_asking_spends_nothing(
    scripted: ScriptedProvider, shared_steno: Steno, target: str
) -> None:
    """Old browsers, and other programs that load pages, name no origin. A key in the query asks nobody either."""
    for kind in ([], [b"content-type: text/plain"], [b"content-type: application/x-www-form-urlencoded"]):
        for place in (target, f"{target}?key=k"):
            refused = send(shared_steno.url, raw(place, *kind, method="POST", body=BODY))
            assert code(refused) == (415, "unsupported_media_type")
            assert refused.header("x-should-retry") == "false"
    assert scripted.requests == []
    assert send(shared_steno.url, raw(target, b"content-type: text/plain", KEY, method="POST", body=BODY)).status == 200
    assert send(shared_steno.url, raw(target, JSON, method="POST", body=BODY)).status == 200
    upload = raw(target, b"content-type: multipart/form-data; boundary=x", method="POST", body=b"--x--\r\n")
    assert send(shared_steno.url, upload).status == (415 if target == CHAT else 200)


def test_context_takes_json_only_from_who_has_no_key(shared_steno: Steno) -> None:
    for target in ("/context/plan", "/context/compact", "/context/conversations/x/pins"):
        method = "PUT" if target.endswith("pins") else "POST"
        refused = send(shared_steno.url, raw(target, b"content-type: text/plain", method=method, body=BODY))
        assert code(refused) == (415, "unsupported_media_type")


def test_a_page_that_is_allowed_reads_every_answer_and_the_providers_word_on_it_is_not_passed_on(
    scripted: ScriptedProvider, before_scripted: StartSteno
) -> None:
    steno = before_scripted(server={"allowed_origins": ["https://chat.example.com"]})
    scripted.default = (
        answer(b"{}", b"access-control-allow-origin: *", b"access-control-allow-credentials: true", b"vary: accept"),
    )
    for origin in (b"https://chat.example.com", b"http://localhost:3000", b"app://x"):
        requests = [
            raw(CHAT, JSON, b"origin: " + origin, method="POST", body=BODY),
            raw("/v1/models", b"origin: " + origin),
            raw("/v1/../x", b"origin: " + origin),
        ]
        if origin == b"https://chat.example.com":
            requests.append(raw("/context/conversations/none", b"origin: " + origin))
        for request in requests:
            answered = send(steno.url, request)
            assert answered.all("access-control-allow-origin") == [origin.decode()]
            assert answered.all("access-control-expose-headers") == ["*"]
            assert answered.header("access-control-allow-credentials") is None
            assert "origin" in answered.all("vary")
    plain = ask(steno.url, "/v1/models")
    assert not [name for name, _ in plain.headers if name.startswith("access-control-")]
    assert plain.all("vary") == ["accept"]


@pytest.mark.parametrize("origin", [b"http://localhost:5173", b"http://127.0.0.1:3000", b"app://x"])
def test_no_page_of_this_machine_reads_or_changes_what_is_stored(shared_steno: Steno, origin: bytes) -> None:
    """With a key or without, asked first or not: any program may serve a page on some port."""
    asks = (b"origin: " + origin, b"access-control-request-method: GET")
    for target in (
        "/context/conversations",
        "/context/tenant",
        "/ui/conversations",
        "/openapi.json",
        "/metrics",
    ):
        for refused in (
            ask(shared_steno.url, target, b"origin: " + origin),
            ask(shared_steno.url, target, b"origin: " + origin, KEY),
            ask(shared_steno.url, target, b"origin: " + origin, method="DELETE"),
            ask(shared_steno.url, target, *asks, method="OPTIONS"),
        ):
            assert code(refused) == (403, "origin_not_allowed")
            assert not [name for name, _ in refused.headers if name.startswith("access-control-")]
    own = shared_steno.url.encode()
    assert (
        ask(shared_steno.url, "/context/conversations", b"origin: " + own, host=own.removeprefix(b"http://")).status
        == 200
    )


def test_a_preflight_is_answered_here(scripted: ScriptedProvider, shared_steno: Steno) -> None:
    asks = [
        b"origin: http://localhost:3000",
        b"access-control-request-method: POST",
        b"access-control-request-headers: authorization, x-stainless-os",
        b"access-control-request-private-network: true",
    ]
    for target in (CHAT, "/v1/models", "/v1/files"):
        answered = ask(shared_steno.url, target, *asks, method="OPTIONS")
        assert (answered.status, answered.body) == (204, b"")
        assert answered.header("content-length") is None
        assert answered.header("access-control-allow-origin") == "http://localhost:3000"
        assert answered.header("access-control-allow-methods") == "POST"
        assert answered.header("access-control-allow-headers") == "authorization, x-stainless-os"
        assert answered.header("access-control-allow-private-network") == "true"
    assert scripted.requests == []
    ask(shared_steno.url, "/v1/models", KEY, method="OPTIONS")
    assert [request.head[:7] for request in scripted.requests] == [b"OPTIONS"]


# Paths and methods


def test_a_path_that_any_server_could_find_dots_in_is_refused(scripted: ScriptedProvider, shared_steno: Steno) -> None:
    for prefix, path in product(("/v1/", "/openai/", "/u/default/c/mine/v1/a/"), LISTS["paths with dots"]):
        assert code(ask(shared_steno.url, prefix + path, KEY)) == (400, "invalid_target"), path
    assert scripted.requests == []


def test_other_paths_pass_as_they_are(scripted: ScriptedProvider, shared_steno: Steno) -> None:
    for path in LISTS["paths without"]:
        assert ask(shared_steno.url, f"/v1/{path}?q=../x", KEY).status == 200
        assert scripted.requests[-1].target == f"/v1/{path}?q=../x".encode()


def test_trace_is_not_relayed(scripted: ScriptedProvider, shared_steno: Steno) -> None:
    """It would be answered with the operator's key."""
    for target in (CHAT, "/v1/models", "/u/default/v1/x", "/openai/x"):
        refused = ask(shared_steno.url, target, KEY, method="TRACE")
        assert code(refused) == (405, "method_not_allowed")
        assert "GET" in (refused.header("allow") or "")
        assert "TRACE" not in (refused.header("allow") or "")
    assert scripted.requests == []


# Who is local


@pytest.fixture(scope="module")
def simulator() -> Simulator:
    return Simulator()


@pytest.fixture(scope="module")
def provider(simulator: Simulator) -> Iterator[RunningServer]:
    with simulator.serve() as server:
        yield server


def serving_with(provider: RunningServer, folder: Path, variables: Mapping[str, str]) -> Serving:
    usual = {"STENO_SECRET": SECRET, "DATABASE_URL": "memory", "STENO_UPSTREAM__DISCOVER_WINDOWS": "false"}
    return commands.serve(["--upstream", f"{provider.url}/v1"], folder, **{**usual, **variables})  # type: ignore[arg-type] # none is called checkout


@pytest.mark.slow
def test_the_environment_makes_no_caller_local(provider: RunningServer, tmp_path: Path) -> None:
    """uvicorn would take the address of `X-Forwarded-For` from anybody."""
    serving = serving_with(provider, tmp_path, {"FORWARDED_ALLOW_IPS": "*"})
    try:
        assert httpx2.get(f"{serving.url}/context/tenant").json()["id"] == "anonymous"
        for header in ("x-forwarded-for", "x-real-ip", "forwarded", "via", "cf-connecting-ip", "x-forwarded-proto"):
            refused = httpx2.get(f"{serving.url}/context/tenant", headers={header: "127.0.0.1"})
            assert refused.status_code == 401, header
    finally:
        serving.kill()


def test_a_trusted_proxy_says_who_is_local(provider: RunningServer, tmp_path: Path) -> None:
    serving = serving_with(provider, tmp_path, {"STENO_SERVER__TRUSTED_PROXIES": '["127.0.0.1"]'})
    try:
        for told, status in (("127.0.0.1", 200), ("203.0.113.9", 401), ("127.0.0.1, 203.0.113.9", 401), ("", 401)):
            answered = httpx2.get(f"{serving.url}/context/tenant", headers={"x-forwarded-for": told})
            assert answered.status_code == status, told
        assert httpx2.get(f"{serving.url}/context/tenant").status_code == 401
    finally:
        serving.kill()


def test_the_operator_may_serve_nobody_without_a_key(provider: RunningServer, tmp_path: Path) -> None:
    serving = serving_with(provider, tmp_path, {"STENO_ALLOW_UNAUTHENTICATED": "0"})
    try:
        for path in ("/context/tenant", "/v1/models"):
            assert httpx2.get(serving.url + path).status_code == 401
            assert httpx2.get(serving.url + path, headers={"api-key": "k"}).status_code == 200
        assert httpx2.get(f"{serving.url}/livez").status_code == 200
    finally:
        serving.kill()


# What goes on


def test_what_proxies_tell_of_the_caller_stays_here(scripted: ScriptedProvider, shared_steno: Steno) -> None:
    kept = [b"cf-aig-metadata: m", b"x-ms-useragent: u", b"x-original: o"]
    post(shared_steno.url, BODY, *FROM_PROXIES, *kept)
    ask(shared_steno.url, "/v1/models", KEY, *FROM_PROXIES, *kept)
    assert len(scripted.requests) == 2
    for request in scripted.requests:
        assert b"203.0.113.9" not in request.head
        names = {name for name, _ in request.headers}
        assert not names & {line.partition(b":")[0] for line in FROM_PROXIES}
        assert names >= {line.partition(b":")[0] for line in kept}


def test_an_upstream_with_the_operators_key_is_shown_what_is_on_the_list(
    scripted: ScriptedProvider, before_scripted: StartSteno, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROVIDER_KEY", "sk-operator")
    steno = before_scripted(upstream={"api_key_env": "PROVIDER_KEY"})
    post(steno.url, BODY, *NEUTRAL, *PRIVATE)
    ask(steno.url, "/v1/models?key=sk-mine&a=b%20c", KEY, *NEUTRAL, *PRIVATE)
    assert len(scripted.requests) == 2
    for request in scripted.requests:
        assert b"mine" not in request.head.replace(b"mine/1", b"")
        assert b"sk-test" not in request.head
        assert request.all(b"authorization") == [b"Bearer sk-operator"]
        names = {name for name, _ in request.headers}
        assert names >= {line.partition(b":")[0] for line in NEUTRAL}
    assert scripted.requests[1].target == b"/v1/models?a=b%20c"


def test_a_summariser_elsewhere_is_shown_what_is_on_the_list(
    scripted: ScriptedProvider, provider: RunningServer, start_steno: StartSteno
) -> None:
    elsewhere = {"base_url": f"{scripted.url}/v1", "discover_windows": False}
    steno = start_steno(provider.url, upstreams={"other": elsewhere}, summary={"upstream": "other"})
    post(steno.url, chat(long_history()), *NEUTRAL, *PRIVATE, timeout=30.0)
    assert scripted.requests
    for request in scripted.requests:
        assert b"mine" not in request.head.replace(b"mine/1", b"")
        assert not {name for name, _ in request.headers} & {b"authorization", b"x-api-key", b"idempotency-key"}
        assert request.all(b"x-context-call") == [b"summary"]


def test_a_provider_does_not_speak_for_stenos_host(scripted: ScriptedProvider, shared_steno: Steno) -> None:
    kept = [
        b"x-ratelimit-limit-requests: 9",
        b"retry-after-ms: 1",
        b"www-authenticate: Bearer",
        b"x-accel-buffering: no",
    ]
    scripted.default = (answer(b"{}", *SPOKEN_FOR_THE_HOST, *kept),)
    for answered in (post(shared_steno.url, BODY), ask(shared_steno.url, "/v1/models", KEY)):
        names = {name.encode() for name, _ in answered.headers}
        assert not names & {line.partition(b":")[0] for line in SPOKEN_FOR_THE_HOST}
        assert names >= {line.partition(b":")[0] for line in kept}


# Keys in the query


def test_callers_known_by_a_key_in_the_query_are_tenants_of_their_own(
    scripted: ScriptedProvider, before_scripted: StartSteno, sqlite_url: str
) -> None:
    """Gemini's way."""
    steno = before_scripted(storage={"url": sqlite_url})
    tenants = {}
    for key in ("AIza-canary-1", "AIza-canary-2"):
        body = chat(conversation_id="same")
        assert send(steno.url, raw(f"{CHAT}?key={key}", JSON, method="POST", body=body)).status == 200
        tenants[key] = ask(steno.url, f"/context/tenant?key={key}").json["id"]
        by_header = ask(steno.url, "/context/tenant", f"x-goog-api-key: {key}".encode()).json["id"]
        assert by_header == tenants[key] != "anonymous"
    assert len(set(tenants.values())) == 2
    assert scripted.requests[0].target.endswith(b"?key=AIza-canary-1")


@pytest.mark.parametrize("path", [CHAT, "/context/compact"])
def test_a_key_in_the_query_goes_with_the_call_for_a_summary_to_the_same_provider(
    scripted: ScriptedProvider, before_scripted: StartSteno, path: str
) -> None:
    """And nothing else of the query does."""
    steno = before_scripted()
    request = raw(f"{path}?alt=sse&key=AIza%2Bmine", JSON, method="POST", body=chat(long_history()))
    send(steno.url, request)
    summaries = [request for request in scripted.requests if request.all(b"x-context-call")]
    assert summaries
    assert {request.target for request in summaries} == {f"{CHAT}?key=AIza%2Bmine".encode()}


def test_a_key_in_the_query_reaches_no_summariser_elsewhere(
    scripted: ScriptedProvider, provider: RunningServer, start_steno: StartSteno
) -> None:
    elsewhere = {"base_url": f"{scripted.url}/v1", "discover_windows": False}
    for summary in ({"upstream": "other"}, {"model": "gone", "fallbacks": [{"upstream": "other"}]}):
        steno = start_steno(provider.url, upstreams={"other": elsewhere}, summary=summary)
        send(steno.url, raw(f"{CHAT}?key=AIza-mine", JSON, method="POST", body=chat(long_history())))
    assert scripted.requests
    assert {request.target for request in scripted.requests} == {CHAT.encode()}
    assert not any(b"AIza-mine" in request.head + request.body for request in scripted.requests)


def test_a_key_in_the_query_reaches_no_provider_that_has_the_operators(
    scripted: ScriptedProvider, before_scripted: StartSteno, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROVIDER_KEY", "sk-operator")
    steno = before_scripted(upstream={"api_key_env": "PROVIDER_KEY"})
    send(steno.url, raw(f"{CHAT}?key=AIza-mine", JSON, method="POST", body=chat(long_history())))
    assert any(request.all(b"x-context-call") for request in scripted.requests)
    assert not any(b"AIza-mine" in request.head for request in scripted.requests)


def test_keys_in_queries_reach_neither_log_nor_answer_nor_database(
    provider: RunningServer, simulator: Simulator, tmp_path: Path
) -> None:
    folder = tmp_path / "served"
    folder.mkdir()
    database = f"sqlite:///{tmp_path}/steno.db"
    upstreams = json.dumps({"gone": {"base_url": "http://127.0.0.1:1/v1", "models": ["gone"]}})
    variables = {"DATABASE_URL": database, "STENO_UPSTREAMS": upstreams, "STENO_LOG__LEVEL": "debug"}
    variables["STENO_MODELS"] = json.dumps([{"match": "*", "context_window": 8_000}])
    serving = serving_with(provider, folder, variables)
    told = b""
    try:
        for name in ("key", "api_key", "access_token", "subscription-key"):
            query = f"?{name}=canary-5d41402a"
            for target, body in (
                (CHAT, chat()),
                (CHAT, chat(long_history())),
                (CHAT, b"{"),
                (CHAT, chat(model="gone")),
                ("/v1/embeddings", b"{}"),
                ("/u/gone/v1/models", b"{}"),
                ("/u/nowhere/v1/models", b"{}"),
                ("/v1/../x", b"{}"),
                ("/context/plan", b"{"),
                ("/context/nothing", b"{}"),
            ):
                answered = send(serving.url, raw(target + query, JSON, method="POST", body=body))
                told += answered.body + repr(answered.headers).encode()
            told += ask(serving.url, f"/context/conversations{query}&limit=x").body
        told += ask(serving.url, "/metrics").body
    finally:
        serving.terminate()
        serving.wait()
    told += (folder / "stdout").read_bytes() + (folder / "stderr").read_bytes()
    assert {record.target for record in simulator.summaries} >= {f"{CHAT}?key=canary-5d41402a"}
    assert b"request refused" in told
    for file in tmp_path.glob("steno.*"):
        told += file.read_bytes()
    assert b"canary-5d41402a" not in told
