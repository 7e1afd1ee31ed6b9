"""The trigger: what makes a compaction due."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from app.core.limits.budget import MOST_TOKENS, Shares
from app.settings.types import Ratio, Section

(_DEFAULT,) = Shares().trigger


class ConditionSettings(Section):
    """Conditions that must all hold; tokens are the provider's, as Steno estimates them."""

    token_ratio: Ratio | None = None
    """Share of the limit that the estimate of the prompt exceeds.

    The limit is the window less the output that the request reserves (5 % of the window, at most 8,192 tokens, if it
    does not say). Estimates are off by some percent; above 0.9 the provider may refuse before Steno acts.
    """
    since_checkpoint_ratio: Ratio | None = None
    """Share that the messages after the last summary exceed, the current one included.

    It does not bound the prompt as a whole: add the alternative `overflow: true`.
    """
    of: Literal["limit", "window"] = "limit"
    """Base of the ratios beside it: `limit`, which is the window less the reserved output, or `window`.

    A request that reserves much output has a limit far below its window.
    """
    tokens: int | None = Field(None, ge=1, le=MOST_TOKENS)
    """Tokens that the estimate of the prompt exceeds."""
    remaining_tokens: int | None = Field(None, ge=0, le=MOST_TOKENS)
    """Tokens of the window that are left at most; reserved output is not subtracted."""
    overflow: bool = False
    """Fire when the estimate exceeds the limit, and not earlier."""
    turns: int | None = Field(None, ge=0, le=100_000)
    """Number that the whole turns before the current one without a summary exceed.

    Keep it well above `compaction.tail.turns`, or nearly every turn is compacted.
    """
    messages: int | None = Field(None, ge=1, le=100_000)
    """Least number of messages before the verbatim tail without a summary."""

    @property
    def conditions(self) -> set[str]:
        """Names of the conditions that are set."""
        return {name for name in CONDITIONS if (value := getattr(self, name)) is not None and value is not False}


CONDITIONS = frozenset(ConditionSettings.model_fields) - {"of"}


class AlternativeSettings(ConditionSettings):
    """One alternative of a trigger."""

    @model_validator(mode="after")
    def _names_a_condition(self) -> Self:
        if not self.conditions:
            raise ValueError(f"a condition is needed: one of {', '.join(sorted(CONDITIONS))}")
        return self


def _named(trigger: Mapping[str, Any]) -> bool:
    """True if a condition is set; null and false do not count."""
    given = (trigger.get(name) for name in CONDITIONS)
    return bool(trigger.get("any")) or any(value is not None and value is not False for value in given)


class TriggerSettings(ConditionSettings):
    """Conditions under which a compaction is due, joined by "and", or alternatives in `any`, joined by "or".

    Naming any other condition drops the default token_ratio; name both to have both. A trigger is replaced as a whole:
    one set here replaces the preset's, one of an upstream this one, one of a model the upstream's, and one of a request
    (`context.trigger`) all others. If a request names a preset, triggers of its model and upstream do not count.
    """

    token_ratio: Ratio | None = _DEFAULT.token_ratio
    any: tuple[AlternativeSettings, ...] = Field((), max_length=10)
    """Alternatives, in place of the conditions above: each is a set of conditions that must all hold; one set is
    enough.

    At most 10. Take the token_ratio above out then: a condition beside `any` is refused. For example:

        - {token_ratio: 0.6, turns: 20}
        - {overflow: true}
    """

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
        """Sets of conditions of which one has to hold."""
        return self.any or (self,)
