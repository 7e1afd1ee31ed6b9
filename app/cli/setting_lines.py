"""The settings in effect, each with where it was set."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import reduce
from typing import Any

import msgspec
from msgspec import Struct
from pydantic import SecretStr

from app.settings import ConfigurationError, Settings, environment_name, every_setting, load
from app.store import DatabaseURLError
from app.store.engine import read_url

ALIASES = {
    "storage.url": "DATABASE_URL",
    "secret": "STENO_SECRET_FILE",
    "server.allow_unauthenticated": "STENO_ALLOW_UNAUTHENTICATED",
}
LONGEST_VALUE = 60


class InEffect(Struct, frozen=True):
    key: str
    value: str
    """The value as JSON, or in words where it is a secret or long."""
    source: str | None
    """Place where the value was set; None for a default."""

    @property
    def line(self) -> str:
        short = self.value if len(self.value) <= LONGEST_VALUE else f"{self.value[: LONGEST_VALUE - 3]}..."
        return f"    {self.key} = {short}" if self.source is None else f"  * {self.key} = {short}   ({self.source})"


def in_effect(settings: Settings) -> Iterator[InEffect]:
    defaults, unflagged = Settings.model_construct(), _without_flags()
    for key, _ in every_setting():
        value, source = _value(settings, key), None
        if value != _value(defaults, key):
            flagged = unflagged is not None and _value(unflagged, key) != value
            source = "command line" if flagged else _source(key)
        yield InEffect(key, _shown(key, value), source)


def _value(settings: Settings, key: str) -> Any:
    return reduce(getattr, key.split("."), settings)


def _shown(key: str, value: Any) -> str:
    if key == "secret":
        return "null" if value is None else "(hidden)"
    if isinstance(value, SecretStr):
        try:
            return read_url(value.get_secret_value()).shown
        except DatabaseURLError:
            return "(hidden: cannot be read)"
    if key in ("models", "upstreams"):
        return f"{len(value)} entries"
    return msgspec.json.encode(value, enc_hook=str).decode()


def _without_flags() -> Settings | None:
    """Load the settings that environment and file make; None if they need a flag to be valid."""
    try:
        return load()
    except ConfigurationError:
        return None


def _source(key: str) -> str:
    """Name the source of a setting, among environment and file, in order of precedence."""
    environment = {name.upper(): value for name, value in os.environ.items()}
    if (name := environment_name(key)) in environment:
        return name
    section, _, rest = key.partition(".")
    if rest and _holds(environment.get(environment_name(section), ""), rest):
        return environment_name(section)
    if environment.get(ALIASES.get(key, "")):
        return ALIASES[key]
    return environment.get("STENO_CONFIG") or "command line"


def _holds(section: str, key: str) -> bool:
    """True if a variable that sets a whole section, as JSON, sets this key of it."""
    try:
        content = msgspec.json.decode(section)
    except msgspec.DecodeError:
        return False
    for name in key.split("."):
        if not isinstance(content, dict) or name not in content:
            return False
        content = content[name]
    return True
