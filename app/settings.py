"""Settings: flags, then the environment, then a YAML file, then these defaults.

`config/steno.yaml` lists every setting with its default; a test holds the two together.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Literal, get_args
from urllib.parse import urlsplit

import yaml
from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from app.core.budget import MOST_TOKENS
from app.core.prompts import SUMMARY_PROMPT
from app.wire.events import EventShape

Ratio = Annotated[float, Field(gt=0, le=1)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]

SESSION_HEADERS = (
    "x-session-id",
    "x-session-affinity",
    "x-openwebui-chat-id",
    "x-litellm-session-id",
    "helicone-session-id",
    "x-opencode-session",
    "x-claude-code-session-id",
    "session-id",
)


class ConfigurationError(Exception):
    """Settings that cannot be used: which, and what would be allowed."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ServerSettings(_Section):
    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = Field(8080, ge=0, le=65_535)
    """Port to listen on; 0 lets the system choose."""
    allow_unauthenticated: bool = False
    """Serve requests without credentials from other machines too, as the tenant `anonymous`."""
    drain_seconds: Seconds = 25.0
    """How long a stopping server waits for summaries that are being made."""


class UpstreamSettings(_Section):
    base_url: str = "https://api.openai.com/v1"
    """The provider; its path takes the place of the client's `/v1`."""
    connect_seconds: Seconds = 5.0
    """Time to make a connection."""
    first_byte_seconds: Seconds = 600.0
    """Time until the provider's status arrives."""
    between_bytes_seconds: Seconds = 120.0
    """Time between two pieces of an answer."""
    discover_windows: bool = True
    """Ask the provider for its models and their windows, at the start and every hour."""
    alternating_roles: bool = False
    """The provider refuses two user messages in a row: merge summaries into the next user message."""

    @field_validator("base_url")
    @classmethod
    def _is_http(cls, value: str) -> str:
        parts = urlsplit(value)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.query:
            raise ValueError("an http(s) URL without credentials or query is needed, such as https://api.openai.com/v1")
        return value.rstrip("/")


class ModelSettings(_Section):
    match: str
    """Model name, or a glob such as `gpt-4o*`."""
    context_window: int | None = Field(None, ge=1, le=MOST_TOKENS)
    """Tokens the model accepts, prompt and completion together."""
    max_input_tokens: int | None = Field(None, ge=1, le=MOST_TOKENS)
    """Tokens the prompt may have, where that is less than the window."""
    max_output_tokens: int | None = Field(None, ge=1, le=MOST_TOKENS)
    """Tokens an answer may have."""
    base_model: str | None = Field(None, min_length=1)
    """Model it is counted and sized as, such as gpt-4o for an Azure deployment called chat-prod."""

    @model_validator(mode="after")
    def _input_fits_the_window(self) -> ModelSettings:
        if self.context_window is None and self.base_model is None:
            raise ValueError("context_window is needed, or base_model, the model whose window it has")
        if self.max_input_tokens and self.context_window and self.max_input_tokens > self.context_window:
            raise ValueError(
                f"max_input_tokens ({self.max_input_tokens}) is more than context_window ({self.context_window}),"
                " which counts prompt and completion together"
            )
        return self

    def fits(self, model: str) -> bool:
        """Whether the entry is about that model, named with or without the part before its last slash."""
        return fnmatchcase(model, self.match) or fnmatchcase(model.rsplit("/", 1)[-1], self.match)


class TriggerSettings(_Section):
    token_ratio: Ratio = 0.70
    """A compaction is due when the estimate exceeds this share of the limit."""


class TailSettings(_Section):
    turns: int = Field(4, ge=1, le=100)
    """How many of the latest turns stay verbatim; fewer where they do not fit."""
    max_ratio: Ratio = 0.30
    """Share of the limit that the verbatim tail may take."""


