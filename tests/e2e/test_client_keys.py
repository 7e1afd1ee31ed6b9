"""Keys that Steno gives out: who may come in, for what, and that no provider ever sees one."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import chain, count
from pathlib import Path
from typing import Any

import anthropic
import httpx2
import openai
import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from app.commands.keys import add, ended, keys_of, revoke
from app.proxy.keyring import Keyring, KeysUnusable, new_key, read_file, write_file
from app.settings import Settings
from app.store.client_keys import KeyLimits
from lab.simulator import Fault, Simulator
from tests.e2e import commands
from tests.e2e.commands import until
from tests.e2e.histories import chat
from tests.e2e.raw import Answer, request_bytes, send
from tests.e2e.running import StartSteno, Steno
from tests.e2e.test_allowances import FORMATS, PRICES, SAID
from tests.e2e.test_quotas import long, outcome

OPERATORS = "sk-operators"
Start = Callable[..., Steno]
Ask = Callable[[Steno, str], Any]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "keys.json"


@pytest.fixture
def start(steno: StartSteno, monkeypatch: pytest.MonkeyPatch, place: Path) -> Start:
    """Start Steno with the operator's key, for those who have one of Steno's."""
    monkeypatch.setenv("PROVIDER_KEY", OPERATORS)
    monkeypatch.setattr("app.proxy.keyring.LOOK_SECONDS", 0.05)
    monkeypatch.setattr("app.proxy.tenants.LOOK_SECONDS", 0.05)

    def started(**sections: Any) -> Steno:
        upstream = {"formats": FORMATS, "api_key_env": "PROVIDER_KEY"}
        return steno(**{"upstream": upstream, "clients": {"keys": str(place)}, **sections})

    return started


def give(place: Path, owner: str = "ann", seconds: float | None = None, **limits: Any) -> str:
    shown, kept = new_key(owner, KeyLimits(**limits), seconds)
    write_file(place, [*read_file(place), kept])
    return shown


def by_chat(steno: Steno, key: str) -> Any:
    return steno.sdk(api_key=key).chat.completions.create(model="gpt-x", messages=SAID)


def by_responses(steno: Steno, key: str) -> Any:
    return steno.sdk(api_key=key).responses.create(model="gpt-x", input="Hello.")


def by_messages(steno: Steno, key: str) -> Any:
    with anthropic.Anthropic(base_url=steno.url, api_key=key, max_retries=0) as client:
        return client.messages.create(model="claude-x", max_tokens=100, messages=SAID)


ASKS = pytest.mark.parametrize("ask", [by_chat, by_messages, by_responses], ids=FORMATS)


def status(ask: Ask, steno: Steno, key: str) -> int:
    try:
        ask(steno, key)
    except (openai.APIStatusError, anthropic.APIStatusError) as error:
        return error.status_code
    return 200


def post(steno: Steno, key: str, body: bytes, target: str = "/v1/chat/completions", method: str = "POST") -> Answer:
    usual = b"content-type: application/json", f"authorization: Bearer {key}".encode()
    return send(steno.url, request_bytes(body, *usual, target=target, method=method, usual=False), 60)


@ASKS
def test_who_has_a_key_of_steno_uses_the_operators_and_nobody_else_does(
    ask: Ask, start: Start, simulator: Simulator, place: Path
) -> None:
    key, running = give(place), start()
    assert status(ask, running, key) == 200
    for stranger in ("sk-own", "steno-key-made-up", give(place.with_name("others.json"))):
        assert status(ask, running, stranger) == 401
    assert len(simulator.chats) == 1
    sent = {record.header("authorization") for record in simulator.log} | {
        record.header("x-api-key") for record in simulator.log
    }
    assert sent <= {f"Bearer {OPERATORS}", OPERATORS, None}


def test_a_key_holds_as_soon_as_it_is_given_out_and_unknown_keys_cause_few_looks(
    start: Start, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.proxy.keyring.LOOK_SECONDS", 3_600.0)
    running, looks, read = start(), count(), read_file
    monkeypatch.setattr("app.proxy.keyring.AGAIN_SECONDS", 0.0)
    assert status(by_chat, running, give(place)) == 200
    monkeypatch.setattr("app.proxy.keyring.AGAIN_SECONDS", 3_600.0)
    monkeypatch.setattr("app.proxy.keyring.read_file", lambda path: (next(looks), read(path))[1])
    assert {status(by_chat, running, f"steno-key-{number}") for number in range(5)} == {401}
    assert next(looks) == 0


def test_a_refusal_is_an_error_of_the_requests_own_format(start: Start) -> None:
    running = start()
    with pytest.raises(openai.AuthenticationError) as chat_error:
        by_chat(running, "steno-key-x")
    assert chat_error.value.code == "invalid_credentials"
    with pytest.raises(anthropic.AuthenticationError) as messages_error:
        by_messages(running, "steno-key-x")
    assert messages_error.value.response.json()["type"] == "error"


@ASKS
def test_a_key_that_is_revoked_or_expires_is_refused_on_open_connections_too(
    ask: Ask, start: Start, place: Path
) -> None:
    revoked, expiring = give(place), give(place, seconds=1.0)
    running = start()
    assert status(ask, running, revoked) == 200
    write_file(place, [each for each in read_file(place) if each.expires_at is not None])
    for key in (revoked, expiring):
        until(lambda: status(ask, running, key) == 401)  # noqa: B023 - called at once


def test_the_inspectors_sessions_end_with_the_key_that_opened_them(start: Start, place: Path) -> None:
    keys = [give(place) for _ in range(3)]
    running = start()
    with ExitStack() as stack:
        browsers = [stack.enter_context(httpx2.Client(base_url=running.url, timeout=30.0)) for _ in keys]

        def seen() -> list[int]:
            return [browser.get("/ui/conversations").status_code for browser in browsers]

        for browser, key in zip(browsers, keys, strict=True):
            browser.post("/ui/sign-in", data={"key": key})
        assert seen() == [200, 200, 200]
        revoked, expired, lasting = read_file(place)
        write_file(place, [*ended([revoked], [revoked.id]), replace(expired, expires_at=1.0), lasting])
        until(lambda: seen() == [303, 303, 200])


def test_a_new_key_of_the_same_owner_finds_what_the_old_one_kept(
    start: Start, simulator: Simulator, place: Path
) -> None:
    old = give(place)
    running = start()
    body = chat(long(1), conversation_id="c1")
    assert outcome(post(running, old, body)) == ("summarized", None)
    new, other = give(place), give(place, "bob")
    until(lambda: post(running, new, body).status == 200)
    assert len(simulator.summaries) == 1
    assert post(running, new, b"", "/context/conversations/c1", "GET").status == 200
    assert post(running, other, b"", "/context/conversations/c1", "GET").status == 404


def test_no_key_of_steno_reaches_a_provider_that_has_no_key_of_the_operators(
    start: Start, simulator: Simulator, place: Path
) -> None:
    """In chats, summaries, paths that pass, and under any header's name; in a query it is refused."""
    key = give(place)
    running = start(upstream={"formats": FORMATS}, summary={"model": "small"})
    assert outcome(post(running, key, chat(long(1)))) == ("summarized", None)
    post(running, key, b"{", "/v1/chat/completions")
    post(running, key, b"", "/v1/models", "GET")
    post(running, key, b"{}", "/v1/embeddings")
    post(running, key, chat(long(2)), "/context/compact")
    for query in (f"key={key}", f"more={key}", f"more={key.replace('-', '%2D')}"):
        assert post(running, key, chat(long(1)), f"/v1/chat/completions?{query}").status == 200
        assert post(running, key, b"", f"/v1/models?{query}&limit=2", "GET").status == 200
    headers = b"content-type: application/json", f"x-api-key: {key}".encode(), f"x-more: {key}".encode()
    send(running.url, request_bytes(chat(long(3)), *headers, b"authorization: Bearer sk-own", usual=False), 60)
    assert post(running, "sk-own", chat(long(1)), f"/v1/chat/completions?key={key}").status == 401
    assert len(simulator.log) >= 6
    assert not [each for each in simulator.log if b"steno-key-" in repr((each.target, each.headers)).encode()]
    assert simulator.chats[-1].header("authorization") == "Bearer sk-own"


