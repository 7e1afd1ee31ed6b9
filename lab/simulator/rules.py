"""Rules that hold for one request: the models on offer and the settings of the simulator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from lab.simulator.refusals import Refusal, Refused, no_such_model, wrong_type


@dataclass(frozen=True, slots=True)
class Model:
    """A model that the simulator offers."""

    name: str
    window: int | None = None
    """None: the simulator's."""
    unsupported: frozenset[str] = frozenset()
    """Arguments it refuses, as reasoning models refuse `max_tokens`."""
    counts_answer: bool | None = None
    """Whether the answer asked for has to fit the window beside the prompt; None: as its API has it."""


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

    def asked_of(self, model: Model, answer: int | None, usual: bool) -> int:
        """Tokens of the answer that have to fit the window beside the prompt. `usual`: whether they have to at all
        where the model does not say."""
        counts = usual if model.counts_answer is None else model.counts_answer
        return (answer or 0) if counts else 0


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
