"""Settings: flags, then the environment, then a YAML file, then these defaults.

`config/steno.yaml` lists every setting with its default; a test holds the two together.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args
from urllib.parse import urlsplit

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    IPvAnyNetwork,
    JsonValue,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from app.core.limits.budget import MOST_TOKENS
from app.core.stages.policy import Strategy
from app.core.summary.prompts import SUMMARY_PROMPT
from app.core.tokens.usage import Price
from app.settings.presets import PRESETS, PresetName
from app.wire.format import EventShape
from app.wire.formats import FORMATS

SAID_BY_STENO = frozenset[str]().union(*(format_.summaries.own_members for format_ in FORMATS))
"""Members of a summary call, in some format, that are not the operator's to set."""

Ratio = Annotated[float, Field(gt=0, le=1)]
Part = Annotated[float, Field(gt=0, lt=1)]
"""A share that leaves something."""
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
SWITCHES = dict.fromkeys(("1", "true", "yes", "on"), True) | dict.fromkeys(("0", "false", "no", "off"), False)
OFF = BeforeValidator(lambda given: "off" if given is False else given)
"""YAML reads a bare `off` as false."""
Preset = Annotated[PresetName, OFF]
Rate = Annotated[float, Field(ge=0, le=1_000_000)]

DEFAULT_UPSTREAM = "default"
"""Name of the one under `upstream`."""

DATABASE = Path(".run/steno.db")
"""Where the database is by default, in the folder that Steno is started in."""
EARLIER_DATABASE = Path("steno.db")
"""Where it was in 0.1.0, unless `make run` had started it."""

SESSION_HEADERS = (
    "x-session-id",
    "x-session-affinity",
    "x-openwebui-chat-id",
    "x-litellm-session-id",
    "helicone-session-id",
    "x-opencode-session",
    "x-claude-code-session-id",
    "session-id",
    "session_id",
)


class ConfigurationError(Exception):
    """Settings that cannot be used: which, and what would be allowed."""


