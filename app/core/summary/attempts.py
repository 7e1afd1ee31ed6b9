"""Attempts: what was looked at and made for a payload before it was decided what is sent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from app.core.stages.case import Case
from app.core.stages.steps import Step
from app.core.summary.flow import Compaction


def steps_to(
    start: Case | None, end: Case, attempts: Sequence[Compaction], *, mask_put_off: bool = False
) -> Iterator[Step]:
    """Step from what was known at first, None where the store did not say, to what was known in the end."""
    if start is not None:
        yield _stored(start)
        if set(end.boundaries) - set(start.boundaries):
            yield Step("mask", "set")
    if mask_put_off:
        yield Step("mask", "put_off")
    for attempt in attempts:
        tokens = sum(chunk.tokens for chunk in attempt.made) if attempt.made else None
        yield Step("summarise", attempt.outcome.name.lower(), tokens, len(attempt.made), attempt.reasons)


def _stored(case: Case) -> Step:
    least = case.least_view
    view = least or case.widest_view
    return Step("stored", "fits" if least else "too_large", view.tokens, len(view.chunks))
