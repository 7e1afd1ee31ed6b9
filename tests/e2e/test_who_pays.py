"""Which credential reaches a provider: what says who calls never does, and the provider's key always."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx2
import pytest

from app.edge.credentials import OWN_KEY
from lab.simulator import Simulator
from tests.e2e.running import StartSteno
from tests.e2e.test_client_keys import give
from tests.e2e.test_identity import FORMATS, PROXY, Ask, jwks, token

__all__ = ["jwks"]

OPERATORS, CALLERS = "sk-operators", "sk-callers"
NAMED = "the-user"
ASKS = pytest.mark.parametrize("ask_model", FORMATS)


@pytest.fixture(params=["key", "token", "header"])
def known(request: pytest.FixtureRequest, jwks: dict[str, Any], tmp_path: Path) -> tuple[dict[str, Any], str, str]:
    """Settings by which a caller is known, and the header and value that say who it is."""
    if request.param == "key":
        place = tmp_path / "keys.json"
        return {"clients": {"keys": str(place)}}, "x-litellm-api-key", give(place)
    if request.param == "token":
        return {"clients": jwks}, "x-litellm-api-key", token(name="x" * 17_000)
    return {**PROXY, "clients": {"header": NAMED}}, NAMED, "alice of accounting"


@ASKS
@pytest.mark.parametrize("adds_key", [True, False], ids=["operator's key", "caller's key"])
def test_the_provider_gets_its_key_and_nothing_of_who_calls(
    steno: StartSteno,
    simulator: Simulator,
    monkeypatch: pytest.MonkeyPatch,
    known: tuple[dict[str, Any], str, str],
    ask_model: Ask,
    *,
    adds_key: bool,
) -> None:
    """In chats, in the calls for their summaries, and on a path that passes."""
    settings, header, value = known
    monkeypatch.setenv("PROVIDER_API_KEY", OPERATORS)
    started = steno(**settings, upstream={"api_key_env": "PROVIDER_API_KEY"} if adds_key else {})
    assert ask_model(started.url, CALLERS, {header: value}) == "summarized"
    passed = {"authorization": f"Bearer {CALLERS}", header: value}
    assert httpx2.get(f"{started.url}/v1/models", headers=passed, timeout=30.0).status_code == 200
    assert len(simulator.summaries) > 0
    for record in simulator.log:
        assert value[-60:] not in repr((record.target, record.headers))
        sent = {record.header("authorization"), record.header("x-api-key")} - {None}
        key = OPERATORS if adds_key else CALLERS
        assert sent <= {key, f"Bearer {key}"}
        assert sent or record.target == "/v1/models"


def test_a_token_or_key_of_ours_leaves_in_no_disguise(
    steno: StartSteno,
    simulator: Simulator,
    monkeypatch: pytest.MonkeyPatch,
    jwks: dict[str, Any],
) -> None:
    monkeypatch.setenv("PROVIDER_API_KEY", OPERATORS)
    sent = token()
    for upstream in ({}, {"api_key_env": "PROVIDER_API_KEY"}):
        started = steno(clients=jwks, upstream=upstream)
        for secret in (sent, f"{OWN_KEY.decode()}made-up"):
            for header in ("x-more", "user-agent", "x-client-request-id"):
                for value in (secret, f"Token {secret}", f'"{secret}"', f"a={secret}; b=c", f"{secret}.c2ln"):
                    signed_in = {"authorization": f"Bearer {sent}", "x-api-key": CALLERS, header: value}
                    body = {"model": "gpt-4o", "messages": [{"role": "user", "content": "Hello."}]}
                    target = f"{started.url}/v1/chat/completions?x=1&y={value[:4]}{secret}"
                    assert httpx2.post(target, json=body, headers=signed_in, timeout=30.0).status_code == 200
    assert len(simulator.chats) == 2 * 2 * 3 * 5
    left = repr([(record.target, record.headers) for record in simulator.log])
    assert sent[-60:] not in left
    assert OWN_KEY.decode() not in left
