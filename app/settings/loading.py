"""Loading: the settings in effect, or why they cannot be used."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import SettingsError

from app.settings.problems import meant, problems_in
from app.settings.settings import Settings
from app.settings.types import ConfigurationError

_OUTSIDE_NAMES = frozenset(
    {"STENO_CONFIG", "STENO_HOME", "STENO_SECRET_FILE", "STENO_ALLOW_UNAUTHENTICATED", "STENO_TEST_DATABASE_URL"}
)
_KUBERNETES = re.compile(r"STENO_(SERVICE_(HOST|PORT)|PORT_\d+_(TCP|UDP)|PORT=\w+://)")
"""Variables that Kubernetes puts into every container beside a Service called steno, with their values."""
_NOT_JSON = re.compile(r'field "(\w+)" from source "EnvSettingsSource"')


def load(**flags: Any) -> Settings:
    """Read the settings in effect. Raises `ConfigurationError`, which names the key and what is allowed."""
    _check_names()
    try:
        return Settings(**flags)
    except ValidationError as error:
        raise ConfigurationError(f"Steno cannot use these settings: {problems_in(error)}.") from error
    except SettingsError as error:
        named = _NOT_JSON.search(str(error))
        which = f"{environment_name(named[1])} must be JSON ({error.__cause__})" if named else str(error)
        raise ConfigurationError(f"Steno cannot use these settings: {which}.") from error


def every_setting(section: type[BaseModel] = Settings, within: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Every setting with its dotted key; a list is one setting."""
    for name, field in section.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from every_setting(field.annotation, f"{within}{name}.")
        else:
            yield within + name, field


def environment_name(key: str) -> str:
    """Name of the variable that sets the setting of that dotted key."""
    return f"STENO_{key.replace('.', '__').upper()}"


def _check_names() -> None:
    """Refuse a variable that is no setting: a mistyped one would be ignored in silence. Raises `ConfigurationError`."""
    known = {environment_name(name) for name in Settings.model_fields}
    for name, value in os.environ.items():
        if not name.startswith("STENO_") or name in _OUTSIDE_NAMES or name.split("__")[0] in known:
            continue
        if _KUBERNETES.match(f"{name}={value}"):
            continue
        like = meant(name, map(environment_name, dict(every_setting())), likeness=0.75)
        raise ConfigurationError(
            f"{name} is not a setting of Steno{like}. Known: {', '.join(sorted(known))} (nested with __)."
        )
    path = os.environ.get("STENO_CONFIG")
    if path and Path(path).is_dir():
        raise ConfigurationError(f"{path} is a folder, not a settings file (--config or STENO_CONFIG).")
    if path and not Path(path).is_file():
        raise ConfigurationError(f"There is no settings file {path} (--config or STENO_CONFIG).")
