"""Rules that the provider holds requests to: the models on offer, and how strict it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Model:
    name: str
    window: int | None = None
    """None: the simulator's."""
    unsupported: frozenset[str] = frozenset()
    """Arguments it refuses, as reasoning models refuse `max_tokens`."""
    counts_answer: bool | None = None
    """Whether the answer asked for has to fit the window beside the prompt; None: as its API has it."""


@dataclass
class Rules:
    """Plain attributes, which may be changed while the simulator runs."""

    window: int
    """Context window of every model without its own."""
    models: Mapping[str, Model] | Literal["any"] = "any"
    """any: every name is known."""
    strict_roles: bool = False
    """Refuse user messages in a row, and in Chat Completions instructions after the start."""
    max_messages: int | None = None
    """Most messages of a request to Chat Completions."""

    def model(self, name: str) -> Model | None:
        """None: the provider has no such model."""
        return Model(name) if self.models == "any" else self.models.get(name)

    def window_of(self, model: Model) -> int:
        return model.window or self.window
