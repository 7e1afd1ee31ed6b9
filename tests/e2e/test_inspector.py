"""The inspector: who may look, and that nobody sees what is another's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from urllib.parse import quote

import httpx2
import pytest
from structlog.testing import capture_logs

from app.inspector.sessions import COOKIE, MOST_GUESSES, Sessions
from app.proxy.caller import ANONYMOUS
from tests.e2e.commands import until
from tests.e2e.histories import turns
from tests.e2e.running import StartSteno, Steno

SECRET = "a secret for the end-to-end tests"
PASSWORD = "the operator's password"
SESSIONS = Sessions(SECRET.encode(), PASSWORD)
KEYS = ("sk-first-person", "sk-second-person")
CANARIES = ("firstzebra", "secondzebra")
ELSEWHERE = {"x-forwarded-for": "203.0.113.7"}
"""A request that came through a proxy is not from this machine."""
AWKWARD = "<script>alert('id')</script>\"&/ü"
AWKWARD_MODEL = "<img src=x onerror=alert('model')>"


def browser(url: str, **options: Any) -> httpx2.Client:
    return httpx2.Client(base_url=url, timeout=30.0, **options)


def say(url: str, key: str | None, conversation: str, canary: str = "", number: int = 8, model: str = "gpt-4o") -> None:
    history = turns(number, 400)
    for message in history:
        message["content"] = f"{canary} {message['content']}"
    headers = {"authorization": f"Bearer {key}"} if key else {}
    body = {"model": model, "messages": history, "conversation_id": conversation}
    httpx2.post(f"{url}/v1/chat/completions", json=body, headers=headers, timeout=30.0)


@pytest.fixture
def used(steno: StartSteno) -> Steno:
    """Two people with a conversation of the same name and one of their own each; nobody without a key."""
    started = steno(storage={"messages": True}, secret=SECRET, inspector={"password": PASSWORD})
    for key, canary in zip(KEYS, CANARIES, strict=True):
        say(started.url, key, "shared-name", canary)
        say(started.url, key, f"of-{canary}", canary)
        # Who reads has it stored first, and what is stored together was seen at the same time.
        httpx2.get(f"{started.url}/context/conversations", headers={"authorization": f"Bearer {key}"})
    return started


@contextmanager
def signed_in(url: str, key: str) -> Iterator[httpx2.Client]:
    with browser(url, headers=ELSEWHERE) as client:
        answer = client.post("/ui/sign-in", data={"key": key})
        assert (answer.status_code, answer.headers["location"]) == (303, "/ui")
        yield client


def operator(url: str) -> AbstractContextManager[httpx2.Client]:
    return signed_in(url, PASSWORD)


def form_token(client: httpx2.Client) -> str:
    return client.get("/ui").text.partition('name="form_token" value="')[2].partition('"')[0]


def pages(person: int) -> list[str]:
    """All that can be asked for, with what belongs to the other person in every place that takes a name."""
    other = CANARIES[1 - person]
    return [
        "/",
        "/ui",
        "/ui?days=30",
        "/ui/conversations",
        "/ui/conversations?status=summarized",
        f"/ui/conversations?q={other}",
        f"/ui/conversations?after=0.of-{other}",
        f"/ui/conversations?after=9999999999999.of-{other}",
        f"/ui/conversations/of-{other}",
        "/ui/conversations/shared-name",
        "/ui/tenants",
    ]


@pytest.mark.parametrize("path", ["/ui", "/ui/conversations"])
def test_who_looks_without_a_key_is_told_of_conversations_of_keys_and_the_way_in(path: str, used: Steno) -> None:
    told = "Conversations of API keys exist"
    with browser(used.url) as anonymous:
        assert told in anonymous.get(path).text
    with signed_in(used.url, KEYS[0]) as somebody:
        assert told not in somebody.get(path).text
    with operator(used.url) as client:
        assert "All tenants" in client.get(path).text


def test_a_stranger_sees_on_the_landing_page_what_is_public_alone(used: Steno) -> None:
    with browser(used.url, headers=ELSEWHERE) as stranger:
        shown = stranger.get("/").text
    assert f"{used.url}/v1" in shown
    for hidden in (*CANARIES, "shared-name", used.services.providers.default.settings.base_url):
        assert hidden not in shown


def test_the_setup_page_counts_the_listed_models_that_the_caller_did_not_use(steno: StartSteno) -> None:
    started = steno(upstream={"discover_windows": True}, models=[])
    say(started.url, None, "one")
    with browser(started.url) as client:
        until(lambda: "10 more models, windows reported by the provider" in client.get("/").text)


def test_a_key_that_nobody_checked_shows_nothing_of_the_operators(used: Steno) -> None:
    """The provider checks keys, and Steno does not: anyone can send a chat with a made-up key, and sign in with it."""
    say(used.url, "made-up", "of-somebody")
    address = used.services.providers.default.settings.base_url
    with signed_in(used.url, "made-up") as client:
        assert address not in client.get("/").text
        assert address not in client.get("/ui").text
    with operator(used.url) as client:
        assert address in client.get("/").text


def test_an_operator_cannot_choose_a_tenant_that_there_is_not(used: Steno) -> None:
    with operator(used.url) as client:
        answer = client.post("/ui/tenants", data={"form_token": form_token(client), "tenant": "x" * 2_000})
        assert answer.status_code == 404
        assert client.get("/ui").status_code == 200


@pytest.mark.parametrize("person", [0, 1])
def test_a_person_sees_what_is_the_persons_and_never_another_ones(person: int, used: Steno) -> None:
    with signed_in(used.url, KEYS[person]) as client:
        assert f"of-{CANARIES[person]}" in client.get("/ui/conversations").text
        for path in pages(person):
            # What was asked for is repeated in the search field and in links.
            shown = client.get(path).text.replace(f"of-{CANARIES[1 - person]}", "")
            if "q=" not in path:
                assert CANARIES[1 - person] not in shown, path
        assert "No conversation matches" in client.get(f"/ui/conversations?q={CANARIES[1 - person]}").text
        assert client.get(f"/ui/conversations/of-{CANARIES[1 - person]}").status_code == 404
        assert client.get("/ui/tenants").status_code == 404


def test_a_pasted_key_is_kept_nowhere(used: Steno) -> None:
    with signed_in(used.url, KEYS[0]) as client:
        cookie = client.cookies[COOKIE]
        session = SESSIONS.unseal(cookie)
        assert session is not None
        assert session.tenant == used.services.identity.tenant(KEYS[0].encode())
        assert KEYS[0] not in repr(session)
        assert all(KEYS[0] not in client.get(path).text for path in pages(0))


def test_the_cookie_is_for_this_site_and_its_server_alone(used: Steno) -> None:
    with browser(used.url, headers=ELSEWHERE) as client:
        plain = client.post("/ui/sign-in", data={"key": KEYS[0]}).headers["set-cookie"]
        over_tls = {"x-forwarded-proto": "https"}
        secure = client.post("/ui/sign-in", data={"key": KEYS[0]}, headers=over_tls).headers["set-cookie"]
    for attribute in ("HttpOnly", "SameSite=strict", "Max-Age=43200", "Path=/"):
        assert attribute in plain
    assert "Secure" not in plain
    assert "Secure" in secure


def test_the_operators_password_shows_every_tenant(used: Steno) -> None:
    with operator(used.url) as client:
        assert PASSWORD not in repr(SESSIONS.unseal(client.cookies[COOKIE]))
        shown = client.get("/ui/tenants").text
        for key in KEYS:
            assert used.services.identity.tenant(key.encode()) in shown
        assert "of-secondzebra" in client.get("/ui/conversations").text, "the tenant that was seen last"


def test_forged_expired_and_foreign_cookies_are_none(used: Steno) -> None:
    expired = Sessions(SECRET.encode(), PASSWORD, clock=lambda: 1_000_000.0)
    foreign = Sessions(b"another server's secret", PASSWORD)
    tenant = used.services.identity.tenant(KEYS[0].encode())
    for cookie in (foreign.seal(foreign.opened("", operator=True)), expired.seal(expired.opened(tenant)), ""):
        with browser(used.url, headers=ELSEWHERE, cookies={COOKIE: cookie}) as client:
            assert client.get("/ui/conversations").status_code == 303


def test_nobody_who_needs_no_key_is_somebody_else_from_another_machine(used: Steno) -> None:
    say(used.url, None, "of-nobody")
    with browser(used.url) as local:
        assert "of-nobody" in local.get("/ui/conversations").text
        cookie = local.cookies[COOKIE]
    session = SESSIONS.unseal(cookie)
    assert session is not None
    assert session.tenant == ANONYMOUS
    with browser(used.url, headers=ELSEWHERE, cookies={COOKIE: cookie}) as elsewhere:
        assert elsewhere.get("/ui/conversations").status_code == 303


def test_a_form_of_another_page_does_nothing(used: Steno) -> None:
    first = used.services.identity.tenant(KEYS[0].encode())
    with operator(used.url) as client, operator(used.url) as other:
        for token in ("", form_token(other)):
            answer = client.post("/ui/tenants", data={"form_token": token, "tenant": first})
            assert answer.status_code == 403
            assert "set-cookie" not in answer.headers
            assert client.post("/ui/sign-out", data={"form_token": token}).status_code == 403
        assert "of-secondzebra" in client.get("/ui/conversations").text


@pytest.mark.parametrize("key", [KEYS[0], PASSWORD])
def test_signing_out_takes_the_cookie_from_the_browser(used: Steno, key: str) -> None:
    with signed_in(used.url, key) as client:
        answer = client.post("/ui/sign-out", data={"form_token": form_token(client)})
        assert (answer.status_code, answer.headers["location"]) == (303, "/ui/sign-in")
        assert client.get("/ui").headers["location"] == "/ui/sign-in"
        assert "shared-name" not in client.get("/").text


def test_guesses_are_refused_after_ten_and_logged(used: Steno) -> None:
    with capture_logs() as logged, browser(used.url, headers=ELSEWHERE) as client:
        for number in range(MOST_GUESSES):
            assert client.post("/ui/sign-in", data={"key": f"sk-guess-{number}"}).status_code == 401
        for right in (KEYS[0], PASSWORD):
            refused = client.post("/ui/sign-in", data={"key": right})
            assert (refused.status_code, "set-cookie" in refused.headers) == (429, False)
            assert 0 < int(refused.headers["retry-after"]) <= 630
    guesses = [each for each in logged if each["event"] == "sign-in guessed"]
    assert {each["address"] for each in guesses} == {"127.0.0.1"}
    assert "sk-guess" not in str(logged)


def test_what_clients_name_comes_out_as_text(used: Steno) -> None:
    say(used.url, KEYS[0], AWKWARD, model=AWKWARD_MODEL)
    with signed_in(used.url, KEYS[0]) as client:
        for path in (
            "/",
            "/ui",
            "/ui/conversations",
            f"/ui/conversations?q={quote(AWKWARD)}",
            f"/ui/conversations?model={quote(AWKWARD_MODEL)}&status={quote(AWKWARD)}",
            f"/ui/conversations/{quote(AWKWARD, safe='')}",
        ):
            answer = client.get(path)
            assert answer.status_code == 200
            assert "<script>alert" not in answer.text, path
            assert "<img src=x" not in answer.text, path
        assert "&lt;img src=x onerror=alert(&#39;model&#39;)&gt;" in client.get("/ui").text
        answer = client.get("/ui/conversations")
        assert "&lt;script&gt;alert(&#39;id&#39;)" in answer.text


def test_every_page_keeps_to_itself(used: Steno) -> None:
    with operator(used.url) as client:
        for path in (*pages(0), "/ui/sign-in", "/ui/nothing"):
            headers = client.get(path).headers
            assert "default-src 'none'" in headers["content-security-policy"]
            assert "frame-ancestors 'none'" in headers["content-security-policy"]
            assert "unsafe" not in headers["content-security-policy"]
            told = [headers[name] for name in ("x-content-type-options", "referrer-policy", "cache-control")]
            assert told == ["nosniff", "same-origin", "no-store"]
