"""What `steno run` gives to commands, so that their requests come to it."""

from __future__ import annotations

import json
import tomllib

import pytest

from app.cli.run import FIRST_PARTY, is_anthropic, prepared, settings_of, variables_for

URL = "http://127.0.0.1:9000"


def test_base_urls_are_set_as_each_client_reads_them() -> None:
    made = variables_for(URL, {"OPENAI_API_BASE": "https://elsewhere/v1", "PATH": "/bin"})
    assert made == {
        "PATH": "/bin",
        "OPENAI_BASE_URL": f"{URL}/v1",
        "OPENAI_API_BASE": f"{URL}/v1",
        "ANTHROPIC_BASE_URL": URL,
        "ANTHROPIC_API_BASE": URL,
    }


@pytest.mark.parametrize(("given", "made"), [({}, "127.0.0.1"), ({"NO_PROXY": "corp"}, "corp,127.0.0.1")])
def test_a_proxy_is_not_asked_for_steno(given: dict[str, str], made: str) -> None:
    environment = variables_for(URL, {"https_proxy": "http://proxy:3128", **given})
    assert environment["NO_PROXY"] == made
    assert "NO_PROXY" not in variables_for(URL, {})


def test_a_command_that_nobody_knows_is_started_as_it_is() -> None:
    environment: dict[str, str] = {}
    assert prepared(["python", "codex"], URL, environment) == ["python", "codex"]
    assert not environment


def test_claude_code_is_told_that_anthropic_is_behind_steno_where_it_is() -> None:
    """Or it falls from a window of a million tokens to 200,000. What the user says counts for more."""
    told: dict[str, str] = {}
    assert prepared(["/bin/claude", "-p", "hi"], URL, told, anthropic=True) == ["/bin/claude", "-p", "hi"]
    assert told == {FIRST_PARTY: "1"}
    silent: dict[str, str] = {}
    prepared(["claude"], URL, silent)
    prepared(["python"], URL, silent, anthropic=True)
    assert not silent
    own = {FIRST_PARTY: "0"}
    prepared(["claude"], URL, own, anthropic=True)
    assert own == {FIRST_PARTY: "0"}


@pytest.mark.parametrize(
    ("upstream", "environment", "anthropic"),
    [
        ({}, {}, True),
        ({}, {"OPENAI_BASE_URL": "http://127.0.0.1:1/v1"}, True),
        ({}, {"ANTHROPIC_BASE_URL": "http://127.0.0.1:1"}, False),
        ({"base_url": "http://127.0.0.1:1/v1"}, {}, False),
        ({"base_url": "https://api.anthropic.com/v1"}, {}, True),
    ],
)
def test_anthropic_is_behind_steno_where_messages_can_go_nowhere_else(
    monkeypatch: pytest.MonkeyPatch, upstream: dict[str, str], environment: dict[str, str], anthropic: bool
) -> None:
    monkeypatch.setenv("DATABASE_URL", "")
    assert is_anthropic(settings_of({"upstream": upstream}, environment)) is anthropic


@pytest.mark.parametrize(
    ("environment", "key"),
    [({"OPENAI_API_KEY": "sk"}, {"env_key": "OPENAI_API_KEY"}), ({}, {"requires_openai_auth": True})],
)
def test_codex_gets_a_provider_before_its_own_arguments(environment: dict[str, str], key: dict[str, object]) -> None:
    command = prepared(["/usr/bin/codex", "exec", "hello"], URL, environment)
    assert (command[0], command[-2:]) == ("/usr/bin/codex", ["exec", "hello"])
    assert command[1:-2:2] == ["-c", "-c"]
    assert tomllib.loads("\n".join(command[2:-2:2])) == {
        "model_provider": "steno",
        "model_providers": {"steno": {"name": "Steno", "base_url": f"{URL}/v1", "wire_api": "responses", **key}},
    }


def test_opencode_gets_its_providers_in_its_configuration_unless_the_user_has_one() -> None:
    environment: dict[str, str] = {}
    assert prepared(["opencode", "run"], URL, environment) == ["opencode", "run"]
    at_steno = {"options": {"baseURL": f"{URL}/v1"}}
    made = environment["OPENCODE_CONFIG_CONTENT"]
    assert json.loads(made) == {"provider": {"openai": at_steno, "anthropic": at_steno}}
    prepared(["opencode"], "http://127.0.0.1:1", environment)
    assert environment["OPENCODE_CONFIG_CONTENT"] == made
