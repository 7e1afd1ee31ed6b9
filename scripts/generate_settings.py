"""Write config/steno.yaml and docs/settings.md anew: make generate

All of it stands once, in the sections of app/settings and their docstrings: the first paragraph is for both files, what
follows for the reference alone, and an indented block is an example.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import textwrap
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

from msgspec import Struct
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python

from app.settings import Settings, environment_name
from app.settings.presets import PRESETS

ROOT = Path(__file__).resolve().parent.parent
SAMPLE, REFERENCE = ROOT / "config/steno.yaml", ROOT / "docs/settings.md"
WIDTH = 120
LONGEST_VALUE = 400
"""Characters of a value that is quoted: a prompt is longer."""
WHOLE = "compaction.trigger"
"""Section that a preset sets as one thing."""

SAMPLE_HEAD = """\
# Every setting of Steno with its default. docs/settings.md says more about each. Written by `make generate`.
#
# Steno reads this file only if you name it: steno serve --config config/steno.yaml, or STENO_CONFIG. Copy the settings
# that you change; all others keep their defaults. Flags override the environment (STENO_ and the key, with "__" for
# each dot: STENO_COMPACTION__TRIGGER__TOKEN_RATIO), and the environment overrides this file.
"""
REFERENCE_HEAD = """\
# Settings

Flags override the environment, which overrides the YAML file. The file overrides the defaults.

Start with these six:

