"""What holds for one request: the models on offer and the settings of the simulator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from app.simulator.refusals import Refusal, Refused, no_such_model, wrong_type


@dataclass(frozen=True, slots=True)
class Model:
    """A model that the simulator offers."""

    name: str
    window: int | None = None
    """None: the simulator's."""
    unsupported: frozenset[str] = frozenset()
    """Arguments it refuses, as reasoning models refuse `max_tokens`."""
    stops_at_window: bool = False
    """In Chat: it begins an answer in whatever room is left, however long a one was asked for."""


@dataclass(frozen=True, slots=True)
class RequestRules:
    """The simulator's settings for one request."""

    models: Mapping[str, Model] | Literal["any"]
    window: int
    skew: float
    offset: int
    strict_roles: bool
    lenient_messages: bool
    max_messages: int | None
    late_overflow: bool = False

    def scaled(self, tokens: int) -> int:
        return round(self.skew * tokens) + self.offset

    def model(self, name: str) -> Model | None:
        """None: the provider has no such model."""
        return Model(name) if self.models == "any" else self.models.get(name)

    def window_of(self, model: Model) -> int:
        return model.window or self.window


def model_of(arguments: Mapping[str, Any], rules: RequestRules) -> Model:
    """The model that a request to OpenAI names."""
    name = arguments.get("model")
    if name is None or name == "":
        raise Refused(Refusal("you must provide a model parameter"))
    if not isinstance(name, str):
        raise Refused(wrong_type("model", "a string", name))
    model = rules.model(name)
    if model is None:
        raise Refused(no_such_model(name))
    return model
