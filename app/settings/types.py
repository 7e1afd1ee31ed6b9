"""Types of values in the settings, and the base class of all sections."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from app.settings.presets import PresetName

Ratio = Annotated[float, Field(gt=0, le=1)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Rate = Annotated[float, Field(ge=0, le=1_000_000)]
OFF = BeforeValidator(lambda given: "off" if given is False else given)
"""Validator that turns false into `off`, because YAML reads a bare `off` as false."""
ChosenPreset = Annotated[PresetName, OFF]


class ConfigurationError(Exception):
    """Raised for settings that Steno cannot use; the text names the key and the allowed values."""


class Section(BaseModel):
    """Section of the settings. `make generate` writes the docstrings of sections and fields to the documentation."""

    model_config = ConfigDict(extra="forbid", frozen=True)
