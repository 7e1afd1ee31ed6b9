"""Settings: documented to the last one, checked at the start, and silent about secrets."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic_core import to_jsonable_python

from app.checks import check_settings
from app.compaction.planning_state import Policy
from app.settings import ConfigurationError, Settings, load
from app.settings.compaction import AppliedPolicy, Policies, apply_preset
from app.settings.presets import PRESET_NAMES, PRESETS, PresetName
from app.settings.settings import REMOVED
from app.store.engine import read_url
from scripts.generate_settings import keys

ROOT = Path(__file__).parents[2]
SAMPLE = ROOT / "config" / "steno.yaml"
DESCRIBED = (ROOT / "docs" / "policies.md").read_text()
PASSWORD = "hunter2"


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("STENO_") or name == "DATABASE_URL":
            monkeypatch.delenv(name)


KEYED = {"api_key_env": "PROVIDER_KEY"}


def refusal(**flags: Any) -> str:
    with pytest.raises(ConfigurationError) as refused:
        load(**flags)
    return str(refused.value)


def applied_in(settings: Settings) -> AppliedPolicy:
    return apply_preset(settings.compaction, settings.summary)


def write_settings(text: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder / "settings.yaml"
    path.write_text(text)
    monkeypatch.setenv("STENO_CONFIG", str(path))


# Documented


def test_what_is_not_set_is_as_core_has_it() -> None:
    assert applied_in(load()).policy == Policy()


BEHIND_A_PROXY: dict[str, Any] = {"trusted_proxies": ["127.0.0.1"]}


@pytest.mark.parametrize(
    ("server", "clients", "starts"),
    [
        ({}, {}, True),
        ({"host": "localhost"}, {"tenant": "team"}, True),
        ({"host": "::1"}, {}, True),
        ({"host": "0.0.0.0"}, {}, False),  # noqa: S104
        ({"host": ""}, {}, False),
        ({"host": "::"}, {"tenant": "team"}, False),
        ({"host": "steno.example.com", "allow_unauthenticated": False}, {}, False),
        ({"host": "0.0.0.0", **BEHIND_A_PROXY}, {"tenant": "team"}, False),  # noqa: S104
        ({"host": "0.0.0.0", **BEHIND_A_PROXY}, {"header": "x-user"}, True),  # noqa: S104
        # On loopback, but others come by a proxy.
        (BEHIND_A_PROXY, {"tenant": "team"}, False),
        ({"allowed_hosts": ["steno.example.com"]}, {}, False),
        ({"allow_unauthenticated": True}, {}, False),
        (BEHIND_A_PROXY, {"header": "x-user"}, True),
    ],
)
def test_the_operators_key_needs_a_proxy_that_names_callers_where_others_reach_steno(
    monkeypatch: pytest.MonkeyPatch, server: dict[str, Any], clients: dict[str, Any], starts: bool
) -> None:
    monkeypatch.setenv("PROVIDER_KEY", "sk-operator")
    for upstreams in ({"upstream": KEYED}, {"upstreams": {"near": {"base_url": "http://127.0.0.1:1/v1", **KEYED}}}):
        settings = load(server=server, clients=clients, **upstreams)
        found = [each for each in check_settings(settings, ()) if each.subject == "callers"]
        assert [each.state for each in found] == ([] if starts else ["fatal"])
        assert all("Set clients.header and server.trusted_proxies" in each.sentence for each in found)
    assert not any(each.subject == "callers" for each in check_settings(load(server=server, clients=clients), ()))


@pytest.mark.parametrize(
    ("server", "starts"),
    [
        ({"allowed_origins": ["*"]}, False),
        ({"allowed_origins": ["https://chat.example.com"]}, True),
        ({"trusted_proxies": ["0.0.0.0/0"]}, False),
        ({"trusted_proxies": ["127.0.0.1", "::/0"]}, False),
    ],
)
def test_neither_every_page_nor_every_address_may_spend_the_operators_key(
    monkeypatch: pytest.MonkeyPatch, server: dict[str, Any], starts: bool
) -> None:
    monkeypatch.setenv("PROVIDER_KEY", "sk-operator")
    settings = load(server={**BEHIND_A_PROXY, **server}, clients={"header": "x-user"}, upstream=KEYED)
    found = [each.state for each in check_settings(settings, ()) if each.subject == "callers"]
    assert found == ([] if starts else ["fatal"])


def test_the_password_of_the_inspector_is_long_and_never_repeated() -> None:
    assert "inspector.password must have at least 16 characters." in refusal(inspector={"password": "hunter2"})
    for given in (["hunter2"], {"a": "hunter2"}):
        said = refusal(inspector={"password": given})
        assert "inspector.password" in said
        assert "hunter2" not in said
    assert load(inspector={"password": "hunter2-hunter2-hunter2"}).inspector.password is not None


def test_sample_file_loads_and_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does one in which all is commented out."""
    defaults = load()
    monkeypatch.setenv("STENO_CONFIG", str(SAMPLE))
    assert load() == defaults
    write_settings("# all commented out\n", tmp_path, monkeypatch)
    assert load() == defaults


