"""The operator's listener: what is his is there alone, what he does is on record, and his link opens one session."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import stat
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml

from app.inspector.session import COOKIE, OPERATORS_COOKIE
from app.runtime.server import RunningServer
from tests.databases import database_on
from tests.e2e import commands
from tests.e2e.commands import SECRET, Serving
from tests.e2e.histories import chat, turns
from tests.e2e.test_serve import MODELS, refused
from tests.e2e.test_workers import workers_of

pytestmark = pytest.mark.slow

KEY = "sk-somebody"
ELSEWHERE = {"x-forwarded-for": "203.0.113.7"}
JSON = {"content-type": "application/json"}
OPERATORS = ("/metrics", "/docs", "/openapi.json")

Serve = Callable[..., Serving]


@pytest.fixture
def serve(tmp_path: Path, provider: RunningServer) -> Iterator[Serve]:
    """Starts Steno before the simulator, with an operator's listener."""
    running: list[Serving] = []

    def start(*arguments: str, admin: str | None = "127.0.0.1:0", folder: Path = tmp_path, **options: Any) -> Serving:
        variables = {"STENO_MODELS": MODELS, "STENO_SECRET": SECRET, **options}
        if admin is not None:
            variables["STENO_SERVER__ADMIN"] = admin
        running.append(commands.serve(["--upstream", f"{provider.url}/v1", *arguments], folder, **variables))
        return running[-1]

    yield start
    for serving in running:
        serving.terminate()
        serving.wait()


def admin_of(serving: Serving) -> str:
    [line] = [line for line in serving.log if line["event"] == "serving"]
    return str(line["admin"])


def browser(url: str, **options: Any) -> httpx2.Client:
    return httpx2.Client(base_url=url, timeout=30.0, **options)


def say(url: str, conversation: str, number: int = 15) -> Any:
    body = chat(turns(number), conversation_id=conversation)
    headers = {"authorization": f"Bearer {KEY}", "content-type": "application/json"}
    return (
        httpx2.post(f"{url}/v1/chat/completions", content=body, headers=headers, timeout=30).raise_for_status().json()
    )


def printed_link(folder: Path, *arguments: str, **variables: str) -> str:
    ended = commands.run(["inspector", "--link", *arguments], folder, STENO_SECRET=SECRET, **variables)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()


def acts(folder: Path, **variables: str) -> list[dict[str, Any]]:
    """What the audit trail has, the oldest first."""
    ended = commands.run(["audit", "--json"], folder, STENO_SECRET=SECRET, **variables)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)[::-1]  # type: ignore[no-any-return]


@contextmanager
def operator(link: str, **options: Any) -> Iterator[httpx2.Client]:
    base, _, target = link.partition("/ui?")
    with browser(base, headers=ELSEWHERE, **options) as client:
        assert client.get(f"/ui?{target}").status_code == 303
        yield client


def form_token(client: httpx2.Client) -> str:
    return client.get("/ui").text.partition('name="form_token" value="')[2].partition('"')[0]


# What is where


@pytest.mark.parametrize(
    ("workers", "module"), [("1", "app.commands.cli"), ("2", "app.commands.cli"), ("2", "tests.e2e.spawned")]
)
def test_what_is_the_operators_is_at_his_listener_and_nowhere_else(serve: Serve, workers: str, module: str) -> None:
    serving = serve("--workers", workers, module=module)
    say(serving.url, "order-4711")
    for _ in range(8):  # Connections meet all workers.
        with browser(serving.url) as callers, browser(admin_of(serving)) as admin:
            for path in OPERATORS:
                assert callers.get(path).status_code == 404, path
                assert admin.get(path).status_code == 200, path
            assert callers.get("/readyz").json() == {"status": "ok"}
            assert admin.get("/readyz").json().keys() == {"status", "db", "tokenizer"}
            for path in ("/v1/models", "/u/default/v1/models", "/context/usage", "/contextual", "/mcp"):
                assert admin.get(path).status_code == 404, path
            assert admin.post("/v1/chat/completions", json={"model": "m", "messages": []}).status_code == 404
    assert 'steno_requests_total{route="chat",status="2xx"} 1' in httpx2.get(f"{admin_of(serving)}/metrics").text


