"""Several providers behind one Steno: which one gets a request, whose key it sees, and what is kept apart."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from app.edge import credentials
from app.runtime.server import RunningServer
from lab.replay.stage import stage
from lab.simulator import Fault, Model, Record, Simulator
from tests.e2e import commands
from tests.e2e.conftest import TABLES
from tests.e2e.histories import HELLO, MODEL, chat, long_history, turns
from tests.e2e.raw import CHAT, Answer, get, post, request_bytes, send
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


def everything(record: Record) -> bytes:
    """All that a provider was sent."""
    return repr((record.target, record.headers, record.body)).encode()


# Choice


@pytest.mark.parametrize(
    ("model", "expected"), [("llama-3", "other"), ("meta/llama-3", "other"), ("gpt-4o", "default"), ("x", "default")]
)
def test_a_chat_goes_where_its_model_fits(
    both: StartBoth, simulator: Simulator, other: Simulator, model: str, expected: str
) -> None:
    assert ask(both(), model).status == 200
    assert (len(simulator.chats), len(other.chats)) == ((0, 1) if expected == "other" else (1, 0))


@pytest.mark.parametrize("prefix", ["/u/other", "/u/other/c/mine", "/c/mine/u/other", "/c/u/u/other", "/u/%6Fther"])
def test_a_name_in_the_base_url_wins_over_the_model(
    both: StartBoth, simulator: Simulator, other: Simulator, prefix: str
) -> None:
    answered = ask(both(), target=f"{prefix}/v1/chat/completions?a=%2F..b")
    assert answered.status == 200
    assert simulator.log == ()
    assert [record.target for record in other.log] == ["/v1/chat/completions?a=%2F..b"]
    if "/c/" in prefix:
        assert answered.header("x-context-conversation-id") == ("u" if "/c/u/" in prefix else "mine")


def test_the_default_one_can_be_named_too(both: StartBoth, simulator: Simulator, other: Simulator) -> None:
    assert ask(both(), "llama-3", target="/u/default/v1/chat/completions").status == 200
    assert (len(simulator.chats), len(other.chats)) == (1, 0)


@pytest.mark.parametrize("method", ["POST", "GET"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/c/mine/v1/chat/completions", "/v1/models", "/v1/x"])
def test_an_unknown_name_is_refused_with_those_that_are_known(
    both: StartBoth, simulator: Simulator, other: Simulator, method: str, path: str
) -> None:
    target = f"/u/nowhere{path}"
    answered = send(both().url, request_bytes(chat(), *CREDENTIALS, method=method, target=target, usual=False))
    assert answered.status == 404
    error = answered.json["error"]
    assert (error["type"], error["code"]) == ("invalid_request_error", "unknown_upstream")
    assert error["message"].startswith("There is no upstream 'nowhere'")
    assert error["message"].endswith("Known here: default, other.")
    assert simulator.log == other.log == ()


@pytest.mark.parametrize("target", ["/u/other", "/u//v1/models", "/u/other/v2/models", "/u/other/u/other/v1/models"])
def test_what_is_no_base_url_is_an_unknown_path(both: StartBoth, other: Simulator, target: str) -> None:
    answered = get(both().url, target)
    assert (answered.status, answered.json["error"]["code"]) == (404, "unknown_path")
    assert other.log == ()


@pytest.mark.parametrize("target", ["/u/other/v1/../admin", "/u/other/v1/%2e%2e/admin", "/u/other/c/x/v1/./a"])
def test_no_name_leads_out_of_the_providers_paths(both: StartBoth, other: Simulator, target: str) -> None:
    assert get(both().url, target).json["error"]["code"] == "invalid_target"
    assert other.log == ()


def test_what_is_no_chat_goes_to_the_default_one_unless_the_path_names_another(
    both: StartBoth, simulator: Simulator, other: Simulator
) -> None:
    running = both()
    for prefix in ("", "/u/other", "/c/mine/u/other"):
        assert get(running.url, f"{prefix}/v1/models").status == 200
    post(running.url, {"model": "llama-3", "input": "text"}, target="/v1/embeddings")
    assert [record.target for record in simulator.others] == ["/v1/models", "/v1/embeddings"]
    assert [record.target for record in other.others] == ["/v1/models", "/v1/models"]


@pytest.mark.parametrize(
    "body",
    [
        b'{"model": "llama-3"}',
        b'{"model": "llama-3", "messages": [7]}',
        b'{"messages": "none", "model": "llama-3"}',
    ],
)
def test_a_body_that_is_not_understood_goes_where_its_model_fits(
    both: StartBoth, simulator: Simulator, other: Simulator, body: bytes
) -> None:
    post(both().url, body)
    assert [record.body for record in other.log] == [body]
    assert simulator.log == ()


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"model": 7, "messages": []}'])
def test_a_body_whose_model_cannot_be_read_goes_to_the_default_one(
    both: StartBoth, simulator: Simulator, other: Simulator, body: bytes
) -> None:
    running = both()
    post(running.url, body)
    post(running.url, body, target="/u/other/v1/chat/completions")
    assert [record.body for record in simulator.log] == [body] == [record.body for record in other.log]


def test_a_summary_call_of_another_steno_goes_where_its_model_fits(both: StartBoth, other: Simulator) -> None:
    post(both().url, {"model": "llama-3", "messages": HELLO}, b"x-context-call: summary")
    assert len(other.summaries) == 1


def test_the_official_client_works_with_a_name_in_its_base_url(both: StartBoth, other: Simulator) -> None:
    running = both()
    client = running.sdk(base_url=f"{running.url}/u/other/v1")
    answer = client.chat.completions.create(model=MODEL, messages=long_history())
    assert answer.model_extra is not None
    assert answer.model_extra["context_status"] == "summarized"
    stream = client.chat.completions.create(model=MODEL, messages=HELLO, stream=True)
    assert [chunk.choices[0].finish_reason for chunk in stream if chunk.choices][-1] == "stop"
    assert client.models.list().data
    assert (len(other.chats), len(other.summaries), len(other.others)) == (2, 1, 1)
    with pytest.raises(openai.NotFoundError, match="Known here: default, other"):
        running.sdk(base_url=f"{running.url}/u/nowhere/v1").models.list()


# Keys


def test_a_provider_with_a_key_of_its_own_never_sees_the_clients(
    both: StartBoth, simulator: Simulator, other: Simulator
) -> None:
    """On chats, streams, summaries, relayed and unread requests, and when it is asked for its models."""
    running = both({"api_key_env": "OTHER_KEY", "discover_windows": True})
    assert other.wait_for(lambda log: len(log) == 1)
    for stream in (False, True):
        assert ask(running, "llama-3", stream=stream).status == 200
        long = turns(15, first=100 + stream * 100)
        assert ask(running, "llama-3", messages=long, stream=stream).status == 200
    ask(running, target="/u/other/v1/files")
    send(running.url, request_bytes(b'{"model": "llama-3"}', *CREDENTIALS, usual=False))
    fetch(running, "/u/other/v1/models")
    assert (len(other.chats), len(other.summaries), len(other.others)) == (5, 2, 3)
    for record in other.log:
        assert CLIENTS_KEY.encode() not in everything(record)
        sent = [value for name, value in record.headers if name.lower() == b"authorization"]
        assert sent == [f"Bearer {OWN_KEY}".encode()]
    assert simulator.log == ()


def test_a_provider_without_one_gets_the_clients_headers_and_not_another_providers_key(
    both: StartBoth, simulator: Simulator
) -> None:
    running = both({"api_key_env": "OTHER_KEY"})
    ask(running, messages=long_history())
    fetch(running, "/v1/models")
    assert (len(simulator.chats), len(simulator.summaries), len(simulator.others)) == (1, 1, 1)
    for record in simulator.log:
        for line in CREDENTIALS:
            name, _, value = line.decode().partition(": ")
            assert record.header(name) == value
        assert OWN_KEY.encode() not in everything(record)


def test_each_provider_gets_its_own_key(both: StartBoth, simulator: Simulator, other: Simulator) -> None:
    running = both({"api_key_env": "OTHER_KEY"}, upstream={"api_key_env": "DEFAULT_KEY"})
    for first, model in ((100, "llama-3"), (200, MODEL)):
        ask(running, model, messages=turns(15, first=first))
    assert {record.header("authorization") for record in simulator.log} == {f"Bearer {DEFAULT_KEY}"}
    assert {record.header("authorization") for record in other.log} == {f"Bearer {OWN_KEY}"}
    assert (len(simulator.summaries), len(other.summaries)) == (1, 1)


def test_a_client_without_a_key_is_served_with_the_providers(both: StartBoth, other: Simulator) -> None:
    running = both({"api_key_env": "OTHER_KEY"})
    json = b"content-type: application/json"
    answered = send(running.url, request_bytes(chat(model="llama-3"), json, usual=False))
    assert answered.status == 200
    assert other.chats[0].header("authorization") == f"Bearer {OWN_KEY}"


def test_whose_a_conversation_is_still_depends_on_the_clients_key(both: StartBoth, other: Simulator) -> None:
    running = both({"api_key_env": "OTHER_KEY"})
    for key in ("sk-a", "sk-b"):
        credentials = f"authorization: Bearer {key}".encode()
        body = chat(long_history(), model="llama-3", conversation_id="same")
        send(running.url, request_bytes(body, credentials, usual=False), timeout=30.0)
        listed = get(running.url, "/context/conversations", credentials).json["data"]
        assert [conversation["requests"] for conversation in listed] == [1]
    assert len(other.summaries) == 2


def test_a_key_that_the_provider_refuses_is_not_tried_with_the_clients(both: StartBoth, other: Simulator) -> None:
    other.when(lambda record: record.kind == "other", status=401)
    running = both({"api_key_env": "OTHER_KEY", "discover_windows": True}, models=[])
    assert other.wait_for(lambda log: len(log) == 1)
    for _ in range(3):
        assert ask(running, "llama-3").header("x-context-window") == "128000"
    assert len(other.others) == 1


@pytest.mark.slow
def test_a_providers_key_is_in_no_answer_no_header_no_log_and_no_report(
    tmp_path: Path, provider: RunningServer, other: Simulator, other_provider: RunningServer
) -> None:
    entry = {"base_url": f"{other_provider.url}/v1", "models": ["llama-*"], "api_key_env": "OTHER_KEY"}
    gone = {"base_url": "http://127.0.0.1:1/v1", "api_key_env": "OTHER_KEY"}
    variables: dict[str, Any] = {
        "STENO_UPSTREAMS": json.dumps({"other": entry, "gone": gone}),
        "STENO_MODELS": json.dumps([{"match": "*", "context_window": WINDOW}]),
        "STENO_LOG__LEVEL": "debug",
        "OTHER_KEY": OWN_KEY,
    }
    serving = commands.serve(["--upstream", f"{provider.url}/v1"], tmp_path, **variables)
    told = ""
    try:
        with httpx2.Client(
            base_url=serving.url, headers={"authorization": f"Bearer {CLIENTS_KEY}"}, timeout=30
        ) as client:
            other.next_chat(status=500)
            other.next_chat(status=401)
            for messages in (HELLO, HELLO, HELLO, long_history()):
                told += show(client.post(CHAT, content=chat(messages, model="llama-3")))
            told += show(client.post("/u/gone/v1/chat/completions", content=chat()))
            for path in ("/u/nowhere/v1/models", "/u/other/v1/models", "/u/gone/v1/models", "/context/models"):
                told += show(client.get(path))
            for path in ("/context/calibration", "/context/conversations", "/readyz", "/openapi.json"):
                told += show(client.get(path))
    finally:
        serving.terminate()
        serving.wait()
    told += (tmp_path / "stdout").read_text() + serving.errors
    assert len(other.chats) == 4
    assert "upstream_unreachable" in told
    assert OWN_KEY not in told
    assert CLIENTS_KEY not in told
    report = commands.run(["doctor", "--upstream", f"{provider.url}/v1"], tmp_path, **variables)
    assert "problem  upstream gone http://127.0.0.1:1/v1: No connection" in report.stdout
    assert report.stdout.count("Check") == 1, "what to do is said once"
    assert OWN_KEY not in report.stdout + report.stderr
    stored = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert OWN_KEY.encode() not in stored


def show(answered: httpx2.Response) -> str:
    return f"{answered.status_code} {answered.headers} {answered.text}"


# What is kept apart


def test_summaries_are_made_by_the_upstream_of_the_conversation(
    both: StartBoth, simulator: Simulator, other: Simulator
) -> None:
    running = both()
    ask(running, "llama-3", messages=long_history())
    ask(running, target="/u/other/v1/chat/completions", messages=turns(15, first=100))
    ask(running, messages=turns(15, first=200))
    assert (len(simulator.summaries), len(other.summaries)) == (1, 2)


def test_a_conversation_that_moves_to_another_upstream_goes_on_with_its_summaries(
    both: StartBoth, simulator: Simulator, other: Simulator
) -> None:
    running = both()
    for model in (MODEL, "llama-3"):
        answered = ask(running, model, messages=long_history())
        assert answered.json["context_status"] == "summarized"
    assert (len(simulator.summaries), len(other.summaries)) == (1, 0)
    [moved] = other.chats
    assert (moved.messages or [])[0]["content"].startswith("[Notes on messages 1 to 24 of this conversation")


def test_a_summariser_elsewhere_never_sees_the_clients_key(
    both: StartBoth, simulator: Simulator, other: Simulator
) -> None:
    """The key is meant for the conversation's own provider."""
    running = both(other={"models": []}, summary={"model": "llama-3", "upstream": "other"})
    answered = ask(running, messages=long_history())
    assert json.loads(answered.body)["context_status"] == "summarized"
    assert not simulator.summaries
    (summary,) = other.summaries
    assert summary.payload["model"] == "llama-3"
    assert CLIENTS_KEY.encode() not in everything(summary)