_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]{0,127}")
_KEY = re.compile(r"[!-~]+")
_HOST = re.compile(r"\.?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
_ORIGIN = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[A-Za-z0-9._:\[\]-]*")
_UPSTREAM = re.compile(r"[a-z0-9_-]{1,64}")


def fits(model: str, glob: str) -> bool:
    """Whether a glob is about that model, named with or without the part before its last slash."""
    return fnmatchcase(model, glob) or fnmatchcase(model.rsplit("/", 1)[-1], glob)


def _is_address(url: str) -> bool:
    """Of a server and a path there: what else a URL may hold is secret more often than not, and this one is shown."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return False
    return (
        parts.scheme in ("http", "https")
        and bool(parts.hostname)
        and port != 0
        and not set(parts.netloc) & {"@", "\\"}
        and not set(url) & {"?", "#"}
        and _KEY.fullmatch(url) is not None
    )


def leads_to(url: str, host: str, port: int) -> bool:
    """Whether a URL is that of a server on this machine that listens there, as far as the two alone show it."""
    parts = urlsplit(url)
    if parts.scheme != "http" or (parts.port or 80) != port:  # Steno itself speaks no TLS.
        return False
    asked = (parts.hostname or "").lower()
    return asked == host.lower() or any(_reaches(to, at) for to in _addresses(asked) for at in _addresses(host.lower()))


def _addresses(host: str) -> list[IPv4Address | IPv6Address]:
    """What is known without asking anybody; a name may be anything."""
    if host == "localhost":
        return [IPv4Address("127.0.0.1"), IPv6Address("::1")]
    try:
        return [ip_address(host)]
    except ValueError:
        return []


def _reaches(to: IPv4Address | IPv6Address, at: IPv4Address | IPv6Address) -> bool:
    """0.0.0.0 and :: are every address to a listener, and the machine itself to a caller."""
    if to.version != at.version:
        return False
    return to == at or (to.is_unspecified and at.is_loopback) or (at.is_unspecified and to.is_loopback)


def _switch(given: Any) -> Any:
    """A variable of the environment is text."""
    return SWITCHES.get(given.lower(), given) if isinstance(given, str) else given


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ServerSettings(_Section):
    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = Field(8080, ge=0, le=65_535)
    """Port to listen on; 0 lets the system choose."""
    allow_unauthenticated: Annotated[Literal["loopback", True, False], BeforeValidator(_switch)] = "loopback"
    """Who is served without credentials, as the tenant `anonymous`: this machine (loopback), everyone, or nobody."""
    allowed_hosts: tuple[str, ...] = ()
    """Names that Steno answers to beside local ones and addresses; `.example.com` for all below it, `*` for any."""
    allowed_origins: tuple[str, ...] = ()
    """Pages in browsers that may call Steno beside local ones, such as `https://chat.example.com`; `*` for all."""
    trusted_proxies: tuple[IPvAnyNetwork, ...] = ()
    """Addresses or networks of proxies whose `X-Forwarded-For` and `Forwarded` tell where a request came from."""
    drain_seconds: Seconds = 25.0
    """How long a stopping server waits for open answers and for summaries that are being made."""

    @field_validator("allowed_hosts")
    @classmethod
    def _are_names(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if name != "*" and not _HOST.fullmatch(name):
                raise ValueError(
                    f"{name!r:.100} is no host name; allowed are names without scheme and port, such as"
                    " steno.example.com, .example.com for all below it, and * for any"
                )
        return tuple(name.lower() for name in names)

    @field_validator("allowed_origins")
    @classmethod
    def _are_origins(cls, origins: tuple[str, ...]) -> tuple[str, ...]:
        for origin in origins:
            if origin != "*" and not _ORIGIN.fullmatch(origin):
                raise ValueError(
                    f"{origin!r:.100} is no origin; allowed are scheme, host and port without a path, such as"
                    " https://chat.example.com, and * for all"
                )
        return tuple(origin.lower() for origin in origins)


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
    api_key_env: str | None = None
    """Environment variable with the provider's key; it goes there in place of whatever the client sends as its own."""

    @property
    def api_key(self) -> SecretStr | None:
        """The key in that variable."""
        return SecretStr(os.environ[self.api_key_env].strip()) if self.api_key_env else None

    @field_validator("base_url")
    @classmethod
    def _is_http(cls, value: str) -> str:
        if not _is_address(value):
            # Without a word of it: there may be a password in what looks like a port.
            raise ValueError(
                "an http(s) URL without credentials, query or fragment is needed, such as https://api.openai.com/v1;"
                " a key belongs into the variable that api_key_env names"
            )
        value = value.rstrip("/")
        if (base := value.removesuffix("/chat/completions")) != value:
            raise ValueError(f"the address of the whole API is needed, which is {base}")
        return value

    @model_validator(mode="after")
    def _has_its_key(self) -> Self:
        # Not a field's own validator: an error there quotes the value, which may be the key itself.
        name = self.api_key_env
        if name is None:
            return self
        if not _VARIABLE.fullmatch(name):
            raise ValueError(
                "api_key_env must be the name of an environment variable, in capitals (A-Z, 0-9 and _),"
                " such as PROVIDER_API_KEY, and never the key itself"
            )
        key = os.environ.get(name, "").strip()
        if not key:
            raise ValueError(f"api_key_env names {name}, an environment variable that is not set; put the key there")
        if not _KEY.fullmatch(key):
            raise ValueError(f"api_key_env names {name}, whose value no header may hold: visible ASCII without spaces")
        return self


class ConditionSettings(_Section):
    token_ratio: Ratio | None = None
    """The estimate exceeds this share of the limit."""
    since_checkpoint_ratio: Ratio | None = None
    """The messages after the last summary, the current one too, exceed this share."""
    of: Literal["limit", "window"] = "limit"
    """What ratios are shares of: the limit, which is the window less the output, or the window."""
    tokens: int | None = Field(None, ge=1, le=MOST_TOKENS)
    """The estimate exceeds so many tokens."""
    remaining_tokens: int | None = Field(None, ge=0, le=MOST_TOKENS)
    """At most so many tokens of the window are left."""
    overflow: bool = False
    """The estimate exceeds the limit."""
    turns: int | None = Field(None, ge=0, le=100_000)
    """More than so many whole turns before the current one are not summarised."""
    messages: int | None = Field(None, ge=1, le=100_000)
    """At least so many messages before the verbatim tail are not summarised."""

    @property
    def conditions(self) -> set[str]:
        """Those that were named."""
        return {name for name in CONDITIONS if (value := getattr(self, name)) is not None and value is not False}


CONDITIONS = frozenset(ConditionSettings.model_fields) - {"of"}


class AlternativeSettings(ConditionSettings):
    @model_validator(mode="after")
    def _names_a_condition(self) -> Self:
        if not self.conditions:
            raise ValueError(f"a condition is needed: one of {', '.join(sorted(CONDITIONS))}")
        return self


def _named(trigger: Mapping[str, Any]) -> bool:
    """Whether it names a condition; what is null or false does not."""
    given = (trigger.get(name) for name in CONDITIONS)
    return bool(trigger.get("any")) or any(value is not None and value is not False for value in given)


class TriggerSettings(ConditionSettings):
    token_ratio: Ratio | None = 0.70
    """A compaction is due when the estimate exceeds this share of the limit; of no account where others are named."""
    any: tuple[AlternativeSettings, ...] = Field((), max_length=10)
    """Alternatives, in place of the conditions above: each a set of them that all must hold, one is enough."""

    @model_validator(mode="before")
    @classmethod
    def _default_gives_way(cls, given: Any) -> Any:
        """Conditions are joined by "and": the default would weaken every other one."""
        if isinstance(given, Mapping) and "token_ratio" not in given and _named(given):
            return {**given, "token_ratio": None}
        return given

    @model_validator(mode="after")
    def _is_one_or_the_other(self) -> Self:
        if self.any and self.conditions:
            named = ", ".join(sorted(self.conditions))
            raise ValueError(f"any stands in place of other conditions, but {named} is there too; put it into any")
        if not self.any and not self.conditions:
            raise ValueError(f"a condition is needed: one of {', '.join(sorted(CONDITIONS))}, or any")
        return self

    @property
    def alternatives(self) -> Sequence[ConditionSettings]:
        return self.any or (self,)


class TailSettings(_Section):
    turns: int = Field(3, ge=0, le=100)
    """How many whole turns before the current one stay verbatim, beside that one; fewer where they do not fit."""
    fill_ratio: float = Field(0.15, ge=0, le=1)
    """More turns stay while all of them take at most this share of the limit; 0 for none."""
    fill_tokens: int = Field(16_384, ge=0, le=MOST_TOKENS)
    """And at most so many tokens."""
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
    pressure: Ratio | None = None
    """Share of the limit, taken by messages alone, from which on all is masked; null: as the trigger says."""
    minimum_gain: float = Field(0.10, ge=0, le=1)
    """Share of the prompt that a new mask must free: each one changes bytes that the provider may have cached."""


class WindowSettings(_Section):
    turns: int | None = Field(None, ge=0, le=100_000)
    """With strategy window: how many whole turns before the current one are sent, beside that one."""
    tokens: int | None = Field(None, ge=1, le=MOST_TOKENS)
    """With strategy window: the latest messages are sent that fit into so many tokens, instructions included."""


class SessionPruningSettings(_Section):
    mode: Annotated[Literal["off", "adaptive", "aggressive"], OFF] = "off"
    """Whether old tool results are trimmed and cleared as the window fills (adaptive), or all cleared (aggressive)."""
    keep_last_assistants: int = Field(3, ge=0, le=1_000)
    """Results after the so-many-th last message of the assistant are left alone; with fewer messages all are."""
    soft_trim_ratio: Ratio = 0.3
    """Fill of the window, in characters / 4, from which on large results are trimmed."""
    soft_trim_max_chars: int = Field(4_000, ge=0)
    """Results of more characters are large."""
    soft_trim_head_chars: int = Field(1_500, ge=0)
    """Characters that stay of a trimmed result's beginning."""
    soft_trim_tail_chars: int = Field(1_500, ge=0)
    """Characters that stay of its end."""
    hard_clear: bool = True
    """Clear results where trimming is not enough."""
    hard_clear_ratio: Ratio = 0.5
    """Fill of the window from which on results are cleared, the oldest first."""
    hard_clear_placeholder: str = Field("[Old tool result content cleared]", min_length=1, max_length=1_000)
    """What stands in place of a cleared result."""
    min_prunable_tool_chars: int = Field(50_000, ge=0)
    """Characters that all results together must have before any is cleared."""
    allow: tuple[str, ...] = ()
    """Tools whose results are pruned, as globs; all if empty."""
    deny: tuple[str, ...] = ()
    """Tools whose results are never pruned; stronger than `allow`."""


class PositionPruningSettings(_Section):
    enabled: bool = False
    """Trim and clear large tool results by their age in the conversation, whatever the window's fill."""
    keep_last_assistants: int = Field(3, ge=0, le=1_000)
    """The last turns of the assistant that are left alone: runs of its messages and their results."""
    soft_trim_ratio: Ratio = 0.3
    """Age, from 0 (newest) to 1 (oldest), from which on a large result is trimmed."""
    hard_clear_ratio: Ratio = 0.5
    """Age from which on it is cleared."""
    min_prunable_tool_chars: int = Field(50_000, ge=0)
    """Results of at least so many characters are large."""


class PruneSettings(_Section):
    enabled: bool = True
    """Leave out the oldest messages where nothing else makes the prompt fit; the answer says which."""
    stub: bool = True
    """Put a note where messages are left out, that says how many and whose."""


class CompactionSettings(_Section):
    enabled: bool = True
    """Compact at all."""
    preset: Preset = "default"
    """Bundle of settings to begin with; what is set beside it wins."""
    strategy: Strategy = "additive"
    """How summaries are made: additive, full, checkpoint or rolling; window or none for none at all."""
    mask: MaskSettings = MaskSettings()
    trigger: TriggerSettings = TriggerSettings()
    floor_tokens: int = Field(4_096, ge=0)
    """No compaction below this many tokens, or 0.85 of the limit where that is less."""
    target_ratio: Ratio = 0.50
    """A compaction brings the prompt to at most this share of the limit."""
    tail: TailSettings = TailSettings()
    window: WindowSettings = WindowSettings()
    session_pruning: SessionPruningSettings = SessionPruningSettings()
    position_pruning: PositionPruningSettings = PositionPruningSettings()
    fade: bool = False
    """Shorten tool results, the oldest most, as messages take 0.80, 0.85, 0.90 and 0.99 of the limit."""
    fit: bool = True
    """Cut single messages that are too large for the limit, head and tail."""
    prune: PruneSettings = PruneSettings()
    emergency: bool = True
    """Truncate every tool result where even pruning does not make the prompt fit."""
    pinned_text: str = Field("", max_length=20_000)
    """Text that stands after the pinned messages wherever summaries stand for messages."""
    reserve_ratio: Part | None = None
    """Share of the window that the prompt leaves free, also where the client asks for less; null: as it asks."""
    default_window: int = Field(128_000, ge=1, le=MOST_TOKENS)
    """Context window of a model that nobody knows."""
    wait_seconds: Seconds = 60.0
    """How long a request waits for a compaction before it goes on without."""
    overflow_retries: int = Field(1, ge=0, le=2)
    """How often a request that the provider refused for its size is made smaller and sent again."""

    @model_validator(mode="after")
    def _target_is_below_trigger(self) -> Self:
        ratios = [entry.token_ratio for entry in self.trigger.alternatives if entry.token_ratio is not None]
        if ratios and self.target_ratio >= min(ratios):
            raise ValueError(
                f"target_ratio ({self.target_ratio}) must be below trigger.token_ratio ({min(ratios)}),"
                " or every turn would be compacted"
            )
        return self

    @model_validator(mode="after")
    def _window_has_its_strategy(self) -> Self:
        given = [f"window.{name} ({value})" for name, value in self.window if value is not None]
        if self.strategy == "window" and not given:
            raise ValueError("strategy window needs window.turns or window.tokens: how much is kept")
        if self.strategy != "window" and given:
            raise ValueError(f"{' and '.join(given)} is only for strategy window, but strategy is {self.strategy}")
        return self


class FallbackSettings(_Section):
    model: str | None = Field(None, min_length=1)
    """Model that is asked; null means the conversation's own."""
    upstream: str | None = None
    """Upstream that is asked; null means the conversation's own."""

    @model_validator(mode="after")
    def _is_another(self) -> Self:
        if self.model is None and self.upstream is None:
            raise ValueError("a model is needed, or an upstream, or both")
        return self


class PromptSettings(_Section):
    prompt: str = Field(min_length=1)
    """What the summariser is told in place of `summary.prompt`."""
    update_prompt: str | None = Field(None, min_length=1)
    """What it is told where there is a summary to go on from; null means the same."""
    model: str | None = Field(None, min_length=1)
    """For conversations with this model, a name or a glob; null means all."""
    tenant: str | None = Field(None, min_length=1)
    """For this tenant, by the id that GET /context/tenant shows; null means all."""
    pinned_text: str | None = Field(None, max_length=20_000)
    """In place of `compaction.pinned_text`; null means the same."""

    def is_for(self, model: str, tenant: str) -> bool:
        return (self.model is None or fits(model, self.model)) and self.tenant in (None, tenant)


class SummarySettings(_Section):
    model: str | None = None
    """Model that writes the summaries; null means the conversation's own."""
    upstream: str | None = None
    """Upstream that is asked for them; null means the conversation's own."""
    fallbacks: tuple[FallbackSettings, ...] = Field((), max_length=5)
    """Other models, or the same at other upstreams, that are asked in turn where the first gives no answer."""
    max_tokens: int = Field(2_048, ge=256)
    """Largest summary chunk; small windows use less (0.06 of the limit, at least 256)."""
    source_tokens: int | None = Field(16_384, ge=1_024, le=MOST_TOKENS)
    """One summary stands for at most so many tokens: a larger range becomes several, made side by side; null: any."""
    timeout_seconds: Seconds = 120.0
    """Time for one summary call."""
    style: Literal["transcript", "prefix"] = "transcript"
    """What the summariser reads: quoted text, or the conversation itself, which its provider may have in its cache."""
    prompt: str = SUMMARY_PROMPT
    """What the summariser is told."""
    update_prompt: str | None = None
    """What it is told where there is a summary to go on from (full, checkpoint, rolling); null means the same."""
    prompts: tuple[PromptSettings, ...] = ()
    """Prompts for certain models or tenants; the first that fits counts."""
    failed_results: int = Field(0, ge=0, le=100)
    """Latest failed tool calls that are appended to a summary as they are, 240 characters each."""
    reasoning_allowance: int = Field(8_192, ge=0)
    """Tokens a reasoning model may think before it writes a summary."""
    parameters: dict[str, JsonValue] = Field({}, max_length=20)
    """Further members of each summary call, such as `temperature`; what a provider refuses it is asked without."""

    @field_validator("parameters")
    @classmethod
    def _are_not_stenos_own(cls, given: dict[str, JsonValue]) -> dict[str, JsonValue]:
        if taken := sorted(given.keys() & SAID_BY_STENO):
            raise ValueError(
                f"{', '.join(taken)} cannot be set there: Steno decides it (summary.model, summary.max_tokens)"
            )
        return given


class NamedUpstreamSettings(UpstreamSettings):
    models: tuple[str, ...] = ()
    """Models that are sent there, as names or globs such as `llama-*`; without any it is chosen by base URL alone."""
    preset: Preset | None = None
    """Preset of requests that go there; null means compaction.preset."""
    trigger: TriggerSettings | None = None
    """Trigger of requests that go there; null means compaction.trigger."""

    @model_validator(mode="before")
    @classmethod
    def _has_an_address(cls, given: Any) -> Any:
        if isinstance(given, Mapping) and "base_url" not in given:
            raise ValueError("base_url is needed, the provider's address, such as https://api.openai.com/v1")
        return given

    def fits(self, model: str) -> bool:
        return any(fits(model, glob) for glob in self.models)


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
    preset: Preset | None = None
    """Preset of requests for the model; null means that of the upstream."""
    trigger: TriggerSettings | None = None
    """Trigger of requests for the model; null means that of the upstream."""

    @model_validator(mode="after")
    def _says_something(self) -> ModelSettings:
        if not (self.context_window or self.base_model or self.preset or self.trigger):
            raise ValueError(
                "context_window is needed, or base_model, the model whose window it has, or a preset or a trigger"
            )
        return self

    @model_validator(mode="after")
    def _input_fits_the_window(self) -> ModelSettings:
        if self.max_input_tokens and self.context_window and self.max_input_tokens > self.context_window:
            raise ValueError(
                f"max_input_tokens ({self.max_input_tokens}) is more than context_window ({self.context_window}),"
                " which counts prompt and completion together"
            )
        return self

    def fits(self, model: str) -> bool:
        return fits(model, self.match)


class PriceSettings(_Section):
    match: str
    """Model name, or a glob such as `gpt-4o*`."""
    prompt: Rate
    """Price of a million prompt tokens."""
    completion: Rate
    """Price of a million completion tokens."""
    cached: Rate | None = None
    """Price of a million prompt tokens from the provider's cache; without it they cost what others do."""

    @property
    def price(self) -> Price:
        return Price(self.prompt, self.completion, self.cached)

    def fits(self, model: str) -> bool:
        return fits(model, self.match)


class CalibrationSettings(_Section):
    enabled: bool = True
    """Learn from what providers report how much they charge for each token we estimate."""
    ask_usage: bool = True
    """Ask for the usage of streams whose messages are replaced, if they tell none unasked; it is not passed on."""


class EventSettings(_Section):
    stream: EventShape = "chunk"
    """Shape of compaction events on streams: chunk, comment or off; named crashes the usual loop of most SDKs."""
    keep_alive_seconds: float = Field(10.0, ge=1, le=60)
    """Time between keep-alives while a summary is made."""
    body: bool = True
    """Add `context_status` and `context` to answers; the headers are always there."""


class StorageSettings(_Section):
    url: SecretStr = SecretStr(f"sqlite:///{DATABASE}")
    """PostgreSQL or SQLite URL, or `memory`; plain DATABASE_URL is honoured."""
    timeout_seconds: Seconds = 0.25
    """Bound of one database call on a request's path."""
    statement_cache: bool = True
    """Turn off behind PgBouncer in transaction mode."""
    listen_notify: Annotated[Literal["auto", "off"], OFF] = "auto"
    """How requests that wait for a summary hear of its end on PostgreSQL: auto by NOTIFY, off by asking for it."""
    retention_days: int | None = Field(30, ge=1, le=36_500)
    """What nobody used for so many days is deleted; null keeps it for ever."""


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
    upload_bytes: int = Field(1_000_000_000, ge=1_000)
    """Largest body of any other request; it is passed on as it comes."""
    connections: int = Field(1_000, ge=1)
    """Most open connections of clients."""
    values: int = Field(200_000, ge=1_000)
    """Most values in a chat request body that is read; one with more is forwarded as it is."""
    messages: int = Field(10_000, ge=100)
    """Most messages of a chat request that is read; one with more is forwarded as it is."""
    header_count: int = Field(100, ge=10)
    """Most request headers."""
    header_bytes: int = Field(32_768, ge=1_024)
    """Largest sum of the request headers."""
    receive_seconds: Seconds = 60.0
    """Time for a request's headers to arrive, for a chat request's body, and for each piece of any other body."""
    write_stall_seconds: Seconds = 60.0
    """A client that takes nothing for this long is given up."""
    compactions_per_tenant: int | None = Field(16, ge=1)
    """Conversations of one tenant that are compacted at once, in each process; null for any number."""
    forced_compactions_per_minute: int | None = Field(600, ge=1)
    """`POST .../compact` requests of one tenant in a minute, in each process; null for any number."""
    summary_tokens_per_hour: int | None = Field(None, ge=1)
    """Tokens that summaries of one tenant may take in an hour, in each process; null for any number."""


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
    )

    server: ServerSettings = ServerSettings()
    upstream: UpstreamSettings = UpstreamSettings()
    upstreams: dict[str, NamedUpstreamSettings] = {}
    """Further providers by name, each chosen by model or by a base URL `/u/{name}/v1`."""
    models: tuple[ModelSettings, ...] = ()
    prices: tuple[PriceSettings, ...] = ()
    """What models cost, for the ledger: currency units for a million tokens; the first match wins."""
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

    @field_validator("upstreams")
    @classmethod
    def _are_told_apart(cls, upstreams: dict[str, NamedUpstreamSettings]) -> dict[str, NamedUpstreamSettings]:
        globs: dict[str, str] = {}
        for name, upstream in upstreams.items():
            if not _UPSTREAM.fullmatch(name) or name == DEFAULT_UPSTREAM:
                raise ValueError(
                    f"{name[:80]!r} cannot be the name of an upstream; allowed are 1 to 64 of a-z, 0-9, _ and -,"
                    f" and not {DEFAULT_UPSTREAM!r}, which is the one under `upstream`"
                )
            for glob in upstream.models:
                if (first := globs.setdefault(glob, name)) != name:
                    raise ValueError(f"{name}.models has {glob!r}, which {first}.models has too: it would never count")
        return upstreams

    @model_validator(mode="after")
    def _summarisers_are_there(self) -> Self:
        for key, name in (
            ("summary.upstream", self.summary.upstream),
            *(("summary.fallbacks", other.upstream) for other in self.summary.fallbacks),
        ):
            if name is not None and name not in (DEFAULT_UPSTREAM, *self.upstreams):
                known = ", ".join((DEFAULT_UPSTREAM, *self.upstreams))
                raise ValueError(f"{key} names {name!r}, which is no upstream; known: {known}")
        return self

    @property
    def circular(self) -> list[str]:
        """The upstreams whose base URL is Steno's own address: every request would come back to it."""
        upstreams = {"upstream": self.upstream} | {f"upstreams.{name}": at for name, at in self.upstreams.items()}
        host, port = self.server.host, self.server.port
        return [key for key, at in upstreams.items() if leads_to(at.base_url, host, port)]

    def of_model(self, model: str) -> ModelSettings | None:
        """The entry of `models` that decides about a model: the first that fits."""
        return next((entry for entry in self.models if entry.fits(model)), None)

    def price_of(self, model: str) -> Price | None:
        """The first entry of `prices` that fits."""
        return next((entry.price for entry in self.prices if entry.fits(model)), None)

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
        return (*sources, InitSettingsSource(settings_cls, init_kwargs=kept_database()), _PresetSource(settings_cls))


