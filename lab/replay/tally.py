"""Tally: what the replay of one file came to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from lab.replay.judge import Verdict, Violation

FROM_REFUSALS = frozenset({"refused", "no_answer"})


@dataclass(slots=True)
class Tally:
    file: str
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
        return {
            "file": self.file,
            "window": self.window,
            "conversations": self.conversations,
            "requests": self.requests,
            "requests_too_large_without_steno": self.too_large,
            "summary_calls": self.summary_calls,
            "compactions": self.compactions,
            "folds": self.folds,
            "prefix_breaks": self.prefix_breaks,
            "prefix_kept": round(self.prefix_kept, 4),
            "tokens": {
                "direct": self.tokens_direct,
                "forwarded": self.tokens_forwarded,
                "for_summaries": self.summary_tokens,
                "recalled": self.recalled_tokens,
                "largest_prompt": self.largest_prompt,
            },
            "errors": self.errors,
            "resent": self.resent,
            "messages": {
                "all": self.messages,
                "verbatim": self.verbatim,
                "summarised": self.summarised,
                "shortened": self.shortened,
                "pruned": self.pruned,
                "lost": self.lost,
                "refused": self.refused,
            },
            "seconds": round(self.seconds, 2),
            "violations": [
                {"conversation": v.conversation, "request": v.request, "kind": v.kind, "sentence": v.sentence}
                for v in self.violations
            ],
        }

    def rows(self) -> list[tuple[str, str]]:
        """The same for a table."""
        share = 1 - (self.tokens_forwarded + self.summary_tokens) / self.tokens_direct if self.tokens_direct else 0.0
        return [
            ("conversations", f"{self.conversations:,}"),
            ("requests", f"{self.requests:,}"),
            ("  too large for the window without Steno", f"{self.too_large:,}"),
            ("compactions", f"{self.compactions:,}"),
            ("summary calls", f"{self.summary_calls:,}"),
            ("  of which folds", f"{self.folds:,}"),
            ("prefix breaks", f"{self.prefix_breaks:,}"),
            ("prompt prefix kept", f"{self.prefix_kept:.1%}"),
            ("tokens direct", f"{self.tokens_direct:,}"),
            ("tokens forwarded", f"{self.tokens_forwarded:,}"),
            ("tokens of summary calls", f"{self.summary_tokens:,}"),
            ("tokens of recalled passages", f"{self.recalled_tokens:,}"),
            ("tokens saved", f"{share:.1%}"),
            ("largest prompt forwarded", f"{self.largest_prompt:,}"),
            ("errors that the client got", f"{self.errors:,}"),
            ("messages verbatim, over all requests", f"{self.verbatim:,}"),
            ("messages summarised, over all requests", f"{self.summarised:,}"),
            ("messages masked or shortened", f"{self.shortened:,}"),
            ("messages left out, and named", f"{self.pruned:,}"),
            ("seconds", f"{self.seconds:,.1f}"),
            ("violations", f"{len(self.violations):,}"),
        ]
