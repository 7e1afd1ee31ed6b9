"""Overflow: a prompt that the provider refused for its size, and the numbers it gave."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

LEAST_LIMIT = 1_000
"""Tokens; a smaller limit is no window but an entitlement, or not a number of tokens at all."""


class Overflow(Struct, frozen=True):
    """A prompt that was refused for its size. Numbers are the provider's own tokens, None where it does not tell."""

    kind: Literal["context_window", "request_too_large"]
    """The model's window, or a bucket of tokens per minute that is smaller than the request."""
    limit: int | None = None
    prompt: int | None = None
    """Tokens of the prompt, if the error separates them from the output."""
    requested: int | None = None
    """Tokens that were counted against the limit: the prompt, with the output where that counts."""
    names_output: bool = False
    """The error speaks of the output, too."""
    needs_pressure: bool = False
    """The error gives no reason: an overflow only if our own estimate was at least 80 % of the window."""

    @property
    def learn_window(self) -> bool:
        """Whether the limit may be kept as the model's window."""
        refused = self.requested is None or self.limit is None or self.requested > self.limit
        return self.kind == "context_window" and self.limit is not None and refused
