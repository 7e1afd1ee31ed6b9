"""People, not keys: who a caller is stays the same when a token is refreshed, a key changed, a client added."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from time import sleep, time
from typing import Any

import anthropic
import httpx2
import jwt
import openai
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm
from starlette.types import Receive, Scope, Send

from app.runtime.server import RunningServer, serve
from lab.simulator import Simulator
from tests.e2e import commands
from tests.e2e.histories import chat, turns
from tests.e2e.running import StartSteno
from tests.e2e.test_native_compaction import CLAUDE, GPT, SUMMARIZE, plain
from tests.e2e.test_native_compaction import turns as items

SIGNING = rsa.generate_private_key(public_exponent=65_537, key_size=2_048)
FORGING = rsa.generate_private_key(public_exponent=65_537, key_size=2_048)
ISSUER, AUDIENCE = "https://id.example.com", "steno"
HEADER = "x-forwarded-user"
PROXY: dict[str, Any] = {"server": {"trusted_proxies": ["127.0.0.1"]}, "clients": {"header": HEADER}}
NOBODY_TRUSTED: dict[str, Any] = {"server": {"trusted_proxies": ["192.0.2.1"]}, "clients": {"header": HEADER}}
OPENAI_CLAIM = "https://api.openai.com/auth"


def token(person: str = "alice", number: int = 0, key: Any = SIGNING, **claims: Any) -> str:
    """Token of a person; each number makes another one."""
    expires = int(time()) + 600 + number
    said = {"iss": ISSUER, "aud": AUDIENCE, "sub": person, "exp": expires} | claims
    return jwt.encode(said, key, "RS256", headers={"kid": "one"})


@pytest.fixture
def jwks(tmp_path: Path) -> dict[str, Any]:
    """Settings that know the issuer by a file of its keys."""
    public = {**RSAAlgorithm.to_jwk(SIGNING.public_key(), as_dict=True), "kid": "one"}
    (tmp_path / "jwks.json").write_text(json.dumps({"keys": [public]}))
    return {"jwt": [{"issuer": ISSUER, "audience": AUDIENCE, "jwks": str(tmp_path / "jwks.json")}]}


SIGNED_IN = "x-litellm-api-key"
"""Header for a token beside a provider's key, which stands where an SDK puts it."""


def signed_in(person: str) -> bytes:
    return f"{SIGNED_IN}: {token(person)}".encode()


def bearer(key: str) -> bytes:
    return f"authorization: Bearer {key}".encode()


def ask(url: str, target: str, *headers: bytes, method: str = "GET") -> httpx2.Response:
    lines = dict(line.decode().split(": ", 1) for line in headers)
    return httpx2.request(method, f"{url}{target}", headers=lines, timeout=30.0)


def tenant(url: str, *headers: bytes) -> str:
    return str(ask(url, "/context/tenant", *headers).json()["id"])


def post_as(url: str, key: str, body: bytes, **headers: str) -> httpx2.Response:
    usual = {"content-type": "application/json", "authorization": f"Bearer {key}"}
    return httpx2.post(f"{url}/v1/chat/completions", content=body, headers=usual | headers, timeout=30.0)


# Any way to ask, before and after


def by_chat(url: str, key: str, headers: dict[str, str]) -> str | None:
    with openai.OpenAI(base_url=f"{url}/v1", api_key=key, default_headers=headers, max_retries=0) as sdk:
        raw = sdk.chat.completions.with_raw_response.create(model="gpt-4o", messages=turns(15))
        return raw.headers["x-context-status"]


def by_responses(url: str, key: str, headers: dict[str, str]) -> str | None:
    with openai.OpenAI(base_url=f"{url}/v1", api_key=key, default_headers=headers, max_retries=0) as sdk:
        raw = sdk.responses.with_raw_response.create(model="gpt-4o", input=turns(15), store=False)
        return raw.headers["x-context-status"]


def by_messages(url: str, key: str, headers: dict[str, str]) -> str | None:
    with anthropic.Anthropic(base_url=url, api_key=key, default_headers=headers, max_retries=0) as sdk:
        raw = sdk.messages.with_raw_response.create(model="claude-opus-4", max_tokens=100, messages=turns(15))
        return raw.headers["x-context-status"]


