"""Triggers: when a view is too large, by any measure a policy uses."""

from __future__ import annotations

from msgspec import Struct

from app.core.lazy import lazy


class Size(Struct, frozen=True):
    """Size of a view in our estimate, and how much of it no summary stands for: a trigger is asked about both."""

    tokens: int
    since: int = 0
    """Tokens of the messages after the last summary, the current one too."""
    turns: int = 0
    """Whole turns among them, before the current one."""
    messages: int = 0
    """Number of messages that a summary would stand for: all before the verbatim tail."""


class Condition(Struct, frozen=True):
    """Holds where all of it does."""

    tokens: int = 0
    """The view has more than so many."""
    since: int | None = None
    """Tokens that the messages after the last summary exceed."""
    turns: int | None = None
    """Number that the whole turns without a summary exceed."""
    messages: int | None = None
    """Least number of messages that would be summarised."""

    def holds(self, size: Size) -> bool:
        return (
            size.tokens > self.tokens
            and (self.since is None or size.since > self.since)
            and (self.turns is None or size.turns > self.turns)
            and (self.messages is None or size.messages >= self.messages)
        )


class Trigger(Struct, frozen=True, dict=True):
    """Fires where one of its conditions holds; without any it never does."""

    conditions: tuple[Condition, ...]
    tail_turns: int = 0
    """The whole turns before the current one that no summary would stand for."""

    def fires(self, size: Size) -> bool:
        return any(condition.holds(size) for condition in self.conditions)

    @property
    def counts_turns(self) -> bool:
        """Whether one of them counts turns or messages: it fires however few tokens these have."""
        return any(condition.turns is not None or condition.messages is not None for condition in self.conditions)

    @lazy
    def tokens(self) -> int:
        """A view of at most so many tokens never fires it."""
        most = 1 << 62
        return min((max(condition.tokens, condition.since or 0) for condition in self.conditions), default=most)


def over(tokens: int) -> Trigger:
    """Fires where a view has more than so many tokens."""
    return Trigger((Condition(tokens),))
