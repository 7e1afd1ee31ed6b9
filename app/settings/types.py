"""Parts of sections: kinds of values, and what all sections have in common."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from app.settings.presets import PresetName

Ratio = Annotated[float, Field(gt=0, le=1)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Rate = Annotated[float, Field(ge=0, le=1_000_000)]
SWITCHES = dict.fromkeys(("1", "true", "yes", "on"), True) | dict.fromkeys(("0", "false", "no", "off"), False)
OFF = BeforeValidator(lambda given: {False: "off", True: "on"}.get(given, given) if isinstance(given, bool) else given)
"""Reader of a bare `off`, which is false in YAML."""
Preset = Annotated[PresetName, OFF]


class Section(BaseModel):
    """Section of the settings. Its docstring and those of its fields are its documentation: see `make generate`."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def switch(given: Any) -> Any:
    """Boolean for the words of the environment that mean one; anything else as it is."""
    return SWITCHES.get(given.lower(), given) if isinstance(given, str) else given
