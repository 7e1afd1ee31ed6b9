"""The trigger: the size of a view over which a compaction is due."""

from __future__ import annotations

from msgspec import Struct


class Trigger(Struct, frozen=True):
    tokens: int
    """Tokens of the view, by the estimate."""
    since: int | None = None
    """Tokens of the messages after the last summary, the current one included; None where they do not count."""

    def fires(self, tokens: int, since: int = 0) -> bool:
        """True for a view of so many tokens, of which so many follow the last summary."""
        return tokens > self.tokens or (self.since is not None and since > self.since)

    @property
    def quiet_tokens(self) -> int:
        """The largest view that never fires it."""
        return self.tokens if self.since is None else min(self.tokens, self.since)