@ASKS
def test_a_key_of_steno_in_a_header_and_the_providers_in_the_query_go_together(
    ask: Ask, start: Start, simulator: Simulator, place: Path
) -> None:
    key = give(place)
    running = start(upstream={"formats": FORMATS})
    ways: dict[Ask, tuple[str, dict[str, Any]]] = {
        by_chat: ("chat/completions", {"messages": SAID}),
        by_messages: ("messages", {"messages": SAID, "max_tokens": 100}),
        by_responses: ("responses", {"input": "Hello."}),
    }
    path, said = ways[ask]
    body = json.dumps({"model": "m", **said}).encode()
    assert post(running, key, body, f"/v1/{path}?key=sk-providers").status == 200
    assert simulator.chats[-1].target.endswith("?key=sk-providers")
    assert "steno-key-" not in str(simulator.chats[-1].headers)


@ASKS
def test_a_key_that_may_spend_so_much_makes_no_summaries_whose_price_nobody_knows(
    ask: Ask, start: Start, place: Path
) -> None:
    prices = [{"match": "*-x", "prompt": 1, "completion": 1}]
    limited, free = give(place, money_per_day=5), give(place, "bob")
    running = start(prices=prices, summary={"model": "house-model"})
    assert [status(ask, running, key) for key in (limited, free)] == [403, 200]
    running = start(
        prices=[*prices, {"match": "house-*", "prompt": 0, "completion": 0}], summary={"model": "house-model"}
    )
    assert status(ask, running, limited) == 200