def test_without_a_listener_of_his_own_all_is_where_it_was(serve: Serve) -> None:
    serving = serve(admin=None)
    assert admin_of(serving) == "None"
    for path in (*OPERATORS, "/ui"):
        assert httpx2.get(serving.url + path).status_code == 200, path
    assert serving.get("/readyz") == {"status": "ok", "db": "ok", "tokenizer": "tiktoken"}


def test_callers_see_their_own_pages_and_nothing_of_the_operators(
    serve: Serve, provider: RunningServer, tmp_path: Path
) -> None:
    """Also from this machine, and with what the operator's browser would send along."""
    serving = serve()
    say(serving.url, "order-4711")
    with browser(serving.url) as callers:
        assert callers.post("/ui/sign-in", data={"key": KEY}).status_code == 303
        assert "order-4711" in callers.get("/ui/conversations").text
        commands.until(lambda: "<code>" in callers.get("/ui").text.partition("Calibration")[2].partition("</table>")[0])
        for path in ("/", "/ui"):
            shown = callers.get(path).text
            assert provider.url not in shown
            assert "all tenants, since the start" not in shown
            assert "/metrics" not in shown
    link = printed_link(tmp_path, "--url", admin_of(serving))
    with operator(link) as client:
        assert provider.url in client.get("/").text
        assert f"{serving.url.rpartition(':')[0]}:0/v1" in client.get("/").text, "where clients go, as it is set"
        sealed = client.cookies[OPERATORS_COOKIE]
    second = printed_link(tmp_path, "--url", serving.url)
    with browser(serving.url, headers=ELSEWHERE, cookies={COOKIE: sealed, OPERATORS_COOKIE: sealed}) as callers:
        assert callers.get("/ui/tenants").headers["location"] == "/ui/sign-in"
        assert callers.get(second.removeprefix(serving.url)).status_code == 404
    with operator(second.replace(serving.url, admin_of(serving))) as client:
        assert client.get("/ui/tenants").status_code == 200, "it was not used up where it leads nowhere"


@pytest.mark.parametrize("workers", ["1", "2"])
def test_it_can_be_a_socket_file_for_few(serve: Serve, tmp_path: Path, workers: str) -> None:
    path = tmp_path / "admin.sock"
    with closing(socket.socket(socket.AF_UNIX)) as left_over:
        left_over.bind(str(path))
    serving = serve("--workers", workers, admin=f"unix:{path}")
    assert admin_of(serving) == f"unix:{path}"
    assert stat.S_IMODE(path.stat().st_mode) == 0o660
    with httpx2.Client(transport=httpx2.HTTPTransport(uds=str(path)), base_url="http://localhost") as admin:
        assert admin.get("/readyz").json()["db"] == "ok"
        assert admin.get("/metrics").status_code == 200
        assert admin.get("/ui").headers["location"] == "/ui/sign-in"
        link = printed_link(tmp_path, STENO_SERVER__ADMIN=f"unix:{path}")
        assert admin.get(link).status_code == 303
        assert admin.get("/ui/tenants").status_code == 200
    assert "Steno cannot listen on unix:" in refused(tmp_path, STENO_SERVER__ADMIN=f"unix:{path}", STENO_SECRET=SECRET)
    for worker in workers_of(serving)[:1]:  # One that ends leaves the file to the others.
        os.kill(worker, signal.SIGTERM)
        commands.until(lambda: worker not in workers_of(serving))  # noqa: B023
    with httpx2.Client(transport=httpx2.HTTPTransport(uds=str(path)), base_url="http://localhost") as admin:
        assert admin.get("/livez").status_code == 200
    serving.terminate()
    assert serving.wait() == 0
    assert not path.exists()


def test_an_address_that_is_taken_is_told_as_what_it_is(tmp_path: Path) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        said = refused(tmp_path, STENO_SERVER__ADMIN=address)
    assert (
        said
        == f"steno: Steno cannot listen on {address}: address already in use. Choose another address for server.admin."
    )


@pytest.mark.parametrize("wrong", ["9090", "127.0.0.1", "unix:relative", "127.0.0.1:70000", "http://a:1"])
def test_an_address_that_is_none_ends_the_start(tmp_path: Path, wrong: str) -> None:
    assert "is no address; allowed are host:port" in refused(tmp_path, STENO_SERVER__ADMIN=wrong)


