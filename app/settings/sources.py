"""Sources of settings beside flags and variables named after them: other variables, the file, a preset. Settings of the
previous release that are gone are refused."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
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


_GATEWAY = "Steno no longer counts what a tenant uses: set such a limit at the gateway or at the provider."
_NO_FUNCTIONS = "Steno adds no functions: connect an agent that wants to search to the MCP server at /mcp."
_NATIVE = "Requests that ask their provider to compact pass: Steno no longer answers in its place."

REMOVED: Mapping[str, str] = {
    "clients.keys": "Steno gives out no keys: let a proxy name the caller in clients.header.",
    "clients.jwt": "Let a proxy verify tokens and name the caller in clients.header.",
    "clients.oauth": "A refreshed token is a new tenant: name the caller in clients.header, or set clients.tenant.",
    "limits.requests_per_minute": _GATEWAY,
    "limits.tokens_per_day": _GATEWAY,
    "limits.money_per_day": _GATEWAY,
    "limits.forced_compactions_per_minute": _GATEWAY,
    "limits.summary_tokens_per_hour": _GATEWAY,
    "compaction.ask": _NO_FUNCTIONS,
    "compaction.ask_functions": _NO_FUNCTIONS,
    "storage.read_url": "Every read goes to storage.url: take the key away.",
    "upstream.native_compaction": _NATIVE,
    "upstreams.*.native_compaction": _NATIVE,
    **{
        f"compaction.trigger.{name}": "The trigger is a share of the limit (token_ratio) and a cap (tokens)."
        for name in ("since_checkpoint_ratio", "of", "remaining_tokens", "overflow", "turns", "messages", "any")
    },
    "compaction.trigger.body_bytes": "Pictures and files give way at 0.8 of what the provider takes.",
    "upstreams.*.trigger": "Set compaction.trigger.",
    "models.*.trigger": "Set compaction.trigger, or the preset of the entry.",
    **dict.fromkeys(
        (
            "compaction.strategy",
            "compaction.floor_tokens",
            "compaction.target_ratio",
            "compaction.tail.fill_ratio",
            "compaction.tail.max_ratio",
            "compaction.session_pruning",
            "compaction.cost_gate",
        ),
        "The preset decides it: choose another in compaction.preset.",
    ),
    "compaction.enabled": "Set compaction.preset to off, or take the key away.",
    "compaction.window.turns": "Set compaction.tail.turns.",
    "compaction.window.tokens": "Set compaction.tail.turns, or compaction.trigger.tokens.",
    "compaction.mask.allow": "Name the tools whose results stay in compaction.mask.deny.",
    "compaction.client_instructions": "Put such instructions into the system message.",
    "compaction.recall.max_tokens": "Set compaction.recall.max_ratio.",
    "summary.prompts": "Set summary.prompt: one for all models and tenants.",
    "summary.rules": "What the user said is kept, without patterns.",
    "identity.body_names": "Send the name in x-context-conversation-id.",
    "identity.session_headers": "Send the name in x-context-conversation-id.",
    "models.*.max_output_tokens": "The provider or the bundled table says it.",
    "summary.values": "Exact values are always kept.",
    "upstreams.*.preset": "Set the preset of an entry in models.",
    "limits.in_flight_bytes": "It is four times limits.body_bytes.",
    "storage.secrets": "Secrets are removed from all that is stored: take the key away.",
    "storage.statement_cache": "Behind PgBouncer put ?prepared_statement_cache_size=0 into the database URL.",
}
"""Advice on what to do instead, by key; `*` stands for any name."""


def refuse_removed(given: Mapping[str, Any]) -> None:
    """Raises `ValueError`, with a line for each removed setting that is given."""
    found = [
        f"{'.'.join(place)} is no setting any more. {instead}"
        for key, instead in REMOVED.items()
        if (place := _given_at(given, key.split("."))) is not None
    ]
    if found:
        raise ValueError("\n".join(found).rstrip("."))


def _given_at(given: Any, names: Sequence[str]) -> list[str] | None:
    """Names that lead to a setting, with those of an entry in place of `*`; None if it is not given."""
    if not names:
        return []
    name, *rest = names
    if isinstance(given, list) and name == "*":
        entries: Any = {str(place): value for place, value in enumerate(given)}
    else:
        entries = given if isinstance(given, Mapping) else {}
    for key, value in entries.items():
        if name in ("*", key) and (place := _given_at(value, rest)) is not None:
            return [str(key), *place]
    return None