def test_a_key_is_for_its_models_and_upstreams(start: Start, place: Path) -> None:
    near = give(place, upstreams=("near",))
    some, any_ = give(place, models=("gpt-*",)), give(place)
    running = start()
    assert [status(by_chat, running, key) for key in (some, any_, near)] == [200, 200, 403]
    assert [status(by_messages, running, key) for key in (some, any_)] == [403, 200]
    assert post(running, some, b"{}", "/v1/embeddings").status == 403
    assert post(running, some, b"", "/v1/files", "GET").status == 403
    assert post(running, some, b"", "/v1/models", "GET").status == 200
    assert post(running, some, chat(long(1), model="claude-x"), "/context/compact").status == 403


@pytest.mark.sampled(1.0)
def test_a_key_for_some_models_reaches_no_other_by_another_member(
    start: Start, simulator: Simulator, place: Path
) -> None:
    """Also where nothing is read of a request, such as another Steno's calls."""
    key, free = give(place, models=("gpt-*",)), give(place)
    running = start()
    usual = b"content-type: application/json", f"authorization: Bearer {key}".encode()
    for more in ((), (b"x-context-call: summary",)):
        for members in ({"models": ["claude-x"]}, {"Model": "claude-x"}):
            request = request_bytes(chat(SAID, **members), *usual, *more, usual=False)
            assert send(running.url, request, 30).status == 403
    assert not simulator.log
    assert post(running, free, chat(SAID, models=["claude-x"])).status == 400  # The provider's own answer.
    assert simulator.log


@ASKS
def test_whose_key_is_spent_for_a_day_gets_402(ask: Ask, start: Start, place: Path) -> None:
    spent, free = give(place, money_per_day=0.5), give(place, "bob")
    running = start(prices=PRICES)
    assert status(ask, running, spent) == 200
    until(lambda: status(ask, running, spent) == 402)
    assert status(ask, running, free) == 200


def test_what_passes_as_it_came_is_counted_too(start: Start, place: Path) -> None:
    """In one piece and as a stream: here the summary calls of another Steno."""
    for stream in (False, True):
        key = give(place, str(stream), money_per_day=0.5)
        running = start(prices=PRICES)
        usual = b"content-type: application/json", f"authorization: Bearer {key}".encode(), b"x-context-call: summary"
        request = request_bytes(chat(SAID, stream=stream), *usual, usual=False)
        assert send(running.url, request, 30).status == 200
        until(lambda: send(running.url, request, 30).status == 402)  # noqa: B023 - called at once


@pytest.mark.parametrize("headers", [{}, {"x-context-call": "summary"}], ids=["chat", "as it came"])
def test_who_leaves_before_the_end_or_asks_for_no_usage_pays_for_what_was_written(
    headers: dict[str, str], start: Start, simulator: Simulator, place: Path
) -> None:
    simulator.chat_default = Fault(chunk_delay=0.02, words=200)
    running = start(prices=[{"match": "*", "prompt": 0, "completion": 1_000_000}])
    for leaves in (True, False):
        key = give(place, str(leaves), money_per_day=0.5)
        until(lambda: post(running, key, b"", "/v1/models", "GET").status == 200)  # noqa: B023 - called at once
        client = running.sdk(api_key=key, default_headers=headers)
        stream = client.chat.completions.create(model="gpt-x", messages=SAID, stream=True)
        for number, _ in enumerate(stream):
            if leaves and number == 5:
                break
        stream.close()
        until(lambda: post(running, key, b"", "/v1/models", "GET").status == 402)  # noqa: B023 - called at once


def test_a_providers_own_compaction_is_within_the_limits_of_a_key(
    start: Start, simulator: Simulator, place: Path
) -> None:
    other, near, spent = (
        give(place, models=("claude-*",)),
        give(place, upstreams=("near",)),
        give(place, money_per_day=1),
    )
    running = start(prices=PRICES)

    def asked(key: str) -> int:
        item: Any = {"type": "compaction_trigger"}
        said: Any = [{"role": "user", "content": "Hello."}, item]
        return status(
            lambda steno, key: steno.sdk(api_key=key).responses.create(model="gpt-5", input=said), running, key
        )

    assert [asked(key) for key in (other, near, spent)] == [403, 403, 200]
    assert len([record for record in simulator.log if b"compaction_trigger" in record.body]) == 1
    until(lambda: asked(spent) == 402)