Ask = Callable[[str, str, dict[str, str]], str | None]
FORMATS: list[Ask] = [by_chat, by_responses, by_messages]


@pytest.mark.parametrize("ask_model", FORMATS)
def test_a_refreshed_token_pays_for_nothing_again(
    steno: StartSteno, simulator: Simulator, jwks: dict[str, Any], ask_model: Ask
) -> None:
    started = steno(clients=jwks)
    assert ask_model(started.url, token(number=1), {}) == "summarized"
    made = len(simulator.summaries)
    assert ask_model(started.url, token(number=2), {}) == "summarized"
    assert len(simulator.summaries) == made
    assert len(ask(started.url, "/context/conversations", bearer(token(number=3))).json()["data"]) == 1
    assert ask_model(started.url, token("bob"), {}) == "summarized"
    assert len(simulator.summaries) > made


@pytest.mark.parametrize("ask_model", FORMATS)
def test_another_key_behind_a_proxy_is_the_same_person(steno: StartSteno, simulator: Simulator, ask_model: Ask) -> None:
    started = steno(**PROXY)
    assert ask_model(started.url, "sk-one", {HEADER: "alice"}) == "summarized"
    made = len(simulator.summaries)
    assert ask_model(started.url, "sk-two", {HEADER: "alice"}) == "summarized"
    assert len(simulator.summaries) == made
    ask_model(started.url, "sk-two", {HEADER: "bob"})
    assert len(simulator.summaries) > made
    assert all(HEADER not in str(record.headers) for record in simulator.log)


def refer(url: str, key: str) -> Callable[[str, str], Any]:
    """Make references with a key, and return what sends them to a Steno with another one."""
    with openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0) as sdk:
        made = sdk.responses.create(model=GPT, input=[*items(0, 3), {"type": "compaction_trigger"}], store=False)
    with anthropic.Anthropic(base_url=url, api_key=key, max_retries=0) as claude:
        kept = claude.beta.messages.create(model=CLAUDE, max_tokens=1_000, messages=turns(6), **SUMMARIZE)

    def go_on(at: str, other: str) -> None:
        with openai.OpenAI(base_url=f"{at}/v1", api_key=other, max_retries=0) as sdk:
            sdk.responses.create(model=GPT, input=[plain(made.output[0]), *items(3, 4)], store=False)
        blocks: Any = [{"role": "assistant", "content": [plain(block) for block in kept.content]}]
        asked = [*blocks, {"role": "user", "content": "Go on."}]
        with anthropic.Anthropic(base_url=at, api_key=other, max_retries=0) as claude:
            claude.beta.messages.create(model=CLAUDE, max_tokens=1_000, messages=asked, betas=SUMMARIZE["betas"])

    return go_on


def test_references_survive_a_refresh_and_are_nobody_elses(steno: StartSteno, jwks: dict[str, Any]) -> None:
    url = steno(clients=jwks).url
    go_on = refer(url, token(number=1))
    go_on(url, token(number=2))
    with pytest.raises(openai.BadRequestError, match="given to somebody else"):
        go_on(url, token("bob"))


# Switched on


@pytest.mark.parametrize("ask_model", FORMATS)
def test_what_a_key_has_is_kept_when_persons_are_known(
    steno: StartSteno, simulator: Simulator, shared_url: str, jwks: dict[str, Any], ask_model: Ask
) -> None:
    before = steno(storage={"url": shared_url})
    ask_model(before.url, "sk-one", {})
    made, old = len(simulator.summaries), tenant(before.url, bearer("sk-one"))
    before.stop()
    started = steno(storage={"url": shared_url}, clients=jwks)
    alice, bob = signed_in("alice"), signed_in("bob")
    assert tenant(started.url, bearer("sk-one"), alice) == old
    assert tenant(started.url, bearer("sk-two"), alice) == old
    assert ask_model(started.url, "sk-two", {SIGNED_IN: token()}) == "summarized"
    assert len(simulator.summaries) == made
    # Others may have the key, too.
    assert tenant(started.url, bearer("sk-one")) != old
    assert tenant(started.url, bearer("sk-one"), bob) != old


