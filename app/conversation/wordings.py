"""Wordings: patterns and texts in TOML files next to the code."""

from __future__ import annotations

import re
import tomllib
from importlib.resources import files
from typing import Any

_PART = re.compile(r"\{([a-z]+)\}")


def read_wordings(package: str, name: str) -> dict[str, Any]:
    """Read a TOML file. In each text, join the lines, and replace `{key}` by the entry `key` of the table `parts`."""
    read = tomllib.loads(files(package).joinpath(name).read_text("utf-8"))
    parts = read.pop("parts", {})
    return dict(_written(read, parts))


def _written(table: Any, parts: dict[str, str]) -> Any:
    if isinstance(table, dict):
        return {name: _written(held, parts) for name, held in table.items()}
    if isinstance(table, list):
        return tuple(_written(held, parts) for held in table)
    return _PART.sub(lambda part: _in_one_line(parts[part[1]]), _in_one_line(table))


def _in_one_line(text: str) -> str:
    """Join the lines of a text, without the white space at the ends of each line."""
    return "".join(map(str.strip, text.splitlines())) if "\n" in text else text
