"""Settings of providers and models: addresses, routing, windows, token counting and prices."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from functools import cached_property
from ipaddress import ip_address
from typing import Any, Self
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator, model_validator

from app.formats.paths import FORMAT_NAMES, FormatName
from app.settings.types import ChosenPreset, Rate, Seconds, Section
from app.tokens.costs import MOST_TOKENS, Price

VISIBLE = re.compile(r"[!-~]+")
"""Pattern of visible ASCII without spaces, for URLs and values of headers."""


def fits(model: str, glob: str) -> bool:
    """True if the glob matches the model's name, with or without the part before its last slash."""
    return fnmatchcase(model, glob) or fnmatchcase(model.rsplit("/", 1)[-1], glob)


def is_address(url: str) -> bool:
    """True for an http(s) URL without credentials, query or fragment: these may be secret, and Steno shows the URL."""
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
        and VISIBLE.fullmatch(url) is not None
    )


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


DEFAULT_UPSTREAM = "default"
"""Name of the upstream that is set under `upstream`."""
OPENAI = "api.openai.com"
ANTHROPIC = "api.anthropic.com"
SPOKEN_AT: Mapping[str, tuple[FormatName, ...]] = {
    OPENAI: ("chat_completions", "responses"),
    ANTHROPIC: ("messages",),
}
"""Formats that known hosts speak."""
GOOGLE = "generativelanguage.googleapis.com"
"""Google's host. It serves Gemini, whose base URL has no version, and Chat Completions below `/v1beta/openai`."""
_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]{0,127}")


class UpstreamSettings(Section):
    """The provider to which Steno sends requests; see [upstreams](upstreams.md)."""

    base_url: str = "https://api.openai.com/v1"
    """Address of the provider's API. The address's path replaces the `/v1` of the client's requests.

    Most providers need the path: `https://api.openai.com/v1`, not `https://api.openai.com`. If the address has no list
    of models, Steno warns at the start, and so does `steno doctor`.
    """
    first_byte_seconds: Seconds = 600.0
    """Maximum seconds until the provider sends its status. A reasoning model may think for minutes before that."""
    between_bytes_seconds: Seconds = 120.0
    """Maximum seconds between two pieces of an answer. Any byte counts as a piece, even of a comment."""
    discover_windows: bool = True
    """Ask the provider for its models and their windows, at the start and every hour.

    Steno asks LiteLLM, Gemini, LM Studio, llama.cpp and Ollama on their own paths. For a model that Ollama
    has not loaded, Steno assumes 4,096 tokens: if you use `OLLAMA_CONTEXT_LENGTH`, set the window under `models`.
    """
    formats: tuple[FormatName, ...] | None = Field(None, min_length=1)
    """Wire formats that the upstream accepts: chat_completions, messages, responses, gemini; null: its host's formats.

    By host: api.openai.com: Chat Completions and Responses; api.anthropic.com: Messages;
    generativelanguage.googleapis.com: Gemini (base URL without a version); any other host: all formats.
    If `upstream` is api.openai.com and no upstream is set for Messages, Steno adds the upstream `anthropic`.
    """
    api_key_env: str | None = None
    """Name of the environment variable with the provider's key. Steno sends this key in place of the client's.

    The name is in capitals, and does not begin with `STENO_`. If Steno listens on loopback, every program of this
    machine can spend this key. On any other address, Steno needs `clients.header` ([who pays](security.md#who-pays)).
    """

    @property
    def api_key(self) -> SecretStr | None:
        """The key in the variable that `api_key_env` names."""
        return SecretStr(os.environ[self.api_key_env].strip()) if self.api_key_env else None

    @field_validator("base_url")
    @classmethod
    def _is_http(cls, value: str) -> str:
        if not is_address(value):
            # The error does not quote the value: a part that looks like a port may be a password.
            raise ValueError(
                "an http(s) URL without credentials, query or fragment is needed, such as https://api.openai.com/v1;"
                " a key belongs into the variable that api_key_env names"
            )
        return value.rstrip("/")

    @cached_property
    def host(self) -> str:
        return urlsplit(self.base_url).hostname or ""

    @cached_property
    def speaks(self) -> frozenset[FormatName]:
        spoken = SPOKEN_AT.get(self.host, FORMAT_NAMES)
        if self.host == GOOGLE:
            spoken = ("chat_completions",) if self.base_url.endswith("/openai") else ("gemini",)
        return frozenset(self.formats or spoken)

    @property
    def is_meant_for(self) -> frozenset[FormatName]:
        """Formats whose requests go here if no upstream lists the model and the default upstream lacks the format. An
        unknown host without `formats` has none."""
        return self.speaks if self.formats or self.host in (*SPOKEN_AT, GOOGLE) else frozenset()

    @model_validator(mode="after")
    def _has_its_key(self) -> Self:
        # A model validator, because an error of a field's validator quotes the value, which may be the key itself.
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
        if not VISIBLE.fullmatch(key):
            raise ValueError(f"api_key_env names {name}, whose value no header may hold: visible ASCII without spaces")
        return self