def test_a_conversation_may_cost_so_much_with_a_key_and_another_one_goes_on(start: Start, place: Path) -> None:
    key = give(place, money_per_conversation=0.5)
    running = start(prices=PRICES)

    def told(conversation: str) -> int:
        return post(running, key, chat(SAID, conversation_id=conversation)).status

    assert told("one") == 200
    until(lambda: told("one") == 402)
    assert told("two") == 200
    usual = b"content-type: application/json", f"authorization: Bearer {key}".encode(), b"x-context-call: summary"
    assert send(running.url, request_bytes(chat(SAID), *usual, usual=False), 30).status == 403


@pytest.mark.slow
def test_keys_are_given_out_listed_and_revoked_from_the_command_line(
    start: Start, shared_url: str, tmp_path: Path
) -> None:
    """Shown once, and kept as digests."""
    storage = {"url": shared_url}
    one, other = (start(storage=storage, clients={"keys": "database"}) for _ in range(2))
    variables = {"DATABASE_URL": shared_url, "STENO_SECRET": "a secret for the end-to-end tests"}

    def keys(*arguments: str) -> Any:
        return commands.run(["keys", *arguments], tmp_path, STENO_CLIENTS__KEYS="database", **variables)

    made = keys("add", "ann", "--model", "gpt-*", "--days", "30")
    assert made.returncode == 0, made.stderr
    key = made.stdout.strip()
    for running in (one, other):
        until(lambda: status(by_chat, running, key) == 200)  # noqa: B023 - called at once
    listed = keys("list").stdout
    assert "ann" in listed
    assert "models=gpt-*" in listed
    assert key not in listed
    if shared_url.startswith("sqlite"):
        with sqlite3.connect(shared_url.removeprefix("sqlite:///")) as database:
            assert key not in str(database.execute("select * from client_keys").fetchall())
    assert keys("revoke", "ann").returncode == 0
    for running in (one, other):
        until(lambda: status(by_chat, running, key) == 401)  # noqa: B023 - called at once
    assert keys("revoke", "ann").returncode == 1
    assert "revoked" in keys("list").stdout


def test_keys_that_several_operators_change_at_once_are_all_kept(place: Path) -> None:
    """Else one who adds a key could undo what another one has just revoked."""
    settings = Settings(clients={"keys": str(place)})

    def added(number: int) -> str:
        return asyncio.run(add(settings, f"owner {number % 4}", KeyLimits(), None))[1].id

    with ThreadPoolExecutor(8) as threads:
        ids = set(threads.map(added, range(40)))
        ended = set(chain(*threads.map(lambda owner: asyncio.run(revoke(settings, f"owner {owner}")), range(4))))
    assert {key.id for key in read_file(place)} == ids == ended
    assert not [key for key in read_file(place) if key.revoked_at is None]


def by_command(
    tmp_path: Path, place: Path, *arguments: str | bytes, stdout: Any = subprocess.PIPE, **variables: str
) -> tuple[int, str, list[str]]:
    """Status, standard output and lines of standard error, of a process that decodes its arguments itself."""
    given = {"STENO_CLIENTS__KEYS": str(place), "STENO_SECRET": "a secret for the end-to-end tests", **variables}
    command = [sys.executable, "-m", "app.commands.cli", *arguments]
    env = commands.environment(commands.at_home(tmp_path, given))
    ended = subprocess.run(command, cwd=tmp_path, env=env, stdout=stdout, stderr=subprocess.PIPE, check=False)  # noqa: S603 - our own command
    return ended.returncode, (ended.stdout or b"").decode(), ended.stderr.decode().splitlines()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("option", "given"),
    [
        *(("--days", given) for given in ("1e12", "nan", "inf", "-1", "0")),
        *(("--money-per-day", given) for given in ("nan", "inf", "-1", "0")),
        *(("--money-per-conversation", given) for given in ("nan", "inf")),
        ("--tokens-per-day", "9" * 23),
        ("--model", ""),
    ],
)
def test_no_key_is_made_with_a_limit_that_is_none(tmp_path: Path, place: Path, option: str, given: str) -> None:
    status, shown, said = by_command(tmp_path, place, "keys", "add", "ann", option, given)
    assert (status, shown, len(said)) == (1, "", 1)
    assert said[0].startswith(f"steno: {option} cannot be ")
    assert not place.exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["", "   ", "ann\nbob", "ann\x1b[31m", "x" * 201, b"\xff"])
