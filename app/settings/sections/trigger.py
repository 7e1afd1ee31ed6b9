"""The trigger: what makes a compaction due."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from app.core.limits.budget import MOST_TOKENS, Shares
from app.settings.types import Ratio, Section

_RATIO, _CAP = Shares().trigger


class ConditionSettings(Section):
    """Conditions that must all hold; tokens are the provider's, as Steno estimates them."""

    token_ratio: Ratio | None = None
    """Share of the limit that the estimate of the prompt exceeds.

    The limit is the window less the request's output cap, of which at most a quarter of the window counts. Without a
    cap 5 % of the window are kept free, at most 8,192 tokens. Above 0.9 the provider may refuse before Steno acts:
    estimates are off by some percent.
    """
    since_checkpoint_ratio: Ratio | None = None
    """Share that the messages after the last summary exceed, the current one included.

    It does not bound the prompt as a whole: add the alternative `overflow: true`.
    """
    of: Literal["limit", "window"] = "limit"
    """Base of the ratios beside it: `limit`, which is the window less the room for the answer, or `window`."""
    tokens: int | None = Field(None, ge=1, le=MOST_TOKENS)
    """Tokens that the estimate of the prompt exceeds.

    As the only condition under `compaction` it is the cap, in place of the one in `any` and for all models, or 0 for
    none; the default token_ratio stays beside it.
    """
    remaining_tokens: int | None = Field(None, ge=0, le=MOST_TOKENS)
    """Tokens of the window that are left at most; the room for the answer is not subtracted."""
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


DEFAULT = (AlternativeSettings(token_ratio=_RATIO.token_ratio), AlternativeSettings(tokens=_CAP.tokens))


def _named(trigger: Mapping[str, Any]) -> set[str]:
    """Conditions that are set; null and false do not count."""
    return {name for name in CONDITIONS if (given := trigger.get(name)) is not None and given is not False}


class TriggerSettings(ConditionSettings):
    """Conditions under which a compaction is due, joined by "and", or alternatives in `any`, joined by "or".

    Naming any condition drops the defaults in `any`. A trigger is replaced as a whole: one set here replaces the
    preset's, one of an upstream this one, one of a model the upstream's, and one of a request (`context.trigger`) all
    others. If a request names a preset, triggers of its model and upstream do not count.
    """

    any: tuple[AlternativeSettings, ...] = Field(DEFAULT, max_length=10)
    """Alternatives, in place of the conditions above: each is a set of conditions that must all hold; one set is
    enough.

    `tokens` alone, beside a token_ratio, is a cap: target and tail are then shares of at most that. [The default
    cap](policies.md#default) is higher for a few models, and lower where the list price rises. At most 10; a condition
    beside `any` is refused. For example:

        - {token_ratio: 0.6, turns: 20}
        - {overflow: true}
    """

    body_bytes: int | None = Field(None, ge=0)
    """Bytes of a request over which [pictures and files give way](policies.md#default); null means 0.8 of
    what its provider takes, 0 never.

    Providers take 32 MB in Messages, else 50 MB (Bedrock 20 MB, Vertex 30 MB). It stands beside any conditions, and
    needs `compaction.mask.enabled`.
    """

    @model_validator(mode="before")
    @classmethod
    def _default_gives_way(cls, given: Any) -> Any:
        """The defaults would weaken every other condition, or be weakened by it."""
        if isinstance(given, Mapping) and "any" not in given and _named(given):
            return {**given, "any": ()}
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


class UsualTriggerSettings(TriggerSettings):
    __doc__ = TriggerSettings.__doc__

    @model_validator(mode="before")
    @classmethod
    def _tokens_alone_are_the_cap(cls, given: Any) -> Any:
        if not isinstance(given, Mapping) or given.get("any") or _named(given) != {"tokens"}:
            return given
        cap = [{"tokens": given["tokens"]}] if given["tokens"] not in (0, "0") else []
        return {**given, "tokens": None, "any": [{"token_ratio": _RATIO.token_ratio}, *cap]}