- [`upstream.base_url`](#upstreambase_url): the provider
- [`models`](#models): windows of models for which `steno models` shows `default`
- [`compaction.preset`](#compactionpreset): the way to shorten long histories
- [`summary.model`](#summarymodel): the model that writes summaries
- [`storage.url`](#storageurl): the database
- [`server.host`](#serverhost): the address to listen on; first read [security](security.md#when-others-can-reach-it)

How they are set:

- **File**: `--config` or `STENO_CONFIG` names the file; [config/steno.yaml](../config/steno.yaml) has every default.
- **Environment**: a variable's name is `STENO_` and the key, with `__` in place of dots, such as
  `{variable}`. Write lists and whole sections as JSON, and null as `null`.
- **Checks**: an invalid value or an unknown name stops the start. For a removed setting of the previous release, the
  message says what to do instead. `steno doctor` makes the same checks.

`make generate` writes this page, config/steno.yaml and the table of presets from the code, which has {count} settings.
"""


class Entry(Struct, frozen=True):
    """A setting, or a section of them."""

    key: str
    text: str
    """Docstring, without its indentation."""
    value: FieldInfo | None = None
    """Where it is a setting."""
    members: Mapping[str, str] = {}
    """Docstrings by name, where it is a list or a mapping of entries: those that are told nowhere else."""

    @property
    def paragraphs(self) -> list[str]:
        """Text without the example, each paragraph in one line."""
        return [re.sub(r"\s+", " ", each) for each in self.text.split("\n\n") if each and not each.startswith(" ")]

    @property
    def example(self) -> str:
        """Indented block of the text; empty if it has none."""
        return next((textwrap.dedent(each) for each in self.text.split("\n\n") if each.startswith(" ")), "")


@cache
def docstrings(section: type[BaseModel]) -> Mapping[str, str]:
    """Docstrings of the fields that a section declares itself, by name."""
    module = ast.parse(textwrap.dedent(inspect.getsource(section)))
    body = [each for declared in module.body if isinstance(declared, ast.ClassDef) for each in declared.body]
    found = {}
    for each, below in pairwise(body):
        match each, below:
            case ast.AnnAssign(target=ast.Name(name)), ast.Expr(value=ast.Constant(str(text))):
                found[name] = inspect.cleandoc(text)
    return found


def owner(section: type[BaseModel], name: str) -> type[BaseModel]:
    """The class that says what a field is for: the section, or one that it inherits from."""
    for base in section.__mro__:
        if issubclass(base, BaseModel) and base is not BaseModel and name in docstrings(base):
            return base
    raise LookupError(f"{section.__name__}.{name} has no docstring: say there what it is for")


def _owners(section: type[BaseModel] | None) -> Iterator[tuple[str, type[BaseModel]]]:
    """Fields of an entry's section, each with the class that says what it is for."""
    if section is not None:
        yield from ((name, owner(section, name)) for name in section.model_fields)


def section_in(annotation: Any) -> type[BaseModel] | None:
    """The section that a type is, or is made of; None for other values."""
    if isinstance(annotation, type(BaseModel)):
        return annotation
    return next((found for kind in get_args(annotation) if (found := section_in(kind)) is not None), None)


def entries(section: type[BaseModel] = Settings, within: str = "", told: set[Any] | None = None) -> Iterator[Entry]:
    """Every section and setting, in the order of the code; a block that stands in several places is told once."""
    told = set() if told is None else told
    for name, value in section.model_fields.items():
        key, kind, inner = within + name, value.annotation, section_in(value.annotation)
        if inner is not None and isinstance(kind, type):
            yield Entry(key, inspect.cleandoc(inner.__doc__ or ""))
            yield from entries(inner, f"{key}.", told)
            continue
        told.add((owner(section, name), name))
        members = {}
        for member, where in _owners(inner):
            if (where, member) not in told:
                told.add((where, member))
                members[member] = docstrings(where)[member]
        yield Entry(key, docstrings(owner(section, name))[name], value, members)


def keys() -> set[str]:
    """The dotted keys of all settings."""
    return {each.key for each in entries() if each.value}


def count() -> int:
    """Number of settings. A list of entries counts by what an entry has, and a block in several places once."""
    return sum(len(each.members) or section_in(each.value.annotation) is None for each in entries() if each.value)


def default_of(value: FieldInfo) -> Any:
    default = value.default
    if isinstance(default, tuple) and default and isinstance(default[0], BaseModel):
        default = [each.model_dump(exclude_defaults=True) for each in default]
    default = to_jsonable_python(default, exclude_none=True)
    return int(default) if isinstance(default, float) and default.is_integer() else default


# The sample file


def sample() -> str:
    """The text of config/steno.yaml."""
    lines = [SAMPLE_HEAD.rstrip()]
    for entry in entries():
        depth = entry.key.count(".")
        indent, name = "  " * depth, entry.key.rpartition(".")[2]
        if depth == 0:
            lines.append("")
        if entry.value is None and not (depth and len(entry.paragraphs) > 1):
            lines.append(f"{indent}{name}:")
            continue
        lines += [*_comments(entry, indent), *_assigned(entry, indent, name)]
    return "\n".join(lines) + "\n"


def _comments(entry: Entry, indent: str) -> Iterator[str]:
    first = entry.paragraphs[0] + (" For example:" if entry.example else "")
    yield from _wrapped(first, f"{indent}# ")
    for line in entry.example.splitlines():
        yield f"{indent}#   {line}"
    for name, text in entry.members.items():
        yield from _wrapped(f"{name}: {_first(text)}", f"{indent}# ")


def _wrapped(text: str, prefix: str) -> list[str]:
    plain = re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", text)
    return textwrap.wrap(
        plain, WIDTH, initial_indent=prefix, subsequent_indent=prefix, break_long_words=False, break_on_hyphens=False
    )


def _first(text: str) -> str:
    return re.sub(r"\s+", " ", text.split("\n\n", maxsplit=1)[0])


def _assigned(entry: Entry, indent: str, name: str) -> Iterator[str]:
    default = default_of(entry.value) if entry.value else None
    match default:
        case _ if entry.value is None:
            yield f"{indent}{name}:"
        case str() if "\n" in default:
            yield f"{indent}# yamllint disable rule:line-length"
            yield f"{indent}{name}: |-"
            yield from (f"{indent}  {line}" for line in default.splitlines())
            yield f"{indent}# yamllint enable rule:line-length"
        case [_, *_]:
            yield f"{indent}{name}:"
            yield from (f"{indent}  - {json.dumps(each)}" for each in default)
        case _:
            yield f"{indent}{name}: {json.dumps(default)}"


# The reference


def reference() -> str:
    """The text of docs/settings.md."""
    blocks = [REFERENCE_HEAD.format(count=count(), variable=environment_name("compaction.tail.turns"))]
    for entry in entries():
        top = "." not in entry.key
        if entry.value is None and not top and len(entry.paragraphs) == 1:
            continue
        blocks += [f"{'##' if top else '###'} {entry.key}", *entry.paragraphs]
        if entry.example:
            blocks.append(textwrap.indent(entry.example, "    "))
        if entry.members:
            blocks.append("\n".join(f"- `{name}`: {_joined(text)}" for name, text in entry.members.items()))
        if last := _last(entry):
            blocks.append(last)
    return "\n\n".join(block.rstrip() for block in blocks) + "\n"


def _joined(text: str) -> str:
    return re.sub(r"\s+", " ", text)


def _last(entry: Entry) -> str:
    """The default, and what presets set in its place."""
    parts = []
    if entry.value is not None:
        parts.append(f"Default: {_quoted(default_of(entry.value))}.")
    if set_by := _set_by_presets(entry.key):
        parts.append(f"Presets: {set_by}.")
    return " ".join(parts)


def _quoted(value: Any) -> str:
    written = value if isinstance(value, str) else json.dumps(value)
    if len(written) > LONGEST_VALUE:
        return "the text in config/steno.yaml"
    return f"`{written}`" if written else "empty"


def _set_by_presets(key: str) -> str:
    """Each value that presets set, with their names."""
    names: dict[str, list[str]] = {}
    for name, preset in PRESETS.items():
        values = dict(_flat(preset.settings))
        if key in values:
            written = _quoted(values[key]) if len(str(values[key])) <= LONGEST_VALUE else "a text of its own"
            names.setdefault(written, []).append(f"`{name}`")
    return "; ".join(f"{', '.join(each)} {written}" for written, each in names.items())


def _flat(values: Mapping[str, Any], within: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        key = within + name
        if isinstance(value, Mapping) and key != WHOLE:
            yield from _flat(value, f"{key}.")
        else:
            yield key, value


def generated() -> dict[Path, str]:
    """Each file that is written from the code, and what belongs there."""
    return {SAMPLE: sample(), REFERENCE: reference()}


if __name__ == "__main__":
    for file, written in generated().items():
        file.write_text(written)