class MaskSettings(_Section):
    enabled: bool = True
    """Mask tool results that the assistant has answered, before anything is summarised."""
    characters: int = Field(300, ge=50, le=100_000)
    """What is left of a masked text: 70 % of it head, 30 % tail."""
    allow: tuple[str, ...] = ()
    """Tools whose results are masked, as globs such as `search_*`; all if empty."""
    deny: tuple[str, ...] = ()
    """Tools whose results are never masked; stronger than `allow`."""


class CompactionSettings(_Section):
    enabled: bool = True
    """Compact at all."""
    mask: MaskSettings = MaskSettings()
    trigger: TriggerSettings = TriggerSettings()
    floor_tokens: int = Field(4_096, ge=0)
    """No compaction below this many tokens, or 0.85 of the limit where that is less."""
    target_ratio: Ratio = 0.50
    """A compaction brings the prompt to at most this share of the limit."""
    tail: TailSettings = TailSettings()
    wait_seconds: Seconds = 60.0
    """How long a request waits for a compaction before it goes on without."""
    overflow_retries: int = Field(1, ge=0, le=2)
    """How often a request that the provider refused for its size is made smaller and sent again."""

    @model_validator(mode="after")
    def _target_is_below_trigger(self) -> CompactionSettings:
        if self.target_ratio >= self.trigger.token_ratio:
            raise ValueError(
                f"target_ratio ({self.target_ratio}) must be below trigger.token_ratio ({self.trigger.token_ratio}),"
                " or every turn would be compacted"
            )
        return self


class SummarySettings(_Section):
    model: str | None = None
    """Model that writes the summaries; null means the conversation's own."""
    max_tokens: int = Field(2_048, ge=256)
    """Largest summary chunk; small windows use less (0.06 of the limit, at least 256)."""
    timeout_seconds: Seconds = 120.0
    """Time for one summary call."""
    prompt: str = SUMMARY_PROMPT
    """What the summariser is told."""
    reasoning_allowance: int = Field(8_192, ge=0)
    """Tokens a reasoning model may think before it writes a summary."""


class CalibrationSettings(_Section):
    enabled: bool = True
    """Learn from what providers report how much they charge for each token we estimate."""
    ask_usage: bool = True
    """Ask for the usage of streams whose messages are replaced anyway; what was not asked for is not passed on."""


class EventSettings(_Section):
    stream: EventShape = "chunk"
    """Shape of compaction events on streams: chunk, named, comment or off."""
    keep_alive_seconds: float = Field(10.0, ge=1, le=60)
    """Time between keep-alives while a summary is made."""
    body: bool = True
    """Add `context_status` and `context` to answers; the headers are always there."""


class StorageSettings(_Section):
    url: SecretStr = SecretStr("sqlite:///steno.db")
    """PostgreSQL or SQLite URL, or `memory`; plain DATABASE_URL is honoured."""
    timeout_seconds: Seconds = 0.25
    """Bound of one database call on a request's path."""
    statement_cache: bool = True
    """Turn off behind PgBouncer in transaction mode."""


class IdentitySettings(_Section):
    ignore: tuple[str, ...] = ()
    """Regular expressions of volatile text, such as an injected date, left out of digests."""
    session_headers: tuple[str, ...] = SESSION_HEADERS
    """Request headers that name the conversation, first found."""
    use_prompt_cache_key: bool = False
    """Take the body's `prompt_cache_key` as the conversation id."""
    use_user: bool = False
    """Take the body's `user` as the conversation id."""

    @field_validator("session_headers")
    @classmethod
    def _in_lower_case(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(name.lower() for name in names)  # as they are on the wire's side of the server

    @field_validator("ignore")
    @classmethod
    def _compiles(cls, patterns: tuple[str, ...]) -> tuple[str, ...]:
        for pattern in patterns:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"{pattern!r} is no regular expression: {error}") from error
        return patterns


class TokenizerSettings(_Section):
    directory: Path | None = None
    """Folder with the tokenizer tables; otherwise the usual places are searched."""
    required: bool = False
    """Refuse to start without the tables instead of estimating by bytes."""


