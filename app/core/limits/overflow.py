"""Overflow: a prompt that the provider refused for its size, and the numbers it gave."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

LEAST_LIMIT = 1_000
"""Tokens; a smaller limit is no window but an entitlement, or not a number of tokens at all."""
FEW = 16
"""Tokens of an answer that ended where it began; a provider counts what ends it."""
FULL_SHARE = 0.95
"""Share of the window that prompt and answer fill, from which on its end is the window's."""
PRESSURE = 0.80
"""Share of the window from which on a prompt may be too large for it, by an estimate."""


class Overflow(Struct, frozen=True):
    """A prompt that was refused for its size. Numbers are the provider's own tokens, None where it does not tell."""

    kind: Literal["context_window", "request_too_large", "payload"]
    """The model's window; a bucket of tokens per minute that is smaller than the request; or a limit of bytes."""
    limit: int | None = None
    prompt: int | None = None
    """Tokens of the prompt, if the error separates them from the output."""
    requested: int | None = None
    """Tokens that were counted against the limit: the prompt, with the output where that counts."""
    names_output: bool = False
    """The error speaks of the output, too."""
    needs_pressure: bool = False
    """The error gives no reason: an overflow only if our own estimate was at least `PRESSURE`."""
    limit_bytes: int | None = None
    """Limit of a `payload`."""

    @property
    def learn_window(self) -> bool:
        """Whether the limit may be kept as the model's window."""
        refused = self.requested is None or self.limit is None or self.requested > self.limit
        return self.kind == "context_window" and self.limit is not None and refused


class CutAnswer(Struct, frozen=True):
    """An answer that came with status 200 and ended for want of room. Tokens are the provider's, None if not told."""

    by_window: bool
    """The window ended it, as its reason says; else any bound of its length did."""
    is_empty: bool
    """True if the answer holds neither text nor calls."""
    prompt: int | None
    completion: int | None

    def total(self, expected: int) -> int:
        """Tokens of prompt and answer together; `expected` is the prompt's estimate."""
        return (self.prompt or expected) + (self.completion or 0)


def overflow_of(cut: CutAnswer, expected: int, window: int, reserve: int, cap: int | None) -> Overflow | None:
    """The overflow that an answer tells by its end: the prompt left it less room than was kept free.

    `expected` is the prompt's estimate in the provider's tokens, `reserve` what was kept free of the window, `cap` the
    request's output cap, which may have ended the answer as well. The limit is what prompt and answer took together.
    """
    completion, total = cut.completion, cut.total(expected)
    if cut.by_window:
        is_overflow = cut.is_empty or (completion is not None and completion < reserve)
    elif not cut.is_empty or (cap is not None and cap <= max(FEW, completion or 0)):
        is_overflow = False
    elif completion is None:
        is_overflow = cap is None or expected >= PRESSURE * window
    else:  # Thinking that is not shown may have taken a cap of the provider's own.
        is_overflow = completion <= FEW or total >= FULL_SHARE * window
    return Overflow("context_window", total) if is_overflow and total >= LEAST_LIMIT else None