@pytest.mark.parametrize("ask_model", FORMATS)
def test_what_a_gateways_key_has_goes_to_nobody_whom_the_gateway_names(
    steno: StartSteno, simulator: Simulator, shared_url: str, ask_model: Ask
) -> None:
    before = steno(storage={"url": shared_url})
    ask_model(before.url, "sk-gateway", {})
    made, everybodys = len(simulator.summaries), tenant(before.url, bearer("sk-gateway"))
    before.stop()
    started = steno(storage={"url": shared_url}, **PROXY)
    for person in ("alice", "bob"):
        assert tenant(started.url, bearer("sk-gateway"), f"{HEADER}: {person}".encode()) != everybodys
        shown = ask(started.url, "/context/conversations", bearer("sk-gateway"), f"{HEADER}: {person}".encode())
        assert shown.json()["data"] == []
    ask_model(started.url, "sk-gateway", {HEADER: "alice"})
    assert len(simulator.summaries) > made
    assert tenant(started.url, bearer("sk-gateway")) == everybodys


def test_references_of_before_survive_that_persons_are_known(
    steno: StartSteno, shared_url: str, jwks: dict[str, Any]
) -> None:
    first, before = token(number=1), steno(storage={"url": shared_url})
    go_on = refer(before.url, first)
    before.stop()
    after = steno(storage={"url": shared_url}, clients=jwks).url
    tenant(after, bearer(first))
    go_on(after, token(number=2))


@pytest.mark.slow
def test_references_of_a_second_client_survive_that_it_becomes_a_persons(
    steno: StartSteno, simulator: Simulator, shared_url: str, jwks: dict[str, Any]
) -> None:
    """Both had something: what one had is moved."""
    before = steno(storage={"url": shared_url})
    first, second = token(number=1), token(number=2)
    one, other = refer(before.url, first), refer(before.url, second)
    post_as(before.url, second, chat(turns(15)))
    before.stop()
    after = steno(storage={"url": shared_url}, clients=jwks).url
    assert tenant(after, bearer(first)) == tenant(after, bearer(second))
    for go_on in (one, other):
        go_on(after, token(number=3))
    made = len(simulator.summaries)
    assert post_as(after, token(number=3), chat(turns(15))).headers["x-context-status"] == "summarized"
    assert len(simulator.summaries) == made


def test_one_tenant_for_all_has_what_everybody_had(steno: StartSteno, simulator: Simulator, shared_url: str) -> None:
    before = steno(storage={"url": shared_url})
    for number, key in enumerate(("sk-one", "sk-two")):
        post_as(before.url, key, chat(turns(15, first=100 * number + 1), conversation_id=f"c{number}"))
    made = len(simulator.summaries)
    before.stop()
    started = steno(storage={"url": shared_url}, clients={"tenant": "team"})
    for key in ("sk-one", "sk-two", "sk-three"):
        tenant(started.url, bearer(key))
    lines = map(json.loads, ask(started.url, "/context/tenant/export", bearer("sk-three")).text.splitlines())
    assert {line["id"] for line in lines if line["object"] == "conversations"} == {"c0", "c1"}
    for number in range(2):
        body = chat(turns(15, first=100 * number + 1), conversation_id=f"c{number}")
        assert post_as(started.url, "sk-three", body).headers["x-context-status"] == "summarized"
    assert len(simulator.summaries) == made


def test_a_person_erases_what_his_key_had(steno: StartSteno, shared_url: str, jwks: dict[str, Any]) -> None:
    before = steno(storage={"url": shared_url})
    post_as(before.url, "sk-one", chat(turns(15), conversation_id="one"))
    before.stop()
    started = steno(storage={"url": shared_url}, clients=jwks)
    alice = signed_in("alice")
    assert ask(started.url, "/context/conversations/one", bearer("sk-one"), alice).status_code == 200
    assert ask(started.url, "/context/tenant", alice, method="DELETE").status_code == 200
    for headers in ((alice,), (bearer("sk-one"),), (bearer("sk-one"), alice)):
        assert ask(started.url, "/context/conversations", *headers).json()["data"] == []