def test_a_fallback_elsewhere_is_asked_with_its_own_key(
    both: StartBoth, simulator: Simulator, other: Simulator
) -> None:
    simulator.summary_default = Fault(status=500)
    running = both(other={"api_key_env": "OTHER_KEY"}, summary={"fallbacks": [{"upstream": "other"}]})
    answered = ask(running, messages=long_history())
    assert json.loads(answered.body)["context_status"] == "summarized"
    (summary,) = other.summaries
    assert summary.payload["model"] == MODEL
    assert CLIENTS_KEY.encode() not in everything(summary)
    assert OWN_KEY.encode() in everything(summary)


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


def test_a_limit_learnt_at_one_upstream_does_not_hold_at_another(both: StartBoth, other: Simulator) -> None:
    error = {"message": "prompt is too long: 9000 tokens > 6000 maximum", "type": "invalid_request_error", "code": None}
    running = both(compaction={"enabled": False}, models=[{"match": "*", "context_window": 12_000}])
    other.next_chat(status=400, error=error)
    assert ask(running, target="/u/other/v1/chat/completions", messages=long_history()).status == 400
    windows = [ask(running, target=f"{at}/v1/chat/completions").header("x-context-window") for at in ("/u/other", "")]
    assert windows == ["6000", "12000"]
    listed = fetch(running, "/context/models").json["data"]
    assert {(model["upstream"], model["source"]) for model in listed} == {("default", "config"), ("other", "learnt")}


