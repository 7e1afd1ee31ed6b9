"""The trigger: what makes a compaction due."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from app.core.limits.budget import MOST_TOKENS, Shares
from app.settings.types import Ratio, Section

(_DEFAULT,) = Shares().trigger


class ConditionSettings(Section):
    token_ratio: Ratio | None = None
    """The estimate exceeds this share of the limit."""
    since_checkpoint_ratio: Ratio | None = None
    """The messages after the last summary, the current one too, exceed this share."""
    of: Literal["limit", "window"] = "limit"
    """What ratios are shares of: the limit, which is the window less the output, or the window."""
    tokens: int | None = Field(None, ge=1, le=MOST_TOKENS)
    """The estimate exceeds this many tokens."""
    remaining_tokens: int | None = Field(None, ge=0, le=MOST_TOKENS)
    """At most this many tokens of the window are left."""
    overflow: bool = False
    """The estimate exceeds the limit."""
    turns: int | None = Field(None, ge=0, le=100_000)
    """More than this many whole turns before the current one are not summarised."""
    messages: int | None = Field(None, ge=1, le=100_000)
    """At least this many messages before the verbatim tail are not summarised."""

    @property
    def conditions(self) -> set[str]:
        """Those that were named."""
        return {name for name in CONDITIONS if (value := getattr(self, name)) is not None and value is not False}


CONDITIONS = frozenset(ConditionSettings.model_fields) - {"of"}


class AlternativeSettings(ConditionSettings):
    @model_validator(mode="after")
    def _names_a_condition(self) -> Self:
        if not self.conditions:
            raise ValueError(f"a condition is needed: one of {', '.join(sorted(CONDITIONS))}")
        return self


def _named(trigger: Mapping[str, Any]) -> bool:
    """Whether it names a condition; what is null or false does not."""
    given = (trigger.get(name) for name in CONDITIONS)
    return bool(trigger.get("any")) or any(value is not None and value is not False for value in given)


class TriggerSettings(ConditionSettings):
    token_ratio: Ratio | None = _DEFAULT.token_ratio
    """A compaction is due when the estimate exceeds this share of the limit; of no account where others are named."""
    any: tuple[AlternativeSettings, ...] = Field((), max_length=10)
    """Alternatives, in place of the conditions above: each a set of them that all must hold, one is enough."""

    @model_validator(mode="before")
    @classmethod
    def _default_gives_way(cls, given: Any) -> Any:
        """Conditions are joined by "and": the default would weaken every other one."""
        if isinstance(given, Mapping) and "token_ratio" not in given and _named(given):
            return {**given, "token_ratio": None}
        return given

    @model_validator(mode="after")
    def _is_one_or_the_other(self) -> Self:
        if self.any and self.conditions:
            named = ", ".join(sorted(self.conditions))
            raise ValueError(f"any stands in place of other conditions, but {named} is there too; put it into any")
        if not self.any and not self.conditions:
            raise ValueError(f"a condition is needed: one of {', '.join(sorted(CONDITIONS))}, or any")
        return self

    @property
    def alternatives(self) -> Sequence[ConditionSettings]:
        return self.any or (self,)