# A changed key


@pytest.mark.slow
def test_a_changed_key_finds_what_the_old_one_had(steno: StartSteno, simulator: Simulator, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/steno.db"
    started = steno(storage={"url": url})
    go_on = refer(started.url, "sk-old")
    for ask_model in FORMATS:
        ask_model(started.url, "sk-old", {})
    post_as(started.url, "sk-new", chat(turns(15, first=50), conversation_id="new"))
    made, keys = len(simulator.summaries), {"OLD_KEY": "sk-old", "NEW_KEY": "sk-new"}
    merge = ["tenants", "merge", "key", "key", "--database-url", url]
    merged = commands.run(merge, tmp_path, STENO_SECRET="a secret for the end-to-end tests", **keys)
    assert (merged.returncode, merged.stderr) == (0, "")
    assert merged.stdout.startswith("Both are one tenant. Rows moved: ")
    for key in ("sk-old", "sk-new"):
        for ask_model in FORMATS:
            assert ask_model(started.url, key, {}) == "summarized"
        go_on(started.url, key)
        body = chat(turns(15, first=50), conversation_id="new")
        assert post_as(started.url, key, body).headers["x-context-status"] == "summarized"
    assert len(simulator.summaries) == made
    again = commands.run(merge, tmp_path, STENO_SECRET="a secret for the end-to-end tests", **keys)
    assert (again.returncode, again.stderr.splitlines()[-1]) == (1, "steno: Both are one tenant already.")


@pytest.mark.slow
def test_a_key_on_the_command_line_is_refused(tmp_path: Path) -> None:
    refused = commands.run(["tenants", "merge", "sk-old", "key"], tmp_path, DATABASE_URL=f"sqlite:///{tmp_path}/s.db")
    assert refused.returncode == 1
    assert "sk-old" not in refused.stdout + refused.stderr


# Refused


def rows(path: Path) -> dict[str, int]:
    with sqlite3.connect(path) as database:
        names = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {name: database.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in names}  # noqa: S608


REFUSED: list[tuple[str, dict[str, str]]] = [
    ("forged", {"authorization": f"Bearer {token(key=FORGING)}"}),
    ("forged beside a key", {"x-api-key": token(key=FORGING), "authorization": "Bearer sk-one"}),
    ("expired", {"authorization": f"Bearer {token(exp=int(time()) - 100)}"}),
    ("for somebody else", {"authorization": f"Bearer {token(aud='another')}"}),
    ("header from anywhere", {"authorization": "Bearer sk-one", HEADER: "alice"}),
    ("header beside a token", {"authorization": f"Bearer {token('bob')}", HEADER: "alice"}),
    ("nothing", {"x-forwarded-for": "203.0.113.7"}),
]


@pytest.mark.parametrize("headers", [headers for _, headers in REFUSED], ids=[name for name, _ in REFUSED])
@pytest.mark.parametrize(
    "target", ["/v1/chat/completions", "/v1/messages", "/v1/responses", "/v1/files", "/context/compact", "/mcp"]
)
def test_who_says_what_is_not_so_is_refused_and_leaves_nothing(
    steno: StartSteno, simulator: Simulator, jwks: dict[str, Any], tmp_path: Path, headers: dict[str, str], target: str
) -> None:
    file = tmp_path / "steno.db"
    clients = {**jwks, "header": HEADER}
    started = steno(storage={"url": f"sqlite:///{file}"}, server=NOBODY_TRUSTED["server"], clients=clients)
    before = rows(file)
    body = {"model": "gpt-4o", "messages": turns(15), "input": turns(15), "max_tokens": 10}
    answer = httpx2.post(f"{started.url}{target}", json=body, headers=headers, timeout=30.0)
    assert (answer.status_code, answer.json()["error"]["type"]) == (401, "authentication_error")
    for method, path in (("GET", "/context/conversations"), ("DELETE", "/context/tenant"), ("GET", "/context/usage")):
        assert httpx2.request(method, f"{started.url}{path}", headers=headers, timeout=30.0).status_code == 401
    assert (simulator.log, rows(file)) == ((), before)


def test_nothing_of_one_person_is_anothers(steno: StartSteno, jwks: dict[str, Any]) -> None:
    started = steno(clients=jwks)
    post_as(started.url, token("alice"), chat(turns(15), conversation_id="one"))
    for other in (token("bob"), "sk-one", token("alice", iss="https://id.example.org", key=FORGING)):
        for target in ("/context/conversations/one", "/context/conversations/one/summaries"):
            assert ask(started.url, target, bearer(other)).status_code == 404


def test_a_token_ends_on_an_open_connection_too(steno: StartSteno, jwks: dict[str, Any]) -> None:
    started = steno(clients=jwks)
    short = token(exp=int(time()) - 28)  # Clocks may differ by 30 seconds.
    with openai.OpenAI(base_url=f"{started.url}/v1", api_key=short, max_retries=0) as sdk:
        sdk.chat.completions.create(model="gpt-4o", messages=turns(0))
        with pytest.raises(openai.AuthenticationError, match="expired"):  # noqa: PT012 - as often as needed
            for _ in range(200):
                sdk.chat.completions.create(model="gpt-4o", messages=turns(0))
                sleep(0.05)


def test_without_the_issuers_keys_nobody_is_let_in(steno: StartSteno, tmp_path: Path) -> None:
    gone = {"issuer": ISSUER, "audience": AUDIENCE, "jwks": str(tmp_path / "gone.json")}
    started = steno(clients={"jwt": [gone]})
    answer = post_as(started.url, token(), chat())
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "identity_unavailable")