def test_one_model_is_calibrated_for_each_upstream(
    both: StartBoth, other: Simulator, other_provider: RunningServer
) -> None:
    other.skew, other.offset = 1.5, 300
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


def test_user_messages_in_a_row_are_joined_only_where_the_upstream_needs_it(
    both: StartBoth, simulator: Simulator, other: Simulator
) -> None:
    other.strict_roles = True
    running = both({"alternating_roles": True})
    for model in (MODEL, "llama-3"):
        assert ask(running, model, messages=long_history()).status == 200
    roles = [[message["role"] for message in provider.chats[0].messages or []] for provider in (simulator, other)]
    assert roles[0][:2] == ["user", "user"]
    assert roles[1][:2] == ["user", "assistant"]


def test_a_provider_that_tells_no_usage_is_not_asked_while_another_is(
    both: StartBoth, simulator: Simulator, other: Simulator
) -> None:
    refusal = {"message": "Unknown parameter: 'stream_options'.", "type": "invalid_request_error"}
    other.when(lambda record: b"include_usage" in record.body and record.kind == "chat", status=400, error=refusal)
    running = both()
    for target in (CHAT, "/u/other/v1/chat/completions") * 3:
        assert ask(running, target=target, messages=long_history(), stream=True).status == 200
    asked = [[b"include_usage" in record.body for record in provider.chats] for provider in (other, simulator)]
    assert asked == [[False, True, False, False], [False, True, True]]


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