class _PresetSource(PydanticBaseSettingsSource):
    """What the chosen preset sets, under all that is set otherwise."""

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        raise NotImplementedError  # Only asked by the base class's own `__call__`.

    def __call__(self) -> dict[str, Any]:
        compaction = self.current_state.get("compaction")
        given = compaction if isinstance(compaction, Mapping) else {}
        chosen = given.get("preset", "default")  # Not checked yet: it may be a list, which no mapping looks up.
        chosen = "off" if chosen is False else chosen
        preset: Mapping[str, Any] = next((values for name, values in PRESETS.items() if name == chosen), {})
        # A trigger is one thing: the preset's conditions would be joined to those that are set.
        return {
            section: {name: value for name, value in values.items() if (section, name) != ("compaction", "trigger")}
            if "trigger" in given
            else values
            for section, values in preset.items()
        }


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
        raise ConfigurationError(f"Settings that cannot be used: {problems_in(error)}.") from error
    except SettingsError as error:
        named = _NOT_JSON.search(str(error))
        which = f"{environment_name(named[1])} must be JSON ({error.__cause__})" if named else str(error)
        raise ConfigurationError(f"Settings that cannot be used: {which}.") from error


class _FileLoader(yaml.SafeLoader):
    """Refuses a key that stands there twice: of two upstreams of one name the first would be gone in silence."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            if key.value in seen and key.value != "<<":
                raise yaml.constructor.ConstructorError(None, None, f"{key.value} is there twice", key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def problems_in(error: ValidationError, section: type[BaseModel] | None = None, most: int | None = None) -> str:
    """Each key, what was given and what is allowed, in one line. Keys begin in the section, or in all settings.

    `most`: so many are told one by one.
    """
    found = error.errors()
    told = [_problem(problem, section or Settings) for problem in found[:most]]
    return "; ".join((*told, f"and {more} more") if (more := len(found) - len(told)) else told)


def read_file(path: Path) -> dict[str, Any]:
    """A YAML file's sections. Raises `ConfigurationError`."""
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), _FileLoader)  # noqa: S506 - a safe loader
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