class NamedUpstreamSettings(UpstreamSettings):
    """A further provider."""

    models: tuple[str, ...] = ()
    """Models of this upstream, as names or globs such as `llama-*`; if empty, a base URL or a format selects it."""

    @model_validator(mode="before")
    @classmethod
    def _has_an_address(cls, given: Any) -> Any:
        if isinstance(given, Mapping) and "base_url" not in given:
            raise ValueError("base_url is needed, the provider's address, such as https://api.openai.com/v1")
        return given

    def fits(self, model: str) -> bool:
        return any(fits(model, glob) for glob in self.models)


VENDORS_OWN: Mapping[str, NamedUpstreamSettings] = {
    "anthropic": NamedUpstreamSettings(base_url=f"https://{ANTHROPIC}/v1")
}
"""Vendors' upstreams. Steno adds one if `upstream` is OpenAI and no upstream `is_meant_for` the vendor's formats."""


class ModelSettings(Section):
    """Window and preset of a model."""

    match: str
    """Model name, or a glob such as `gpt-4o*`."""
    context_window: int | None = Field(None, ge=1, le=MOST_TOKENS)
    """Tokens that the model accepts, prompt and completion together."""
    max_input_tokens: int | None = Field(None, ge=1, le=MOST_TOKENS)
    """Tokens that the prompt may have, if fewer than the window."""
    base_model: str | None = Field(None, min_length=1)
    """Model with the same tokenizer and window, such as gpt-4o for an Azure deployment chat-prod."""
    preset: ChosenPreset | None = None
    """Preset of requests for the model; null: `compaction.preset`."""

    @model_validator(mode="after")
    def _is_of_use(self) -> Self:
        if not (self.context_window or self.base_model or self.preset):
            raise ValueError("context_window is needed, or base_model, the model whose window it has, or a preset")
        if self.max_input_tokens and self.context_window and self.max_input_tokens > self.context_window:
            raise ValueError(
                f"max_input_tokens ({self.max_input_tokens}) is more than context_window ({self.context_window}),"
                " which counts prompt and completion together"
            )
        return self


def entry_of(model: str, entries: Iterable[ModelSettings]) -> ModelSettings | None:
    """Return the first entry that matches the model, or None."""
    for entry in entries:
        if fits(model, entry.match):
            return entry
    return None


def base_model(entries: Iterable[ModelSettings], model: str) -> str:
    entry = entry_of(model, entries)
    return (entry and entry.base_model) or model


class PriceSettings(Section):
    match: str
    """Model name, or a glob such as `gpt-4o*`."""
    prompt: Rate
    """Price of a million prompt tokens."""
    completion: Rate
    """Price of a million completion tokens."""
    cached: Rate | None = None
    """Price of a million prompt tokens read from the provider's cache; null: the price of other prompt tokens."""
    written: Rate | None = None
    """Price of a million prompt tokens written to the provider's cache; null: the price of other prompt tokens."""

    @property
    def price(self) -> Price:
        return Price(self.prompt, self.completion, self.cached, self.written)
