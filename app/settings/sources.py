"""Sources of settings beside flags and variables named after them: other variables, the file, a preset."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic.fields import FieldInfo
from pydantic_settings import PydanticBaseSettingsSource

from app.settings.presets import PRESETS
from app.settings.types import ConfigurationError


def aliases() -> dict[str, Any]:
    """Settings from variables with names of their own: DATABASE_URL, STENO_SECRET_FILE, STENO_ALLOW_UNAUTHENTICATED."""
    found: dict[str, Any] = {}
    if url := os.environ.get("DATABASE_URL"):
        found["storage"] = {"url": url}
    if path := os.environ.get("STENO_SECRET_FILE"):
        try:
            found["secret"] = Path(path).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"STENO_SECRET_FILE names {path}, which cannot be read: {error}.") from error
    if allowed := os.environ.get("STENO_ALLOW_UNAUTHENTICATED"):
        found["server"] = {"allow_unauthenticated": allowed}
    return found


class _FileLoader(yaml.SafeLoader):
    """Loader that refuses a key that stands there twice: of two upstreams of one name the first would be gone in
    silence."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            if key.value in seen and key.value != "<<":
                raise yaml.constructor.ConstructorError(None, None, f"{key.value} is there twice", key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def read_file(path: Path) -> dict[str, Any]:
    """Read a YAML file's sections. Raises `ConfigurationError`."""
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


class PresetSource(PydanticBaseSettingsSource):
    """Settings of the chosen preset, under all that is set otherwise."""

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        raise NotImplementedError  # Only asked by the base class's own `__call__`.

    def __call__(self) -> dict[str, Any]:
        compaction = self.current_state.get("compaction")
        given = compaction if isinstance(compaction, Mapping) else {}
        chosen = given.get("preset", "default")  # Not checked yet: it may be a list, which no mapping looks up.
        chosen = "off" if chosen is False else chosen
        return dict(next((preset.settings for name, preset in PRESETS.items() if name == chosen), {}))
