"""The output cap (`max_tokens`) of a request to a provider that adds it to the prompt before it looks at the window.

A prompt that fits stays whole: the cap is lowered to what the window holds beside it.
"""

from __future__ import annotations

from app.core.limits.budget import MOST_RESERVED, Budget

PROMPT_ERROR = 0.02
"""Share of a prompt by which its estimate may be too low."""


def least_output(window: int, cap: int, thinking: int) -> int:
    """The lowest output cap in place of `cap`: a quarter of the window, and more than the tokens for thinking, but no
    more than `cap`."""
    return min(cap, max(int(MOST_RESERVED * window), thinking + 1))


def output_cap(budget: Budget, sent: int, cap: int, thinking: int) -> int | None:
    """The output cap with which a prompt of this estimate fits the window; None where the client's own does."""
    prompt = budget.line.reported(sent)
    if prompt + cap <= budget.window:
        return None
    fitting = budget.window - round((1 + PROMPT_ERROR) * prompt)
    lowered = max(fitting, least_output(budget.window, cap, thinking))
    return lowered if lowered < cap else None