# Removed settings


def removed(key: str) -> Any:
    """Settings that still have it."""
    value: Any = None
    for name in reversed(key.split(".")):
        value = {"near" if name == "*" else name: value}
    return value


@pytest.mark.parametrize("key", REMOVED)
def test_a_removed_setting_ends_the_start_with_what_to_do_instead(key: str) -> None:
    place = key.replace("*", "near")
    assert f"{place} is no setting any more. {REMOVED[key].rstrip('.')}" in refusal(**removed(key))
    assert key not in keys()


def test_a_removed_setting_is_found_in_the_environment_and_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_settings("clients: {keys: database}", tmp_path, monkeypatch)
    assert "clients.keys is no setting any more" in refusal()
    monkeypatch.delenv("STENO_CONFIG")
    monkeypatch.setenv("STENO_LIMITS__TOKENS_PER_DAY", "1000")
    assert "limits.tokens_per_day is no setting any more" in refusal()
    monkeypatch.setenv("STENO_TOKENIZER__DIRECTORY", "/tables")
    assert refusal() == f"STENO_TOKENIZER__DIRECTORY is no setting any more. {REMOVED['tokenizer']}"


# Merged with another


def test_prices_may_be_null_in_the_environment_and_in_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load().prices == ()
    write_settings("prices: null", tmp_path, monkeypatch)
    assert load().prices is None
    monkeypatch.delenv("STENO_CONFIG")
    monkeypatch.setenv("STENO_PRICES", "null")
    assert load().prices is None


# Precedence


def test_flags_win_over_the_environment_and_that_over_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_settings("server: {port: 1, host: a, drain_seconds: 3}", tmp_path, monkeypatch)
    monkeypatch.setenv("STENO_SERVER__PORT", "2")
    monkeypatch.setenv("STENO_SERVER__HOST", "b")
    server = load(server={"port": 4}).server
    assert (server.port, server.host, server.drain_seconds) == (4, "b", 3)


def test_plain_database_url_is_honoured_and_steno_storage_url_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "memory")
    assert load().storage.address == "memory"
    monkeypatch.setenv("STENO_STORAGE__URL", "sqlite:///other.db")
    assert load().storage.address == "sqlite:///other.db"


def test_the_database_is_in_one_place_whatever_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """STENO_HOME, else the folder for data that the XDG specification names."""
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        monkeypatch.chdir(tmp_path / folder)
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.delenv("XDG_DATA_HOME", raising=False)
        assert load().storage.address == f"sqlite:///{tmp_path}/.local/share/steno/steno.db"
        monkeypatch.setenv("XDG_DATA_HOME", "relative/paths/do/not/count")
        assert load().storage.address == f"sqlite:///{tmp_path}/.local/share/steno/steno.db"
        monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
        assert load().storage.address == f"sqlite:///{tmp_path}/data/steno/steno.db"
        monkeypatch.setenv("STENO_HOME", str(tmp_path / "own"))
        assert load().storage.address == f"sqlite:///{tmp_path}/own/steno.db"
        monkeypatch.delenv("STENO_HOME")