def _problem(error: ErrorDetails, section: type[BaseModel]) -> str:
    """One line: the key, what was given unless that may be secret, and what is allowed."""
    key = ".".join(map(str, error["loc"]))
    siblings, field = _place(error["loc"], section)
    given, kind = error["input"], error["type"]
    # A URL may hold a password before the @, and a key behind the ?.
    open_to_all = field is not None and field.annotation is not SecretStr and not set(str(given)) & {"@", "?", "#"}
    got = f" (got {given!r})" if open_to_all and isinstance(given, str | int | float) else ""
    if kind == "extra_forbidden":
        return f"{key} is no setting; known there: {', '.join(siblings)}"
    if kind == "value_error":
        return f"{key}: {error['ctx']['error']}{got}" if key else str(error["ctx"]["error"])
    return f"{key}: {error['msg']}{_range(field)}{got}"


def _place(loc: tuple[int | str, ...], section: type[BaseModel]) -> tuple[Mapping[str, FieldInfo], FieldInfo | None]:
    """The field at that place in the section, and its siblings; no field where there is no such setting."""
    siblings: Mapping[str, FieldInfo] = section.model_fields
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
        for constraint in (_constraints(field) if field else ())
        for name, word in words.items()
        if (bound := getattr(constraint, name, None)) is not None
    ]
    return f"; allowed is {' and '.join(bounds)}" if bounds else ""


def _constraints(field: FieldInfo) -> Iterator[Any]:
    """Those of the field, and those of the type that it may have beside None."""
    yield from field.metadata
    for kind in get_args(field.annotation):
        for inner in getattr(kind, "__metadata__", ()):
            yield from getattr(inner, "metadata", ())


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


def kept_database() -> dict[str, Any]:
    """The database where 0.1.0 put it, for when nothing else is set: nobody is to lose what is in it."""
    if EARLIER_DATABASE.is_file() and not DATABASE.exists():
        return {"storage": {"url": f"sqlite:///{EARLIER_DATABASE}"}}
    return {}


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
