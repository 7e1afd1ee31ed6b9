"""Without: what a request is sent as while the summary that is due for it is made.

As it is, where it fits well. Else tool results that the assistant has answered are masked, by a boundary that stays:
the requests that follow begin alike until the summary is used. Where that is not enough, single large texts are cut as
well (`fit`), for this request only. Nothing is left out: a request that would need that waits for its summary.
"""

from __future__ import annotations

from msgspec.structs import replace

from app.core.stages.case import Case
from app.core.stages.masking import mask_for_now


def without_summary(case: Case, at_most: int, *, shortens: bool) -> Case | None:
    """The case by which the request goes on, in a view of at most so many tokens, or None where it has to wait.

    `shortens`: whether anything may be done to the view there is.
    """
    if case.widest_view.tokens <= at_most:
        return case
    if not shortens:
        return None
    boundary = mask_for_now(case)
    masked = case.with_boundaries([boundary]) if boundary else case
    closer = replace(masked, budget=replace(case.budget, limit=at_most))
    return closer if closer.can_do_without_summary else None