@pytest.mark.parametrize("folder", ["user@example.com", "with space", "100%", "what?"])
def test_the_default_database_may_be_in_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    monkeypatch.setenv("STENO_HOME", str(tmp_path / folder))
    assert read_url(load().storage.address).path == tmp_path / folder / "steno.db"


def test_secret_is_read_from_the_file_that_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secret").write_text("sixteen bytes or more\n")
    monkeypatch.setenv("STENO_SECRET_FILE", str(tmp_path / "secret"))
    secret = load().secret
    assert secret is not None
    assert secret.get_secret_value() == "sixteen bytes or more"


# Presets and triggers


def test_what_is_set_beside_a_preset_wins_over_it() -> None:
    settings = load(compaction={"preset": "librechat", "tail": {"turns": 3}})
    applied = applied_in(settings)
    assert (settings.compaction.tail.turns, applied.shares.tail) == (3, 0.5)
    policy = applied.policy
    assert policy.mask
    assert (policy.strategy, policy.mask.pressure) == ("full", 0.80)


def test_the_environments_preset_stands_in_place_of_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_settings("compaction: {preset: librechat}", tmp_path, monkeypatch)
    monkeypatch.setenv("STENO_COMPACTION__PRESET", "lightspeed")
    settings = load()
    assert (settings.compaction.tail.turns, settings.compaction.trigger.tokens) == (4, 0)
    assert settings.summary == Settings.model_fields["summary"].default


@pytest.mark.parametrize("name", PRESET_NAMES)
def test_each_preset_loads_with_all_its_values_builds_its_policies_and_is_described(name: PresetName) -> None:
    settings = load(compaction={"preset": name})
    assert settings.compaction.preset == name
    for section, values in PRESETS[name].settings.items():
        loaded = getattr(settings, section).model_dump(mode="json")
        assert is_within(to_jsonable_python(values), loaded), section
    Policies(settings)
    assert f"| [`{name}`](#" in DESCRIBED


def is_within(given: Any, loaded: Any) -> bool:
    """Whether what is loaded has all that was given."""
    if isinstance(given, dict):
        return all(name in loaded and is_within(value, loaded[name]) for name, value in given.items())
    if isinstance(given, list):
        return len(given) == len(loaded) and all(map(is_within, given, loaded))
    return bool(given == loaded)


# Refused, with the key, what was given and what is allowed


REFUSED: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("settings_refused.yaml").read_text("utf-8"))
ENDLESS = ("STENO_MODELS", f'[{{"match": "m", "context_window": {"9" * 5_000}}}]', ("STENO_MODELS must be JSON",))


@pytest.mark.parametrize(("variable", "value", "said"), [*REFUSED["environment"], ENDLESS])
def test_a_value_that_cannot_be_used_is_named_with_what_is_allowed(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, said: tuple[str, ...]
) -> None:
    monkeypatch.setenv(variable, value)
    message = refusal()
    for words in said:
        assert words in message
    assert "\n" not in message


