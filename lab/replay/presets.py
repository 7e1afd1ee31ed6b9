"""Presets to replay: which are asked for, and what they promise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.settings import ConfigurationError, load
from app.settings.presets import PRESET_NAMES

ALL = "all"
MAY_REFUSE = frozenset({"off", "openclaw-adaptive", "openclaw-aggressive"})
"""Presets that change nothing, or only tool results: what is still too large then goes to the provider as it is."""


def chosen(names: str) -> tuple[str, ...]:
    """The presets of a list such as `default,rolling`, or all of them. Raises `ConfigurationError`."""
    listed = PRESET_NAMES if names == ALL else tuple(dict.fromkeys(filter(None, map(str.strip, names.split(",")))))
    if not listed:
        raise ConfigurationError(f"No preset is named. Known: {', '.join(PRESET_NAMES)}; or {ALL}.")
    for name in listed:
        _check(name)
    return listed


def settings_of(preset: str | None, recall_ratio: float | None = None) -> Mapping[str, Any]:
    """Settings of the section `compaction` that choose a preset; none leave what the environment and the file say.
    `recall_ratio` is the share of the limit that recalled passages may take: 0 recalls none."""
    named: Mapping[str, Any] = {"preset": preset} if preset else {}
    if recall_ratio is None:
        return named
    return {**named, "recall": {"max_ratio": recall_ratio}}


def _check(name: str) -> None:
    """Before the first replay begins: a table takes minutes."""
    if name not in PRESET_NAMES:
        raise ConfigurationError(f"There is no preset {name!r}. Known: {', '.join(PRESET_NAMES)}; or {ALL}.")
    try:
        load(compaction=dict(settings_of(name)))
    except ConfigurationError as error:
        raise ConfigurationError(f"The preset {name} cannot be used. {error}") from error
