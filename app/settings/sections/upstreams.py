"""Upstreams: where providers are, and which models are sent there."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any, Self
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator, model_validator

from app.settings.addresses import VISIBLE, is_address
from app.settings.sections.trigger import TriggerSettings
from app.settings.types import Preset, Seconds, Section, fits
from app.wire.paths import FORMAT_NAMES, FormatName

DEFAULT_UPSTREAM = "default"
"""Name of the one under `upstream`."""
OPENAI = "api.openai.com"
ANTHROPIC = "api.anthropic.com"
SPOKEN_AT: Mapping[str, tuple[FormatName, ...]] = {
    OPENAI: ("chat_completions", "responses"),
    ANTHROPIC: ("messages",),
}
"""What is known of hosts without any setting."""
REQUEST_PATHS = ("/chat/completions", "/messages", "/responses")
"""Where requests are posted, below the address of an API."""
_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]{0,127}")


class UpstreamSettings(Section):
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
    formats: tuple[FormatName, ...] | None = Field(None, min_length=1)
    """Wire formats it speaks; null means all, but for api.openai.com and api.anthropic.com, which are known."""
    native_compaction: bool | None = None
    """Whether it compacts histories itself where clients ask for that, else Steno does; null means until it refuses."""
    api_key_env: str | None = None
    """Environment variable with the provider's key; it goes there in place of whatever the client sends as its own."""

    @property
    def api_key(self) -> SecretStr | None:
        """The key in that variable."""
        return SecretStr(os.environ[self.api_key_env].strip()) if self.api_key_env else None

    @field_validator("base_url")
    @classmethod
    def _is_http(cls, value: str) -> str:
        if not is_address(value):
            # Without a word of it: there may be a password in what looks like a port.
            raise ValueError(
                "an http(s) URL without credentials, query or fragment is needed, such as https://api.openai.com/v1;"
                " a key belongs into the variable that api_key_env names"
            )
        value = value.rstrip("/")
        base = next((value.removesuffix(path) for path in REQUEST_PATHS if value.endswith(path)), value)
        address = urlsplit(base)
        if address.hostname in SPOKEN_AT and not address.path:
            base += "/v1"
        if base != value:
            raise ValueError(f"the address of the whole API is needed, which is {base}")
        return value

    @property
    def host(self) -> str:
        return urlsplit(self.base_url).hostname or ""

    @property
    def speaks(self) -> frozenset[FormatName]:
        """The formats in which it may be asked."""
        return frozenset(self.formats or SPOKEN_AT.get(self.host, FORMAT_NAMES))

    @property
    def is_meant_for(self) -> frozenset[FormatName]:
        """Those for which it is there, also for models that nobody is said to have."""
        return self.speaks if self.formats or self.host in SPOKEN_AT else frozenset()

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
        if not VISIBLE.fullmatch(key):
            raise ValueError(f"api_key_env names {name}, whose value no header may hold: visible ASCII without spaces")
        return self


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


VENDORS_OWN: Mapping[str, NamedUpstreamSettings] = {
    "anthropic": NamedUpstreamSettings(base_url=f"https://{ANTHROPIC}/v1"),
}
"""Beside OpenAI, where nobody in the settings speaks what they speak: so that one Steno serves the clients of both."""