class LimitSettings(_Section):
    body_bytes: int = Field(20_000_000, ge=1_000)
    """Largest chat request body."""
    in_flight_bytes: int = Field(400_000_000, ge=1_000)
    """Largest sum of the chat request bodies that are being served."""
    header_count: int = Field(100, ge=10)
    """Most request headers."""
    header_bytes: int = Field(32_768, ge=1_024)
    """Largest sum of the request headers."""
    receive_seconds: Seconds = 60.0
    """Time for a request's headers to arrive, and for a chat request's body."""
    write_stall_seconds: Seconds = 60.0
    """A client that takes nothing for this long is given up."""


class LogSettings(_Section):
    level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe level that is logged."""
    format: Literal["json", "text"] = "json"
    """Shape of log lines on standard output."""


class Settings(BaseSettings):
    """All settings. Raises through `load` only."""

    model_config = SettingsConfigDict(
        env_prefix="STENO_",
        env_nested_delimiter="__",
        extra="forbid",
        frozen=True,
        nested_model_default_partial_update=True,
    )

    server: ServerSettings = ServerSettings()
    upstream: UpstreamSettings = UpstreamSettings()
    models: tuple[ModelSettings, ...] = ()
    compaction: CompactionSettings = CompactionSettings()
    summary: SummarySettings = SummarySettings()
    calibration: CalibrationSettings = CalibrationSettings()
    events: EventSettings = EventSettings()
    storage: StorageSettings = StorageSettings()
    identity: IdentitySettings = IdentitySettings()
    tokenizer: TokenizerSettings = TokenizerSettings()
    limits: LimitSettings = LimitSettings()
    log: LogSettings = LogSettings()
    secret: SecretStr | None = None
    """Key of all digests (STENO_SECRET or STENO_SECRET_FILE); made beside a SQLite file, required with PostgreSQL."""

    def of_model(self, model: str) -> ModelSettings | None:
        """The entry of `models` that decides about a model: the first that fits."""
        return next((entry for entry in self.models if entry.fits(model)), None)

    def base_model(self, model: str) -> str:
        """The model that it is counted and sized as."""
        entry = self.of_model(model)
        return (entry and entry.base_model) or model

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        sources = [init_settings, env_settings, InitSettingsSource(settings_cls, init_kwargs=_aliases())]
        if path := os.environ.get("STENO_CONFIG"):
            sources.append(InitSettingsSource(settings_cls, init_kwargs=read_file(Path(path))))
        return tuple(sources)


_OUTSIDE_NAMES = frozenset(
    {"STENO_CONFIG", "STENO_SECRET_FILE", "STENO_ALLOW_UNAUTHENTICATED", "STENO_TEST_DATABASE_URL"}
)
_KUBERNETES = re.compile(r"STENO_(SERVICE_(HOST|PORT)|PORT_\d+_(TCP|UDP)|PORT=\w+://)")
"""Variables that Kubernetes puts into every container beside a Service called steno, with their values."""
_NOT_JSON = re.compile(r'field "(\w+)" from source "EnvSettingsSource"')


def load(**flags: Any) -> Settings:
    """The settings in force. Raises `ConfigurationError` with a message that names the key and what is allowed."""
    _check_names()
    try:
        return Settings(**flags)
    except ValidationError as error:
        problems = "; ".join(map(_problem, error.errors()))
        raise ConfigurationError(f"Settings that cannot be used: {problems}.") from error
    except SettingsError as error:
        named = _NOT_JSON.search(str(error))
        which = f"{environment_name(named[1])} must be JSON ({error.__cause__})" if named else str(error)
        raise ConfigurationError(f"Settings that cannot be used: {which}.") from error


def read_file(path: Path) -> dict[str, Any]:
    """A YAML file's sections. Raises `ConfigurationError`."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"The settings file {path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"The settings file {path} is not UTF-8.") from error
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a date or a number beyond what Python takes.
        # The error's own text has several lines and quotes the file, which may hold a password.
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
        line = f"line {mark.line + 1}: " if mark else ""
        raise ConfigurationError(f"The settings file {path} is not YAML: {line}{problem or 'unreadable'}.") from error
    if not isinstance(content, dict | None) or not all(isinstance(key, str) for key in content or ()):
        raise ConfigurationError(f"The settings file {path} must hold sections, such as `upstream:`.")
    return content or {}