@pytest.mark.parametrize(
    "url",
    [
        "http://:canary@host/v1",
        "http://canary@host/v1",
        "http://@host/v1?canary",
        "http://user:canary@host/v1",
        "http://user:ca/nary@host/v1",
        "http://user:canary:x/@host/v1",
        "http://host/v1?api-key=canary",
        "http://host/v1?",
        "http://host/v1#canary",
        "http://host/canary v1?",
        "https://user:canary@[::1/v1",
    ],
)
def test_a_base_url_with_a_secret_is_refused_without_a_word_of_it(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    """It would stand in the log, in REST answers and in the database."""
    monkeypatch.setenv("STENO_UPSTREAM__BASE_URL", url)
    message = refusal()
    assert "upstream.base_url: an http(s) URL without credentials" in message
    assert not re.search("canary|nary@|'ca'", message)
    monkeypatch.setenv("STENO_UPSTREAMS", json.dumps({"other": {"base_url": url}}))
    assert not re.search("canary|nary@|'ca'", refusal())


@pytest.mark.parametrize(("flags", "said"), REFUSED["flags"])
def test_settings_that_do_not_go_together_are_refused_with_what_would(
    flags: dict[str, Any], said: tuple[str, ...]
) -> None:
    message = refusal(**flags)
    assert [words for words in said if words not in message] == []


@pytest.mark.parametrize(("given", "means"), [("1", True), ("No", False), ("loopback", "loopback"), ("true", True)])
def test_who_needs_no_key_is_said_in_the_environment_too(
    monkeypatch: pytest.MonkeyPatch, given: str, means: object
) -> None:
    monkeypatch.setenv("STENO_ALLOW_UNAUTHENTICATED", given)
    assert load().server.allow_unauthenticated == means


@pytest.mark.parametrize(
    ("compaction", "expected"),
    [
        ({}, {"default"}),
        ({"background": {"enabled": False}}, set()),
        ({"preset": "rolling", "background": {"enabled": True}}, {"default", "rolling"}),
        ({"preset": "rolling"}, set()),
    ],
)
def test_the_presets_of_other_systems_make_nothing_in_the_background(
    compaction: dict[str, Any], expected: set[str]
) -> None:
    settings = load(compaction=compaction)
    policies = Policies(settings)
    summarising: tuple[PresetName, ...] = ("default", "lightspeed", "librechat", "librechat-checkpoint", "rolling")
    rules = {name: policies.of("m", preset=name) for name in summarising}
    assert {name for name, each in rules.items() if each.compaction.background.enabled} == expected


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("STENO_SERVICE_HOST", "10.0.0.1"),
        ("STENO_SERVICE_PORT_HTTP", "8080"),
        ("STENO_PORT", "tcp://10.0.0.1:8080"),
        ("STENO_PORT_8080_TCP_ADDR", "10.0.0.1"),
    ],
)
def test_variables_of_a_kubernetes_service_called_steno_are_let_pass(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    assert load() == Settings()


@pytest.mark.parametrize(("text", "said"), REFUSED["files"])
def test_a_mistake_in_the_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, said: str) -> None:
    write_settings(text, tmp_path, monkeypatch)
    message = refusal()
    assert said in message
    assert "\n" not in message


def test_a_file_that_is_missing_or_no_text_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STENO_CONFIG", str(tmp_path / "absent.yaml"))
    assert refusal() == f"The settings file {tmp_path}/absent.yaml cannot be read: No such file or directory."
    monkeypatch.setenv("STENO_CONFIG", str(tmp_path))
    assert refusal() == f"The settings file {tmp_path} cannot be read: Is a directory."
    write_settings("", tmp_path, monkeypatch)
    (tmp_path / "settings.yaml").write_bytes(b"\xff\xfe\x00")
    assert "is not YAML in UTF-8" in refusal()


# Secrets


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("STENO_UPSTREAM__BASE_URL", f"http://user:{PASSWORD}@host/v1"),
        ("STENO_STORAGE", f'{{"urll": "postgresql://user:{PASSWORD}@host/name"}}'),
        ("STENO_STORAGE", f'{{"url": ["postgresql://user:{PASSWORD}@host/name"]}}'),
        ("STENO_STORAGE", f"postgresql://user:{PASSWORD}@host/name"),
    ],
)
def test_a_password_in_a_refused_value_is_not_shown(monkeypatch: pytest.MonkeyPatch, variable: str, value: str) -> None:
    monkeypatch.setenv(variable, value)
    assert PASSWORD not in refusal()


def test_a_password_in_a_broken_file_or_in_settings_is_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_settings(f"storage: {{url: [postgresql://user:{PASSWORD}@host/name}}", tmp_path, monkeypatch)
    assert PASSWORD not in refusal()
    monkeypatch.delenv("STENO_CONFIG")
    monkeypatch.setenv("DATABASE_URL", f"postgresql://user:{PASSWORD}@host/name")
    for secret in (PASSWORD, f'["{PASSWORD}"'):
        monkeypatch.setenv("STENO_SECRET", secret)
        assert PASSWORD not in repr(load())


def test_a_bare_off_in_the_file_is_the_preset_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """YAML reads it as false."""
    write_settings("compaction: {preset: off}", tmp_path, monkeypatch)
    assert (load().compaction.preset, load().compaction.enabled) == ("off", False)
