"""The operator's listener: the operator's pages, metrics and sessions are there alone."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml

from app.http.loopback import RunningServer
from app.inspector.sessions import COOKIE, OPERATORS_COOKIE
from tests.databases import database_on
from tests.e2e import commands
from tests.e2e.commands import MODELS, SECRET, Serving
from tests.e2e.conftest import Serve
from tests.e2e.histories import chat, turns
from tests.e2e.test_serve import refused

KEY = "sk-somebody"
PASSWORD = "the operator's password"
ELSEWHERE = {"x-forwarded-for": "203.0.113.7"}
JSON = {"content-type": "application/json"}
OPERATORS = ("/metrics", "/docs", "/openapi.json")


@pytest.fixture
def serve(tmp_path: Path, provider: RunningServer) -> Iterator[Serve]:
    """Starts Steno before the simulator, with an operator's listener."""
    with ExitStack() as started:

        def start(*arguments: str, admin: str = "127.0.0.1:0", **options: Any) -> Serving:
            variables: dict[str, Any] = {
                "STENO_MODELS": MODELS,
                "STENO_SECRET": SECRET,
                "STENO_INSPECTOR__PASSWORD": PASSWORD,
            }
            variables |= {"STENO_SERVER__ADMIN": admin, **options}
            serving = commands.serve(["--upstream", f"{provider.url}/v1", *arguments], tmp_path, **variables)
            started.callback(serving.stop)
            return serving

        yield start


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


@contextmanager
def operator(url: str) -> Iterator[httpx2.Client]:
    with browser(url, headers=ELSEWHERE) as client:
        assert client.post("/ui/sign-in", data={"key": PASSWORD}).status_code == 303
        yield client


# What is where


def test_what_is_the_operators_is_at_his_listener_and_nowhere_else(serve: Serve) -> None:
    serving = serve("--workers", "2")
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


def test_callers_see_their_own_pages_and_nothing_of_the_operators(serve: Serve, provider: RunningServer) -> None:
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
            assert "/metrics" not in shown
    with operator(admin_of(serving)) as client:
        assert provider.url in client.get("/").text
        assert f"{serving.url.rpartition(':')[0]}:0/v1" in client.get("/").text, "where clients go, as it is set"
        sealed = client.cookies[OPERATORS_COOKIE]
    with browser(serving.url, headers=ELSEWHERE, cookies={COOKIE: sealed, OPERATORS_COOKIE: sealed}) as callers:
        assert callers.get("/ui/tenants").headers["location"] == "/ui/sign-in"
        answer = callers.post("/ui/sign-in", data={"key": PASSWORD})
        assert (answer.status_code, "set-cookie" in answer.headers) == (401, False)


def test_an_address_that_is_taken_is_told_as_what_it_is(tmp_path: Path) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        said = refused(tmp_path, STENO_SERVER__ADMIN=address)
    assert (
        said
        == f"steno: Steno cannot listen on {address}: address already in use. Choose another address for server.admin."
    )


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


# Cookies


@pytest.mark.parametrize(
    ("trusted", "is_believed"), [("[]", True), ('["127.0.0.0/8"]', True), ('["10.0.0.0/8"]', False)]
)
def test_over_tls_the_cookie_is_bound_to_this_host(serve: Serve, trusted: str, is_believed: bool) -> None:
    serving = serve(STENO_SERVER__TRUSTED_PROXIES=trusted)
    with browser(admin_of(serving), headers=ELSEWHERE | {"x-forwarded-proto": "https"}) as client:
        cookie = client.post("/ui/sign-in", data={"key": PASSWORD}).headers["set-cookie"]
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