def test_the_gateways_manifest_starts_what_its_probes_and_prometheus_find(
    serve: Serve, tmp_path: Path, postgres_server: Any
) -> None:
    """As its pod does: migrated first, with the settings of its ConfigMap; but for the numbers of the ports."""
    manifest = (commands.ROOT / "config" / "kubernetes" / "gateway.yaml").read_text()
    found = {document["kind"]: document for document in yaml.safe_load_all(manifest)}
    pod = found["Deployment"]["spec"]["template"]["spec"]
    [migrate], [steno] = pod["initContainers"], pod["containers"]
    settings = tmp_path / "steno.yaml"
    settings.write_text(found["ConfigMap"]["data"]["steno.yaml"])
    with database_on(postgres_server) as database:
        variables = {"STENO_CONFIG": str(settings), "DATABASE_URL": database, "STENO_SECRET": SECRET}
        assert {each["name"] for each in steno["env"]} == set(variables)
        assert commands.run(migrate["args"], tmp_path, **variables).returncode == 0
        serving = serve("--host", "0.0.0.0", admin="0.0.0.0:0", **variables)  # noqa: S104 - as the image has it
        at = {"http": serving.url, "admin": admin_of(serving)}
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            asked = steno[probe]["httpGet"]
            assert httpx2.get(at[asked["port"]] + asked["path"]).status_code == 200, probe
        assert "steno_requests_total" in httpx2.get(f"{at['admin']}/metrics").text
        assert httpx2.get(f"{at['http']}/metrics").status_code == 404
        asked = httpx2.post(f"{at['http']}/v1/chat/completions", content=b"{}", headers=ELSEWHERE | JSON)
        assert asked.status_code == 401, "nobody without a key is served"
        serving.terminate()
        assert serving.wait() == 0


# Links


def test_a_link_opens_one_session_at_whatever_replica(serve: Serve, tmp_path: Path) -> None:
    """Of many browsers that follow it at once, too."""
    other = tmp_path / "other"
    other.mkdir()
    first = serve()
    second = serve(folder=other, STENO_HOME=str(tmp_path / ".local/share/steno"))
    link = printed_link(tmp_path, "--url", admin_of(first))
    target = link.removeprefix(admin_of(first))

    def follow(number: int) -> int:
        with browser(admin_of((first, second)[number % 2]), headers=ELSEWHERE) as client:
            return client.get(target).status_code

    with ThreadPoolExecutor(8) as threads:
        assert sorted(threads.map(follow, range(8))) == [303, *[403] * 7]
    with browser(admin_of(second), headers=ELSEWHERE) as client:
        answer = client.get(target)
    assert "was used already" in answer.text
    assert "set-cookie" not in answer.headers


def test_the_name_of_the_release_before_prints_a_link_as_well(serve: Serve, tmp_path: Path) -> None:
    serving = serve()
    ended = commands.run(["link", "--url", admin_of(serving)], tmp_path, STENO_SECRET=SECRET)
    with operator(ended.stdout.strip()) as client:
        assert client.get("/ui/tenants").status_code == 200
    assert commands.run(["inspector"], tmp_path, STENO_SECRET=SECRET).stderr == "steno: Say --link or --revoke.\n"


# Cookies


@pytest.mark.parametrize(
    ("trusted", "is_believed"), [("[]", True), ('["127.0.0.0/8"]', True), ('["10.0.0.0/8"]', False)]
)
def test_over_tls_the_cookie_is_bound_to_this_host(
    serve: Serve, tmp_path: Path, trusted: str, is_believed: bool
) -> None:
    serving = serve(STENO_SERVER__TRUSTED_PROXIES=trusted)
    with browser(admin_of(serving), headers=ELSEWHERE | {"x-forwarded-proto": "https"}) as client:
        link = printed_link(tmp_path, "--url", admin_of(serving))
        cookie = client.get(link).headers["set-cookie"]
        assert ("Secure" in cookie) is is_believed
        assert cookie.startswith(f"__Host-{OPERATORS_COOKIE}=" if is_believed else f"{OPERATORS_COOKIE}=")
        assert "Path=/" in cookie
        assert "Domain" not in cookie
        sealed = re.split("[=;]", cookie)[1]
    if is_believed:
        # What another site of the domain can set counts for nothing.
        with browser(
            admin_of(serving),
            headers=ELSEWHERE | {"x-forwarded-proto": "https"},
            cookies={OPERATORS_COOKIE: sealed},
        ) as client:
            assert client.get("/ui/tenants").headers["location"] == "/ui/sign-in"


