"""All settings by section, their sources (flags, the environment, a file, a preset), and the errors of their values."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Self, get_args

import yaml
from pydantic import BaseModel, SecretStr, ValidationError, field_validator, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from app.conversation.wordings import read_wordings
from app.formats.paths import FormatName
from app.settings.compaction import CompactionSettings, SummarySettings
from app.settings.presets import PRESETS
from app.settings.server import (
    ClientSettings,
    EventSettings,
    IdentitySettings,
    InspectorSettings,
    LimitSettings,
    LogSettings,
    ServerSettings,
)
from app.settings.storage import StorageSettings
from app.settings.types import ConfigurationError
from app.settings.upstreams import (
    DEFAULT_UPSTREAM,
    OPENAI,
    VENDORS_OWN,
    ModelSettings,
    NamedUpstreamSettings,
    PriceSettings,
    UpstreamSettings,
    fits,
)
from app.tokens.costs import Tariff

_UPSTREAM = re.compile(r"[a-z0-9_-]{1,64}")


class Settings(BaseSettings):
    """All settings. Create them with `load`, which raises `ConfigurationError`."""

    model_config = SettingsConfigDict(
        env_prefix="STENO_",
        env_nested_delimiter="__",
        env_parse_none_str="null",
        extra="forbid",
        frozen=True,
    )

    server: ServerSettings = ServerSettings()
    upstream: UpstreamSettings = UpstreamSettings()
    upstreams: dict[str, NamedUpstreamSettings] = {}
    """Further providers by name. A request selects a provider by its model, or by the base URL `/u/{name}/v1`.

    [Upstreams](upstreams.md) describes the choice of an upstream. An entry has all settings of `upstream`, and
    `models`. A name has 1 to 64 characters: a-z, 0-9, _ and -. For example:

        local: {base_url: "http://127.0.0.1:8000/v1", models: ["llama-*"]}
        openrouter: {base_url: "https://openrouter.ai/api/v1", models: ["*/*"], api_key_env: "OPENROUTER_API_KEY"}
    """
    models: tuple[ModelSettings, ...] = ()
    """Windows of models, in tokens. The first matching entry overrides the provider's and Steno's own data.

    Steno compares `match` with the model's name, and with the part after its last slash (`openai/gpt-4o`). An entry for
    `gpt-4*` hides a later `gpt-4o*`. Each entry needs `context_window`, `base_model` or `preset`, and applies to all
    upstreams. If a window is too large, Steno compacts too late, and the provider refuses the request. For example:

        - {match: "my-model*", context_window: 32768, max_input_tokens: 30000}
        - {match: "chat-prod", base_model: "gpt-4o"}
    """
    prices: tuple[PriceSettings, ...] | None = ()
    """Prices of models, in currency units for a million tokens. The first matching entry applies. Empty: public list
    prices in US dollars; null: no prices.

    Prices are from 0 to 1,000,000, in any currency. If the provider's answer has a cost, in US dollars, Steno uses that
    cost ([ledger](usage.md#cost)). One entry here switches off all list prices. If you run models yourself under their
    vendors' names, set null: list prices are not your cost. For example:

        - {match: "my-model*", prompt: 2.5, completion: 10, cached: 1.25}
    """
    compaction: CompactionSettings = CompactionSettings()
    summary: SummarySettings = SummarySettings()
    events: EventSettings = EventSettings()
    storage: StorageSettings = StorageSettings()
    clients: ClientSettings = ClientSettings()
    identity: IdentitySettings = IdentitySettings()
    limits: LimitSettings = LimitSettings()
    inspector: InspectorSettings = InspectorSettings()
    log: LogSettings = LogSettings()
    secret: SecretStr | None = None
    """Secret key of digests (STENO_SECRET or STENO_SECRET_FILE). PostgreSQL needs one; for SQLite, Steno makes one.

    At least 16 bytes, such as from `openssl rand -hex 32`; the same for every replica. Steno refuses a database that
    was made with [another secret](operations.md#another-secret): back up the secret with the database.
    """

    @model_validator(mode="before")
    @classmethod
    def _refuse_removed(cls, given: Any) -> Any:
        found = [
            f"{key} is no setting any more. {instead}"
            for key in _keys(given)
            for removed, instead in REMOVED.items()
            if fnmatchcase(key, removed)
        ]
        if found:
            raise ValueError("\n".join(found).rstrip("."))
        return given

    @field_validator("upstreams")
    @classmethod
    def _are_told_apart(cls, upstreams: dict[str, NamedUpstreamSettings]) -> dict[str, NamedUpstreamSettings]:
        globs: dict[tuple[str, FormatName], str] = {}
        for name, upstream in upstreams.items():
            if not _UPSTREAM.fullmatch(name) or name == DEFAULT_UPSTREAM:
                raise ValueError(
                    f"{name[:80]!r} cannot be the name of an upstream; allowed are 1 to 64 of a-z, 0-9, _ and -,"
                    f" and not {DEFAULT_UPSTREAM!r}, which is the one under `upstream`"
                )
            for glob in upstream.models:
                earlier = [globs.setdefault((glob, format_), name) for format_ in upstream.speaks]
                if name not in earlier:
                    first = min(earlier, key=list(upstreams).index)
                    raise ValueError(f"{name}.models has {glob!r}, which {first}.models has too: it would never count")
        return upstreams

    @model_validator(mode="after")
    def _a_proxy_says_who_calls(self) -> Self:
        if self.clients.header is not None and not self.server.trusted_proxies:
            raise ValueError("clients.header needs server.trusted_proxies: the proxies that may say who calls")
        return self

    @model_validator(mode="after")
    def _summarisers_are_there(self) -> Self:
        for key, name in (
            ("summary.upstream", self.summary.upstream),
            *(("summary.fallbacks", other.upstream) for other in self.summary.fallbacks),
        ):
            if name is not None and name not in self.all_upstreams:
                known = ", ".join(self.all_upstreams)
                raise ValueError(f"{key} names {name!r}, which is not an upstream; known: {known}")
        return self

    @property
    def all_upstreams(self) -> dict[str, UpstreamSettings]:
        """Upstreams by name: the default, then those in the settings, then those that Steno adds (`VENDORS_OWN`)."""
        there: dict[str, UpstreamSettings] = {DEFAULT_UPSTREAM: self.upstream, **self.upstreams}
        if self.upstream.host == OPENAI:
            meant = frozenset[str]().union(*(upstream.is_meant_for for upstream in there.values()))
            there |= {name: at for name, at in VENDORS_OWN.items() if name not in there and not at.speaks <= meant}
        return there

    @property
    def operator_pays(self) -> bool:
        return any(upstream.api_key_env for upstream in self.all_upstreams.values())

    def tariff_of(self, asked: str, answered: str = "") -> Tariff | None:
        """Return the price of the model that answered, or else of the requested model; None without a price. The first
        matching entry of `prices` counts. If this entry is `*`, it applies only to the requested model."""
        for name in filter(None, (answered, asked)):
            entry = next((entry for entry in self.prices or () if fits(name, entry.match)), None)
            if entry is not None and (name == asked or entry.match != "*"):
                return Tariff(name, "settings", ((0, entry.price),))
        return None

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        sources = [init_settings, env_settings, InitSettingsSource(settings_cls, init_kwargs=aliases())]
        if path := os.environ.get("STENO_CONFIG"):
            sources.append(InitSettingsSource(settings_cls, init_kwargs=read_file(Path(path))))
        return (*sources, _PresetSource(settings_cls))


# Sources of the settings

_OUTSIDE_NAMES = frozenset(
    {"STENO_CONFIG", "STENO_HOME", "STENO_SECRET_FILE", "STENO_ALLOW_UNAUTHENTICATED", "STENO_TEST_DATABASE_URL"}
)
_KUBERNETES = re.compile(r"STENO_(SERVICE_(HOST|PORT)|PORT_\d+_(TCP|UDP)|PORT=\w+://)")
"""Pattern of variables that Kubernetes sets in containers if there is a Service named steno."""
_NOT_JSON = re.compile(r'field "(\w+)" from source "EnvSettingsSource"')


def load(**flags: Any) -> Settings:
    """Read all sources. If a setting is invalid, raise `ConfigurationError` with its key and valid values."""
    _check_names()
    try:
        return Settings(**flags)
    except ValidationError as error:
        problems = "; ".join(map(_problem, error.errors()))
        raise ConfigurationError(f"Steno cannot use these settings: {problems}.") from error
    except SettingsError as error:
        named = _NOT_JSON.search(str(error))
        which = f"{environment_name(named[1])} must be JSON ({error.__cause__})" if named else str(error)
        raise ConfigurationError(f"Steno cannot use these settings: {which}.") from error


def environment_name(key: str) -> str:
    return f"STENO_{key.replace('.', '__').upper()}"


def _check_names() -> None:
    """Raise `ConfigurationError` for a `STENO_` variable that is no setting, because it may be mistyped."""
    sections = {environment_name(name) for name in Settings.model_fields}
    removed = {environment_name(key): instead for key, instead in REMOVED.items()}
    for name, value in os.environ.items():
        section = name.split("__")[0]
        if section in removed:
            raise ConfigurationError(f"{name} is no setting any more. {removed[section]}")
        is_known = name in _OUTSIDE_NAMES or section in sections
        if name.startswith("STENO_") and not is_known and not _KUBERNETES.match(f"{name}={value}"):
            known = ", ".join(sorted(sections))
            raise ConfigurationError(f"{name} is not a setting of Steno. Known: {known} (nested with __).")


def aliases() -> dict[str, Any]:
    """Return the settings from the variables DATABASE_URL, STENO_SECRET_FILE and STENO_ALLOW_UNAUTHENTICATED."""
    found: dict[str, Any] = {}
    if url := os.environ.get("DATABASE_URL"):
        found["storage"] = {"url": url}
    if path := os.environ.get("STENO_SECRET_FILE"):
        try:
            found["secret"] = Path(path).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"STENO_SECRET_FILE names {path}, which cannot be read: {error}.") from error
    if allowed := os.environ.get("STENO_ALLOW_UNAUTHENTICATED"):
        found["server"] = {"allow_unauthenticated": allowed}
    return found


def read_file(path: Path) -> dict[str, Any]:
    """Read a YAML file's sections, or raise `ConfigurationError`."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"The settings file {path} cannot be read: {error.strerror}.") from error
    except (yaml.YAMLError, ValueError) as error:  # ValueError: no UTF-8, an invalid date, or too large a number.
        # The error's own text has several lines and quotes the file, which may contain a password.
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
        line = f"line {mark.line + 1}: " if mark else ""
        why = f"{line}{problem or 'unreadable'}"
        raise ConfigurationError(f"The settings file {path} is not YAML in UTF-8: {why}.") from error
    if not isinstance(content, dict | None) or not all(isinstance(key, str) for key in content or ()):
        raise ConfigurationError(f"The settings file {path} must hold sections, such as `upstream:`.")
    return content or {}


class _PresetSource(PydanticBaseSettingsSource):
    """Source of the chosen preset's settings."""

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        raise NotImplementedError  # Only the base class's `__call__` calls this method.

    def __call__(self) -> dict[str, Any]:
        compaction = self.current_state.get("compaction")
        chosen = compaction.get("preset") if isinstance(compaction, Mapping) else None  # Not validated: may be a list.
        return dict(next((preset.settings for name, preset in PRESETS.items() if name == chosen), {}))


# Errors. Their texts have the key, the given value unless it may be secret, and the allowed values.

REMOVED: Mapping[str, str] = read_wordings(__package__, "removed.toml")
"""Advice for removed settings, by key; `*` matches any name."""


def _keys(given: Any, within: str = "") -> Iterator[str]:
    """Yield the dotted keys of all sections and settings. In a list, the key of an entry is its index."""
    entries = given.items() if isinstance(given, Mapping) else enumerate(given) if isinstance(given, list) else ()
    for name, value in entries:
        yield f"{within}{name}"
        yield from _keys(value, f"{within}{name}.")


_IN_YAML = {"tuple_type": "must be a list", "dict_type": "must be a mapping", "model_type": "must be a mapping"}
"""Error texts by the kind of error, in place of pydantic's texts about Python types."""


def _problem(error: ErrorDetails) -> str:
    """Describe one error: the key, the given value unless it may be secret, and the allowed values."""
    key = ".".join(map(str, error["loc"]))
    siblings, field = _place(error["loc"])
    given, kind = error["input"], error["type"]
    # A URL may contain a password before the @, and a key after the ?.
    is_secret = field is not None and SecretStr in (field.annotation, *get_args(field.annotation))
    open_to_all = field is not None and not is_secret and not set(str(given)) & {"@", "?", "#"}
    got = f" (got {given!r})" if open_to_all and isinstance(given, str | int | float) else ""
    if kind == "extra_forbidden":
        return f"{key} is not a setting; known there: {', '.join(siblings)}"
    if kind == "too_short" and is_secret:
        return f"{key} must have at least {error['ctx']['min_length']} characters"
    if kind == "value_error":
        return f"{key}: {error['ctx']['error']}{got}" if key else str(error["ctx"]["error"])
    return f"{key}: {_IN_YAML.get(kind, error['msg'])}{got}"


def _place(loc: tuple[int | str, ...]) -> tuple[Mapping[str, FieldInfo], FieldInfo | None]:
    """Return the fields at the level of `loc`, and the field at `loc` itself; None if there is no such field."""
    siblings: Mapping[str, FieldInfo] = Settings.model_fields
    field = None
    for name in (part for part in loc if isinstance(part, str)):
        if field is not None:
            kinds = (field.annotation, *get_args(field.annotation))
            sections = (kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel))
            siblings = next((section.model_fields for section in sections), {})
        field = siblings.get(name)
    return siblings, field
