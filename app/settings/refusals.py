"""Errors of settings. Their texts have the key, the given value unless it may be secret, and the allowed values.

Settings of the previous release that were removed are refused with advice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any, get_args

from pydantic import BaseModel, SecretStr, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from app.conversation.wordings import read_wordings


class ConfigurationError(Exception):
    """Raised for settings that Steno cannot use; the text names the key and the allowed values."""


REMOVED: Mapping[str, str] = read_wordings(__package__, "removed.toml")
"""Advice for removed settings, by key; `*` matches any name."""


def refuse_removed(given: Mapping[str, Any]) -> None:
    """Raise `ValueError` with a line for each removed setting that is given."""
    found = [
        f"{key} is no setting any more. {instead}"
        for key in _keys(given)
        for removed, instead in REMOVED.items()
        if fnmatchcase(key, removed)
    ]
    if found:
        raise ValueError("\n".join(found).rstrip("."))


def _keys(given: Any, within: str = "") -> Iterator[str]:
    """Yield the dotted keys of all sections and settings; entries of lists have their number."""
    entries = given.items() if isinstance(given, Mapping) else enumerate(given) if isinstance(given, list) else ()
    for name, value in entries:
        yield f"{within}{name}"
        yield from _keys(value, f"{within}{name}.")


_IN_YAML = {"tuple_type": "must be a list", "dict_type": "must be a mapping", "model_type": "must be a mapping"}
"""Error texts by the kind of error, in place of pydantic's texts about Python types."""


def problems_in(error: ValidationError, section: type[BaseModel]) -> str:
    """Return all problems in one line. `section`: the model that was validated."""
    return "; ".join(_problem(problem, section) for problem in error.errors())


def _problem(error: ErrorDetails, section: type[BaseModel]) -> str:
    """Return one problem: the key, the given value unless it may be secret, and the allowed values."""
    key = ".".join(map(str, error["loc"]))
    siblings, field = _place(error["loc"], section)
    given, kind = error["input"], error["type"]
    # A URL may contain a password before the @, and a key after the ?.
    is_secret = field is not None and SecretStr in (field.annotation, *get_args(field.annotation))
    open_to_all = field is not None and not is_secret and not set(str(given)) & {"@", "?", "#"}
    got = f" (got {given!r})" if open_to_all and isinstance(given, str | int | float) else ""
    if kind == "extra_forbidden":
        return f"{key} is not a setting{meant(str(error['loc'][-1]), siblings)}; known there: {', '.join(siblings)}"
    if kind == "value_error":
        return f"{key}: {error['ctx']['error']}{got}" if key else str(error["ctx"]["error"])
    return f"{key}: {_IN_YAML.get(kind, error['msg'])}{got}"


def meant(name: str, known: Iterable[str], likeness: float = 0.6) -> str:
    """Return a suggestion for a mistyped name, or an empty string. `likeness`: minimum similarity, 0 to 1."""
    like = get_close_matches(name, list(known), n=1, cutoff=likeness)
    return f" (did you mean {like[0]}?)" if like else ""


def _place(loc: tuple[int | str, ...], section: type[BaseModel]) -> tuple[Mapping[str, FieldInfo], FieldInfo | None]:
    """Return the fields at the level of `loc`, and the field itself, or None if it does not exist."""
    siblings: Mapping[str, FieldInfo] = section.model_fields
    field = None
    for name in (part for part in loc if isinstance(part, str)):
        if field is not None:
            kinds = (field.annotation, *get_args(field.annotation))
            sections = (kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel))
            siblings = next((section.model_fields for section in sections), {})
        field = siblings.get(name)
    return siblings, field
