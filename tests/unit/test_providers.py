"""Providers: which upstream a request goes to, what each knows of its models, and what settings are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from app.errors import FormatNotSpoken, UnknownUpstream
from app.http.headers import new_instance
from app.main import open_providers
from app.providers.providers import Provider, Providers
from app.settings import ConfigurationError, load
from app.store import Store
from tests.e2e import running
from tests.unit.providers import answer, listing

KEY = "sk-operators-own"
HERE: dict[str, Any] = {"base_url": "http://here.example/v1"}
THERE: dict[str, Any] = {"base_url": "http://there.example/v1"}
ELSEWHERE: dict[str, Any] = {"base_url": "http://elsewhere.example/v1"}
CHAT, MESSAGES, RESPONSES = "chat_completions", "messages", "responses"
TENANT, OTHERS = "a tenant", ("another", "a third")
CHOICES = yaml.safe_load(Path(__file__).with_name("providers_choice.yaml").read_text("utf-8"))


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    running.forget_environment(monkeypatch)
    monkeypatch.setenv("PROVIDER_KEY", KEY)


def opened(**sections: Any) -> Providers:
    return open_providers(load(**sections), Store("memory"), new_instance())


def refusal(**sections: Any) -> str:
    with pytest.raises(ConfigurationError) as refused:
        load(**sections)
    return str(refused.value)


# Choice


@pytest.mark.parametrize("case", CHOICES.values(), ids=CHOICES)
def test_a_request_goes_to(case: dict[str, Any]) -> None:
    providers = opened(**case["settings"])
    assert [provider.name for provider in providers.all] == case.get("all", [each.name for each in providers.all])
    for format_ in (CHAT, MESSAGES, RESPONSES):
        expected = case.get(format_, {})
        assert {model: providers.of(model, format_, TENANT).name for model in expected} == expected


def test_a_name_that_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(UnknownUpstream) as refused:
        opened(upstream=ELSEWHERE, upstreams={"near": HERE, "far": THERE}).of("gpt-4o", CHAT, TENANT, "neer")
    assert refused.value.status == 404
    assert refused.value.message == "There is no upstream 'neer' (/u/{name}/v1). Known here: default, near, far."


# Formats


def test_an_upstream_in_the_base_url_that_does_not_speak_the_format_is_refused_with_those_that_do() -> None:
    with pytest.raises(FormatNotSpoken, match=r"'default' does not speak messages.*do: anthropic \("):
        opened().of("claude-5", MESSAGES, TENANT, "default")


def test_a_path_that_was_not_there_makes_another_upstream_first_for_whoever_saw_it() -> None:
    providers = opened(upstream=HERE, upstreams={"claude": {**THERE, "formats": [MESSAGES]}})
    default = providers.default
    assert providers.of("m", MESSAGES, TENANT) is default
    default.lacks(MESSAGES, TENANT)
    assert providers.of("m", MESSAGES, TENANT).name == "claude"
    assert providers.of("m", CHAT, TENANT) is default
    assert providers.of("m", MESSAGES, OTHERS[0]) is default, "one tenant's word is not everybody's"
    assert providers.of("m", MESSAGES, TENANT, "default") is default, "who names it gets it"


def test_two_tenants_whom_the_provider_answered_make_it_known_to_all() -> None:
    providers = opened(upstream=HERE, upstreams={"claude": {**THERE, "formats": [MESSAGES]}})
    for tenant in OTHERS:
        providers.default.lacks(MESSAGES, tenant)
    assert providers.of("m", MESSAGES, TENANT).name == "default"
    for tenant in OTHERS:
        providers.default.windows.add_answered(tenant)
    assert providers.of("m", MESSAGES, TENANT).name == "claude"


# What is known


async def test_models_are_told_with_the_upstreams_that_list_them_or_that_they_go_to() -> None:
    providers = opened(
        upstreams={"near": {**HERE, "models": ["llama-*"]}}, models=[{"match": "llama-4", "context_window": 9_000}]
    )
    await discover(providers.default, "gpt-4o", "both")
    await discover(providers.named("near"), "llama-3", "both")
    known = providers.known("a tenant", ["used", "llama-2"])
    assert {name: [provider.name for provider in having] for name, having in known.items()} == {
        "both": ["default", "near"],
        "gpt-4o": ["default"],
        "llama-2": ["near"],
        "llama-3": ["near"],
        "llama-4": ["near"],
        "used": ["default"],
    }


async def discover(provider: Provider, *models: str) -> None:
    async def relay(*_: object) -> Any:
        return answer(200, msgspec.json.encode(listing(*({"id": model} for model in models))))

    upstream: Any = provider.upstream
    upstream.relay = relay
    await provider.windows.listings.fetch()


# Settings


@pytest.mark.parametrize("name", ["default", "Fast", "a b", "a/b", "", "a" * 65, "ä"])
def test_a_name_that_cannot_be_one_is_refused(name: str) -> None:
    message = refusal(upstreams={name: HERE})
    assert f"upstreams: {name[:80]!r} cannot be the name of an upstream" in message
    assert "1 to 64 of a-z, 0-9, _ and -, and not 'default'" in message


def test_entries_of_file_and_environment_are_one_map_with_those_of_the_file_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "steno.yaml"
    path.write_text(
        'upstreams: {near: {base_url: "http://here.example/v1"}, far: {base_url: "http://there.example/v1"}}'
    )
    monkeypatch.setenv("STENO_CONFIG", str(path))
    monkeypatch.setenv("STENO_UPSTREAMS__AWAY__BASE_URL", "http://away.example/v1")
    monkeypatch.setenv("STENO_UPSTREAMS__FAR__MODELS", '["llama-*"]')
    upstreams = load().upstreams
    assert list(upstreams) == ["near", "far", "away"]
    assert upstreams["far"].models == ("llama-*",)
    assert upstreams["far"].base_url == THERE["base_url"]


# Keys


def test_a_key_is_shown_by_nothing_that_holds_it() -> None:
    settings = load(
        upstream={"api_key_env": "PROVIDER_KEY"}, upstreams={"near": {**HERE, "api_key_env": "PROVIDER_KEY"}}
    )
    providers = open_providers(settings, Store("memory"), new_instance())
    key = settings.upstream.api_key
    assert key is not None
    assert key.get_secret_value() == KEY
    shown = [settings, settings.upstreams, key, providers, *providers.all, settings.model_dump()]
    assert KEY not in "".join(map(repr, shown))


@pytest.mark.parametrize("given", ["sk-proj-4711aBc", "gsk_4711aBc", "Bearer sk-4711aBc", "provider_key_4711aBc", ""])
def test_a_key_in_the_place_of_its_variable_is_refused_and_not_shown(given: str) -> None:
    for section in ({"upstream": {"api_key_env": given}}, {"upstreams": {"near": {**HERE, "api_key_env": given}}}):
        message = refusal(**section)
        assert "api_key_env must be the name of an environment variable, in capitals" in message
        assert "4711aBc" not in message


@pytest.mark.parametrize("value", ["", "  ", "two words", "line\nbreak", "clé"])
def test_a_variable_without_a_key_that_can_be_sent_is_refused(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("PROVIDER_KEY", value)
    message = refusal(upstream={"api_key_env": "PROVIDER_KEY"})
    assert "upstream: api_key_env names PROVIDER_KEY" in message
    assert not value.strip() or value not in message
