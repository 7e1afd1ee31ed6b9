"""Loading: the settings in effect, or why they cannot be used: the key, what was given, what is allowed."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, SecretStr, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails
from pydantic_settings import SettingsError

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


_IN_YAML = {"tuple_type": "must be a list", "dict_type": "must be a mapping", "model_type": "must be a mapping"}
"""Words for errors that pydantic tells in terms of Python, by their kind."""


def problems_in(error: ValidationError, section: type[BaseModel] | None = None, most: int | None = None) -> str:
    """Problems in one line: each key, what was given and what is allowed. Keys begin in the section, or in all
    settings.

    `most`: how many are named one by one.
    """
    found = error.errors()
    parts = [_problem(problem, section or Settings) for problem in found[:most]]
    return "; ".join((*parts, f"and {more} more") if (more := len(found) - len(parts)) else parts)


def _problem(error: ErrorDetails, section: type[BaseModel]) -> str:
    """Problem in one line: the key, what was given unless that may be secret, and what is allowed."""
    key = ".".join(map(str, error["loc"]))
    siblings, field = _place(error["loc"], section)
    given, kind = error["input"], error["type"]
    # A URL may hold a password before the @, and a key behind the ?.
    is_secret = field is not None and SecretStr in (field.annotation, *get_args(field.annotation))
    open_to_all = field is not None and not is_secret and not set(str(given)) & {"@", "?", "#"}
    got = f" (got {given!r})" if open_to_all and isinstance(given, str | int | float) else ""
    if kind == "extra_forbidden":
        return f"{key} is not a setting{meant(str(error['loc'][-1]), siblings)}; known there: {', '.join(siblings)}"
    if kind == "value_error":
        return f"{key}: {error['ctx']['error']}{got}" if key else str(error["ctx"]["error"])
    return f"{key}: {_IN_YAML.get(kind, error['msg'])}{_range(field)}{got}"


def meant(name: str, known: Iterable[str], likeness: float = 0.6) -> str:
    """Question after a mistyped name; empty where no known name is as like it as `likeness`, from 0 to 1."""
    like = get_close_matches(name, list(known), n=1, cutoff=likeness)
    return f" (did you mean {like[0]}?)" if like else ""


def _place(loc: tuple[int | str, ...], section: type[BaseModel]) -> tuple[Mapping[str, FieldInfo], FieldInfo | None]:
    """Siblings of the field at that place in the section, and the field; None where there is no such setting."""
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
    """Numbers that a field takes, in words; empty where it has no bounds."""
    words = {"gt": "more than", "ge": "at least", "lt": "less than", "le": "at most"}
    bounds = [
        f"{word} {bound}"
        for constraint in (_constraints(field) if field else ())
        for name, word in words.items()
        if (bound := getattr(constraint, name, None)) is not None
    ]
    return f"; allowed is {' and '.join(bounds)}" if bounds else ""


def _constraints(field: FieldInfo) -> Iterator[Any]:
    """Constraints of a field and of its type, None aside."""
    yield from field.metadata
    for kind in get_args(field.annotation):
        for inner in getattr(kind, "__metadata__", ()):
            yield from getattr(inner, "metadata", ())