def every_setting(section: type[BaseModel] = Settings, within: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Each setting with its dotted key; a list is one setting."""
    for name, field in section.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from every_setting(field.annotation, f"{within}{name}.")
        else:
            yield within + name, field


def environment_name(key: str) -> str:
    """The variable that sets the setting of that dotted key."""
    return f"STENO_{key.replace('.', '__').upper()}"


def _problem(error: ErrorDetails) -> str:
    """One line: the key, what was given unless that may be secret, and what is allowed."""
    key = ".".join(map(str, error["loc"]))
    siblings, field = _place(error["loc"])
    given, kind = error["input"], error["type"]
    open_to_all = field is not None and field.annotation is not SecretStr and "@" not in str(given)
    got = f" (got {given!r})" if open_to_all and isinstance(given, str | int | float) else ""
    if kind == "extra_forbidden":
        return f"{key} is no setting; known there: {', '.join(siblings)}"
    if kind == "value_error":
        return f"{key}: {error['ctx']['error']}{got}"
    return f"{key}: {error['msg']}{_range(field)}{got}"


def _place(loc: tuple[int | str, ...]) -> tuple[Mapping[str, FieldInfo], FieldInfo | None]:
    """The field at that place and its siblings; no field where there is no such setting."""
    siblings: Mapping[str, FieldInfo] = Settings.model_fields
    field = None
    for name in (part for part in loc if isinstance(part, str)):
        if field is not None:
            kinds = (field.annotation, *get_args(field.annotation))
            sections = (kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel))
            siblings = next((section.model_fields for section in sections), {})
        field = siblings.get(name)
    return siblings, field


def _range(field: FieldInfo | None) -> str:
    """What numbers a field takes, where it has bounds."""
    words = {"gt": "more than", "ge": "at least", "lt": "less than", "le": "at most"}
    bounds = [
        f"{word} {bound}"
        for constraint in (field.metadata if field else ())
        for name, word in words.items()
        if (bound := getattr(constraint, name, None)) is not None
    ]
    return f"; allowed is {' and '.join(bounds)}" if bounds else ""


def _aliases() -> dict[str, Any]:
    """Variables with names of their own: DATABASE_URL, STENO_SECRET_FILE, STENO_ALLOW_UNAUTHENTICATED."""
    aliases: dict[str, Any] = {}
    if url := os.environ.get("DATABASE_URL"):
        aliases["storage"] = {"url": url}
    if path := os.environ.get("STENO_SECRET_FILE"):
        try:
            aliases["secret"] = Path(path).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"STENO_SECRET_FILE names {path}, which cannot be read: {error}.") from error
    if allowed := os.environ.get("STENO_ALLOW_UNAUTHENTICATED"):
        aliases["server"] = {"allow_unauthenticated": allowed}
    return aliases


def _check_names() -> None:
    """A mistyped variable would be ignored in silence."""
    known = {environment_name(name) for name in Settings.model_fields}
    for name, value in os.environ.items():
        if not name.startswith("STENO_") or name in _OUTSIDE_NAMES or name.split("__")[0] in known:
            continue
        if _KUBERNETES.match(f"{name}={value}"):
            continue
        raise ConfigurationError(f"{name} is no setting of Steno. Known: {', '.join(sorted(known))} (nested with __).")
    path = os.environ.get("STENO_CONFIG")
    if path and not Path(path).is_file():
        raise ConfigurationError(f"STENO_CONFIG names {path}, which is no file.")