# The audit trail


@pytest.fixture(params=["SQLite", "PostgreSQL"])
def database(request: pytest.FixtureRequest) -> Iterator[dict[str, str]]:
    if request.param == "SQLite":
        yield {}
    else:
        with database_on(request.getfixturevalue("postgres_server")) as url:
            yield {"DATABASE_URL": url}


def test_what_operators_do_is_on_record_with_who_and_when_and_no_texts(
    serve: Serve, tmp_path: Path, database: dict[str, str]
) -> None:
    serving = serve(**database)
    made = say(serving.url, "order-4711")
    summary = made["context"]["chunks"][0]
    link = printed_link(tmp_path, "--url", admin_of(serving), **database)
    with operator(link) as client:
        client.get("/ui/conversations/order-4711")
        token = form_token(client)
        tenant = re.search(r'name="tenant" value="(\w+)"|title="(\w{32})"', client.get("/ui/tenants").text)
        page = "/ui/conversations/order-4711"
        for path, fields in (
            ("/ui/tenants", {"tenant": tenant and (tenant[1] or tenant[2])}),
            (f"{page}/summaries/{summary}", {"text": "the zebra was here"}),
            (f"{page}/delete", {}),
        ):
            assert client.post(path, data={"form_token": "forged", **fields}).status_code == 403, path
            assert client.post(path, data={"form_token": token, **fields}).status_code == 303, path
    listed = commands.run(["conversations", "list"], tmp_path, STENO_SECRET=SECRET, **database)
    assert listed.returncode == 0
    ended = commands.run(["inspector", "--revoke"], tmp_path, STENO_SECRET=SECRET, **database)
    assert ended.returncode == 0
    found = acts(tmp_path, **database)
    assert [act["did"] for act in found] == [
        *("make_link", "sign_in", "view_tenant", "view_tenant", "edit_summary", "delete_conversation"),
        *("list_conversations", "revoke_links"),
    ]
    [made_link, signed_in, viewed, _, edited, deleted, *_] = found
    assert made_link["who"].startswith("user ")
    assert signed_in["who"] == f"link {made_link['subject']} from 127.0.0.1"
    assert viewed["tenant"] == edited["tenant"] == deleted["tenant"]
    assert edited["subject"] == deleted["subject"] != ""
    for secret in (KEY, "order-4711", "zebra", link.partition("token=")[2]):
        assert secret not in json.dumps(found)


def test_keys_that_are_given_out_and_revoked_are_on_record_by_their_ids(serve: Serve, tmp_path: Path) -> None:
    serve()
    variables = {"STENO_SECRET": SECRET, "STENO_CLIENTS__KEYS": "database"}
    shown = commands.run(["keys", "add", "somebody"], tmp_path, **variables)
    id_ = shown.stderr.split()[0]
    assert commands.run(["keys", "revoke", "somebody"], tmp_path, **variables).returncode == 0
    found = acts(tmp_path)
    assert [(act["did"], act["subject"]) for act in found] == [("add_key", id_), ("revoke_key", id_)]
    assert shown.stdout.strip() not in json.dumps(found)


def test_callers_and_people_without_a_link_leave_nothing_in_it(serve: Serve, tmp_path: Path) -> None:
    serving = serve()
    say(serving.url, "order-4711")
    with browser(serving.url) as callers:
        callers.post("/ui/sign-in", data={"key": KEY})
        answer = callers.post("/ui/conversations/order-4711/delete", data={"form_token": form_token(callers)})
        assert answer.status_code == 303
    assert acts(tmp_path) == []


def test_erasing_a_tenant_leaves_what_operators_did(serve: Serve, tmp_path: Path) -> None:
    serving = serve()
    say(serving.url, "order-4711")
    with operator(printed_link(tmp_path, "--url", admin_of(serving))) as client:
        client.get("/ui")
    key = {"authorization": f"Bearer {KEY}"}
    exported = httpx2.get(f"{serving.url}/context/tenant/export", headers=key, timeout=30)
    assert "view_tenant" not in exported.text
    assert httpx2.delete(f"{serving.url}/context/tenant", headers=key, timeout=30).status_code == 200
    assert [act["did"] for act in acts(tmp_path)] == ["make_link", "sign_in", "view_tenant"]