@pytest.mark.parametrize("command", ["add", "revoke"])
def test_a_name_that_cannot_be_shown_in_a_row_is_refused(
    tmp_path: Path, place: Path, command: str, name: str | bytes
) -> None:
    give(place, "")
    status, shown, said = by_command(tmp_path, place, "keys", command, name)
    assert (status, shown, len(said)) == (1, "", 1)
    assert said[0].startswith("steno: ")
    assert [key.revoked_at for key in read_file(place)] == [None]


@pytest.mark.slow
def test_names_are_utf_8_whatever_the_locale_says(tmp_path: Path, place: Path) -> None:
    posix = {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    assert by_command(tmp_path, place, "keys", "add", "jörg".encode(), **posix)[0] == 0
    assert [key.owner for key in read_file(place)] == ["jörg"]
    by_command(tmp_path, place, "migrate")
    said = by_command(tmp_path, place, "conversations", "show", "jörg".encode(), **posix)[2]
    assert said == ["steno: There is no conversation 'jörg'."]
    merged = by_command(tmp_path, place, "tenants", "merge", "key", "key", **posix, OLD_KEY="jörg", NEW_KEY="jörg")
    assert merged[2] == ["steno: Both are one tenant already."]


@pytest.mark.slow
@pytest.mark.parametrize("where", ["full", "closed"])
def test_a_key_that_could_not_be_shown_does_not_hold(tmp_path: Path, place: Path, where: str) -> None:
    if where == "full":
        with Path("/dev/full").open("wb") as full:
            status, _, said = by_command(tmp_path, place, "keys", "add", "ann", stdout=full)
        assert said[-1] == "steno: The output cannot be written: No space left on device."
        assert "is revoked" in said[-2]
    else:
        command = f"{sys.executable} -m app.commands.cli keys add ann >&-"
        env = commands.environment(commands.at_home(tmp_path, {"STENO_CLIENTS__KEYS": str(place)}))
        status = subprocess.run(command, shell=True, env=env, cwd=tmp_path, check=False).returncode  # noqa: S602 - our own command
    assert status == 1
    assert not [key for key in read_file(place) if key.holds_at(0.0)]


@pytest.mark.slow
def test_keys_are_listed_whatever_their_dates_and_a_list_that_cannot_be_written_is_one_line(
    tmp_path: Path, place: Path
) -> None:
    give(place, seconds=8.64e16)
    status, shown, _ = by_command(tmp_path, place, "keys", "list")
    assert (status, "until 8.64e+16 seconds after 1970" in shown) == (0, True)
    with Path("/dev/full").open("wb") as full:
        status, _, said = by_command(tmp_path, place, "keys", "list", stdout=full)
    assert (status, said) == (1, ["steno: The output cannot be written: No space left on device."])


@pytest.mark.parametrize("damage", [b"{}", b"", b'[{"id": "\xff"}]', "folder", "no folder"])
def test_whoever_cannot_use_a_file_of_keys_is_told_which_and_what_to_do(place: Path, damage: bytes | str) -> None:
    """From the command line, and at the start of a server."""
    match damage:
        case bytes():
            place.write_bytes(damage)
        case "folder":
            place.mkdir()
        case _:
            place = place.parent / "none" / place.name
    settings = Settings(clients={"keys": str(place)})
    works: list[Coroutine[Any, Any, Any]] = [add(settings, "ann", KeyLimits(), None), keys_of(settings)]
    for work in (*works, revoke(settings, "ann")):
        with pytest.raises(KeysUnusable, match=f"{place}.*: (restore it|make it|see to the file)"):
            asyncio.run(work)
    no_store: Any = None
    with capture_logs() as log:
        asyncio.run(Keyring(no_store, place).load())
    assert [each["event"] for each in log] == ["keys not read"]
    assert str(place) in log[0]["reason"]


@pytest.mark.slow
def test_without_keys_to_read_nobody_is_let_in_and_a_start_that_would_let_in_everybody_is_refused(
    start: Start, place: Path, tmp_path: Path
) -> None:
    key = give(place)
    place.write_text("no keys")
    assert status(by_chat, start(), key) == 503
    refused = commands.run(
        ["serve", "--host", "0.0.0.0", "--port", "0"],  # noqa: S104 - refused
        tmp_path,
        STENO_UPSTREAM__API_KEY_ENV="PROVIDER_KEY",
        PROVIDER_KEY=OPERATORS,
    )
    assert refused.returncode == 1
    assert "steno keys add" in refused.stderr