# What providers are sent


def test_a_verified_token_is_no_key_where_steno_adds_one(
    steno: StartSteno, simulator: Simulator, jwks: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROVIDER_API_KEY", "sk-operators")
    started = steno(clients=jwks, upstream={"api_key_env": "PROVIDER_API_KEY"})
    for ask_model in FORMATS:
        assert ask_model(started.url, token(), {}) == "summarized"
    sent = str([record.headers for record in simulator.log])
    assert "sk-operators" in sent
    assert token()[:60] not in sent


@pytest.mark.parametrize("ask_model", FORMATS)
def test_a_token_for_steno_reaches_no_provider_and_the_providers_key_beside_it_does(
    steno: StartSteno, simulator: Simulator, jwks: dict[str, Any], ask_model: Ask
) -> None:
    """In chats, summaries, paths that pass, compactions on demand, in headers and in queries."""
    started, sent = steno(clients=jwks), token()
    assert ask_model(started.url, "sk-providers", {SIGNED_IN: sent}) == "summarized"
    assert "sk-providers" in str([record.headers for record in simulator.log])
    ask_model(started.url, sent, {"x-more": f"Bearer {sent}"})
    for target in (f"/v1/chat/completions?key={sent}", f"/v1/embeddings?more={sent}&limit=2", "/v1/files"):
        httpx2.post(f"{started.url}{target}", content=chat(turns(20)), headers={"authorization": f"Bearer {sent}"})
    compacted = httpx2.post(
        f"{started.url}/context/compact?key={sent}",
        content=chat(turns(17)),
        headers={"authorization": f"Bearer {sent}", "x-more": sent},
        timeout=30.0,
    )
    assert compacted.json()["context_status"] == "summarized"
    assert sent not in str([(record.target, record.headers) for record in simulator.log])


@pytest.mark.parametrize("ask_model", FORMATS)
def test_who_sent_steno_alone_a_token_is_told_that_the_provider_wants_a_key(
    start_steno: StartSteno, checking: RunningServer, jwks: dict[str, Any], ask_model: Ask
) -> None:
    started = start_steno(checking.url, clients=jwks)
    with pytest.raises((openai.AuthenticationError, anthropic.AuthenticationError), match="api_key_env"):
        ask_model(started.url, token(), {})
    refused = ask(started.url, "/v1/models", bearer(token()))
    assert (refused.status_code, refused.json()["error"]["code"]) == (401, "missing_credentials")
    # Of a key that went there the provider says itself what it thinks.
    assert ask(started.url, "/v1/models", bearer("sk"), signed_in("alice")).json()["error"]["message"] == "no"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/context/compact"])
def test_no_provider_is_told_whom_a_proxy_named(steno: StartSteno, simulator: Simulator, path: str) -> None:
    started = steno(**{**PROXY, "clients": {"header": "the-user"}})
    said = {"authorization": "Bearer sk", "content-type": "application/json", "the-user": "alice"}
    httpx2.post(f"{started.url}{path}", content=chat(turns(15)), headers=said, timeout=30.0).raise_for_status()
    assert len(simulator.summaries) > 0
    assert "alice" not in str([record.headers for record in simulator.log])


# Keys by URL


def test_keys_are_fetched_from_a_url_and_again_for_a_new_one(steno: StartSteno, jwks: dict[str, Any]) -> None:
    asked = 0
    published = Path(jwks["jwt"][0]["jwks"]).read_bytes()

    async def serve_keys(scope: Scope, _receive: Receive, send: Send) -> None:
        nonlocal asked
        asked += scope["type"] == "http"
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": published})

    server = serve(serve_keys, lifespan="off")
    try:
        at = {"issuer": ISSUER, "audience": AUDIENCE, "jwks": f"{server.url}/jwks.json"}
        started = steno(clients={"jwt": [at]})
        for number in range(3):
            assert post_as(started.url, token(number=number), chat()).status_code == 200
        assert post_as(started.url, token(key=FORGING), chat()).status_code == 401
        assert asked == 1
    finally:
        server.stop()


# A provider's own tokens, which Steno cannot verify


@pytest.fixture
def checking(simulator: Simulator) -> Iterator[RunningServer]:
    """The provider, which takes tokens that it has signed, and no others."""

    async def check(scope: Scope, receive: Receive, send: Send) -> None:
        sent = dict(scope["headers"]).get(b"authorization", b"").removeprefix(b"Bearer ").decode()
        try:
            jwt.decode(sent, SIGNING.public_key(), ["RS256"], options={"verify_aud": False})
        except jwt.PyJWTError:
            await send({"type": "http.response.start", "status": 401, "headers": []})
            await send({"type": "http.response.body", "body": b'{"error": {"message": "no"}}'})
        else:
            await simulator(scope, receive, send)

    server = serve(check, lifespan="off")
    yield server
    server.stop()


def codex(number: int, account: str = "acc", key: Any = SIGNING) -> str:
    return token("user", number, key, **{OPENAI_CLAIM: {"chatgpt_account_id": account}})


def by_sdk(url: str, key: str) -> str | None:
    return post_as(url, key, chat(turns(15), conversation_id="one")).headers.get("x-context-status")


def test_a_refreshed_oauth_token_is_the_same_account(
    start_steno: StartSteno, checking: RunningServer, simulator: Simulator, shared_url: str
) -> None:
    first, other = (start_steno(checking.url, clients={"oauth": True}, storage={"url": shared_url}) for _ in range(2))
    refreshed = codex(2)
    assert by_sdk(first.url, codex(1)) == "summarized"
    made = len(simulator.summaries)
    assert by_sdk(other.url, refreshed) == "summarized"
    assert len(simulator.summaries) == made
    # REST goes to no provider: what was proven anywhere is known.
    for url in (first.url, other.url):
        assert ask(url, "/context/conversations/one", bearer(refreshed)).status_code == 200
    assert by_sdk(first.url, codex(3, "another")) == "summarized"
    assert len(simulator.summaries) > made


def test_a_forged_account_reads_nothing_of_the_real_one(
    start_steno: StartSteno, checking: RunningServer, simulator: Simulator
) -> None:
    started = start_steno(checking.url, clients={"oauth": True})
    by_sdk(started.url, codex(1))
    made, forged = len(simulator.summaries), codex(2, key=FORGING)
    assert post_as(started.url, forged, chat(turns(15), conversation_id="one")).status_code == 401
    assert ask(started.url, "/context/conversations/one/summaries", bearer(forged)).json()["data"] == []
    assert tenant(started.url, bearer(forged)) != tenant(started.url, bearer(codex(1)))
    assert len(simulator.summaries) == made


@pytest.fixture
def moody(simulator: Simulator) -> Iterator[RunningServer]:
    """A provider that lists its models to everybody, but for every second one who asks."""
    asked = count()

    async def check(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].endswith("/models") and next(asked) % 2:
            await send({"type": "http.response.start", "status": 403, "headers": []})
            await send({"type": "http.response.body", "body": b"{}"})
        else:
            await simulator(scope, receive, send)

    server = serve(check, lifespan="off")
    yield server
    server.stop()


@pytest.mark.parametrize("ask_model", FORMATS)
def test_a_provider_that_forbids_now_and_then_proves_no_account(
    start_steno: StartSteno, moody: RunningServer, ask_model: Ask
) -> None:
    started = start_steno(moody.url, clients={"oauth": True})
    tenants = set()
    for key in (codex(1), codex(2), codex(3, key=FORGING)):
        ask_model(started.url, key, {})
        tenants.add(tenant(started.url, bearer(key)))
    assert len(tenants) == 3


@pytest.mark.parametrize("ask_model", FORMATS)
def test_a_forged_account_beside_a_key_that_holds_proves_nothing(
    start_steno: StartSteno, checking: RunningServer, ask_model: Ask
) -> None:
    """Only the token itself is shown to the provider."""
    started, forged = start_steno(checking.url, clients={"oauth": True}), codex(2, key=FORGING)
    by_sdk(started.url, codex(1))
    beside = {"authorization": f"Bearer {token('somebody')}", "x-api-key": token("somebody"), SIGNED_IN: forged}
    ask_model(started.url, "sk-any", beside)
    lines = [f"{name}: {value}".encode() for name, value in beside.items()]
    assert tenant(started.url, *lines) != tenant(started.url, bearer(codex(1)))


def test_a_provider_that_answers_everybody_proves_no_account(steno: StartSteno) -> None:
    started = steno(clients={"oauth": True})
    own, forged = codex(1), codex(2, key=FORGING)
    by_sdk(started.url, own)
    assert post_as(started.url, forged, chat(turns(15))).status_code == 200
    assert ask(started.url, "/context/conversations/one", bearer(forged)).status_code == 404
    assert ask(started.url, "/context/conversations/one", bearer(codex(2))).status_code == 404
    assert ask(started.url, "/context/conversations/one", bearer(own)).status_code == 200


# Pages


def test_who_a_proxy_signed_in_sees_his_own_pages(steno: StartSteno) -> None:
    started = steno(**PROXY)
    for name in ("alice", "bob"):
        post_as(started.url, "sk", chat(turns(15), conversation_id=f"of-{name}"), **{HEADER: name})
    with httpx2.Client(base_url=started.url, follow_redirects=True, timeout=30.0) as browser:
        for name, other in (("alice", "bob"), ("bob", "alice")):
            page = browser.get("/ui/conversations", headers={HEADER: name}).text
            assert f"of-{name}" in page
            assert f"of-{other}" not in page


def test_a_token_that_is_pasted_shows_the_persons_pages(steno: StartSteno, jwks: dict[str, Any]) -> None:
    started = steno(clients=jwks)
    post_as(started.url, token(number=1), chat(turns(15), conversation_id="of-alice"))
    with httpx2.Client(base_url=started.url, follow_redirects=True, timeout=30.0) as browser:
        browser.post("/ui/sign-in", data={"key": token(number=2)})
        assert "of-alice" in browser.get("/ui/conversations").text
        assert browser.post("/ui/sign-in", data={"key": token(key=FORGING)}).status_code == 401


def test_where_the_operator_pays_nobody_is_served_whom_nobody_knows(
    steno: StartSteno, simulator: Simulator, jwks: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROVIDER_API_KEY", "sk-operators")
    started = steno(clients=jwks, upstream={"api_key_env": "PROVIDER_API_KEY"})
    for sent in ("sk-anything", codex(1, key=FORGING).replace("eyJ", "ey", 1), token(iss="https://id.example.org")):
        answer = post_as(started.url, sent, chat())
        assert (answer.status_code, answer.json()["error"]["type"]) == (401, "authentication_error")
    assert simulator.log == ()
    assert post_as(started.url, token(), chat()).status_code == 200
