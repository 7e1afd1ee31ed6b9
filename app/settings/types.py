"""Types of values in the settings, and the base class of all sections."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from app.settings.presets import PresetName

Ratio = Annotated[float, Field(gt=0, le=1)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Rate = Annotated[float, Field(ge=0, le=1_000_000)]
SWITCHES = dict.fromkeys(("1", "true", "yes", "on"), True) | dict.fromkeys(("0", "false", "no", "off"), False)
OFF = BeforeValidator(lambda given: {False: "off", True: "on"}.get(given, given) if isinstance(given, bool) else given)
"""Validator that turns a boolean into `on` or `off`, because YAML reads a bare `off` as false."""
ChosenPreset = Annotated[PresetName, OFF]


class ConfigurationError(Exception):
    """Raised for settings that Steno cannot use; the text names the key and the allowed values."""


class Section(BaseModel):
    """Section of the settings. `make generate` writes the docstrings of sections and fields to the documentation."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def switch(given: Any) -> Any:
    """Turn a word for a boolean, such as `yes`, into the boolean; return any other value unchanged."""
    return SWITCHES.get(given.lower(), given) if isinstance(given, str) else given
