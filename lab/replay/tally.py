"""Tally: what a replay came to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from lab.replay.judge import Verdict, Violation

FROM_REFUSALS = frozenset({"refused", "no_answer"})


@dataclass(slots=True)
class Tally:
    name: str
    window: int
    may_refuse: bool = False
    """The settings do not promise that every request fits: what the provider refuses is counted, and no violation."""
    conversations: int = 0
    requests: int = 0
    summary_calls: int = 0
    compactions: int = 0
    """Accepted requests in which summaries were made or taken up, or other messages than before shortened or left
    out."""
    folds: int = 0
    prefix_breaks: int = 0
    previous_bytes: int = 0
    kept_bytes: int = 0
    tokens_direct: int = 0
    tokens_forwarded: int = 0
    summary_tokens: int = 0
    """Prompts of the summary calls."""
    recalled_tokens: int = 0
    """Tokens of the payloads' notes of recalled passages."""
    largest_prompt: int = 0
    too_large: int = 0
    """Requests that the provider would have refused without Steno."""
    errors: int = 0
    """Requests to which the client got an error."""
    resent: int = 0
    """Payloads that the provider refused and that were sent once more, smaller."""
    messages: int = 0
    """Number of messages in the histories, over all requests; the following add up to it."""
    verbatim: int = 0
    summarised: int = 0
    shortened: int = 0
    pruned: int = 0
    lost: int = 0
    refused: int = 0
    """Number of messages in requests that the provider did not answer."""
    seconds: float = 0.0
    violations: list[Violation] = field(default_factory=list)

    @property
    def prefix_kept(self) -> float:
        """Share of the previous payloads' bytes with which the next ones began."""
        return self.kept_bytes / self.previous_bytes if self.previous_bytes else 1.0

    def add(self, verdict: Verdict, direct: int, forwarded: int, summary_tokens: int, recalled: int = 0) -> None:
        """One more request, with the tokens of the client's own history, of its payload, of its summary calls, and of
        what was recalled in it."""
        self.requests += 1
        self.summary_calls += verdict.summary_calls
        self.folds += verdict.folds
        self.resent += verdict.resent
        self.tokens_direct += direct
        self.summary_tokens += summary_tokens
        self.too_large += direct > self.window
        self.messages += verdict.messages
        if verdict.accepted:
            self._add_payload(verdict, forwarded)
            self.recalled_tokens += recalled
        else:
            self.refused += verdict.messages

    def _add_payload(self, verdict: Verdict, tokens: int) -> None:
        self.compactions += verdict.compaction
        self.prefix_breaks += verdict.broke
        self.previous_bytes += verdict.previous_bytes
        self.kept_bytes += verdict.kept_bytes
        self.tokens_forwarded += tokens
        self.largest_prompt = max(self.largest_prompt, tokens)
        self.verbatim += verdict.verbatim
        self.summarised += verdict.summarised
        self.shortened += verdict.shortened
        self.pruned += verdict.pruned
        self.lost += verdict.lost

    def object(self, violations: Iterable[Violation]) -> None:
        """Note what is wrong with a request, or with a question that is not counted among them."""
        self.violations += (each for each in violations if not (self.may_refuse and each.kind in FROM_REFUSALS))

    def share(self, messages: int) -> float:
        return messages / self.messages if self.messages else 0.0

    def as_json(self) -> Mapping[str, Any]:
        counts: Mapping[str, Any] = msgspec.to_builtins(self)
        return {**counts, "prefix_kept": round(self.prefix_kept, 4)}
